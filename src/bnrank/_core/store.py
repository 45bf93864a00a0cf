"""One file format: tensors and plain values in a safetensors file, written atomically, with a checksum of all bytes.

The checksum is the SHA-256 of the file in which its own 64 characters, in the metadata, are zeros. It is verified
before anything else of the file is parsed. The name of the format occurs three times in the metadata, so that no
damage turns a file into one of another program, which has no checksum.
"""

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from bnrank._core import sources, validation
from bnrank._core.files import StorageError, atomic_path, checked_path
from bnrank._core.sources import DamagedError
from bnrank._core.validation import Data
from bnrank._version import __version__

SUFFIX = ".safetensors"
NAME, FORMAT = "bnrank file", 1
"""Name of the format, which only files of bnrank hold, and its version."""
CHUNK = 1 << 20
_CHECKSUM = re.compile(rb'"bnrank file checksum":"([0-9a-f]{64})"')
_ZEROS = b"0" * 64
TYPES = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (64, 32, 16)},
    **{"BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "C64": torch.complex64},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}
PICKLE_SUFFIXES = {".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".joblib"}


@dataclass(frozen=True)
class Stored:
    """The contents of a file.

    Attributes
    ----------
    path : Path
        The file.
    kind : str
        The kind of contents, e.g. "network" or "checkpoint"; "" for a file that bnrank did not write.
    about : dict
        Plain values.
    tensors : dict of str to Tensor
        Arrays.
    version : str
        The version of bnrank that wrote it; "" for a file that bnrank did not write.
    checksum : str
        The SHA-256 of all of its bytes; "" for a file that bnrank did not write.
    """

    path: Path
    kind: str
    about: dict[str, Any]
    tensors: dict[str, Tensor]
    version: str
    checksum: str


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Data],
    about: Mapping[str, Any],
    kind: str,
    *,
    previous: Path | None = None,
) -> Path:
    """Write tensors and plain values to a file, replacing it if it exists, and return its path.

    Parameters
    ----------
    path : path
        A name ending in ``.safetensors``, in an existing folder.
    tensors : mapping of str to Tensor or ndarray
        Arrays of numbers.
    about : mapping
        Values that JSON can represent.
    kind : str
        The kind of contents; `load` checks it.
    previous : Path, optional
        Where the replaced file is kept.

    Raises
    ------
    TypeError, ValueError
        If tensors are no arrays of numbers, ``about`` has values that JSON cannot represent or is too long, or the path
        has another ending, is a folder, lies in a folder that does not exist or cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Path(folder) / "a.safetensors", {"x": torch.ones(2)}, {"n": 2}, "example")
    ...     stored = load(path, "example")
    >>> stored.about["n"], stored.tensors["x"].tolist()
    (2, [1.0, 1.0])
    """
    path = checked_path(path, "path", SUFFIX)
    validation.expect(isinstance(tensors, Mapping), "tensors", tensors, "a mapping from names to arrays", TypeError)
    validation.expect(isinstance(about, Mapping), "about", about, "a mapping from names to plain values", TypeError)
    plain, seen = {name: _plain(tensor, f"tensors[{name!r}]") for name, tensor in tensors.items()}, set()
    for name, tensor in plain.items():  # safetensors refuses tensors that share memory
        plain[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    text = json.dumps({NAME: FORMAT, "kind": kind, "version": __version__, "about": dict(about)})
    fits = len(text) <= sources.MAX_JSON // 2  # quotes are escaped in the file
    validation.expect(fits, "about", f"{len(text):,} bytes of plain values", f"at most {sources.MAX_JSON // 2:,}")
    metadata = {"format": "pt", NAME: text, f"{NAME} checksum": _ZEROS.decode()}
    try:
        with atomic_path(path) as temporary:
            save_file(plain, temporary, metadata)
            _seal(temporary)
            if previous is not None and path.exists():
                _keep(path, temporary.with_name(previous.name), previous)
    except (OSError, safetensors.SafetensorError) as error:
        raise StorageError(f"path: cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    return path


def load(path: str | os.PathLike[str], kind: str | None = None, *, name: str = "path") -> Stored:
    """Return the contents of a file written by `save`.

    Parameters
    ----------
    path : path
        The file.
    kind : str, optional
        The expected kind.
    name : str
        The caller's argument, for errors.

    Raises
    ------
    ValueError
        If the file is missing, damaged (`DamagedError`), a pickle, not written by bnrank, or of another kind.
    """
    stored = read(path, name=name)
    expected = f", expected a {kind}" if kind else ""
    if not stored.kind:
        raise ValueError(f"{name}: {stored.path} is a safetensors file that bnrank did not write{expected}")
    if kind is not None and stored.kind != kind:
        raise ValueError(f"{name}: {stored.path} holds a {stored.kind}{expected}")
    return stored


def read(path: str | os.PathLike[str], *, name: str = "path", data: bytes | None = None) -> Stored:
    """Return the contents of any safetensors file, such as a state dict of another program.

    Parameters
    ----------
    path : path
        The file.
    name : str
        The caller's argument, for errors.
    data : bytes, optional
        The file's bytes, if they were read already.

    Raises
    ------
    TypeError, ValueError
        If the path is none, or the file is missing, no regular file, damaged (`DamagedError`) or a pickle.
    """
    path = sources.as_path(path, name)
    if data is not None:
        return _read(io.BytesIO(data), len(data), path, name)
    with sources.opened(path, name) as file:
        return _read(file, os.fstat(file.fileno()).st_size, path, name)


def is_whole(path: Path) -> bool:
    """Return whether a path leads to an undamaged file written by :func:`save`."""
    try:
        with sources.opened(path, "path") as file:
            header = _header(file, os.fstat(file.fileno()).st_size)
            return _stored_checksum(header) == _checksum(header, iter(lambda: file.read(CHUNK), b""))
    except (ValueError, OSError):
        return False


def checksum(path: Path) -> str:
    """Return the checksum in a file written by :func:`save`, without verifying it."""
    with sources.opened(path, "path") as file:
        return _stored_checksum(_header(file, os.fstat(file.fileno()).st_size))


def _read(file: BinaryIO, size: int, path: Path, name: str) -> Stored:
    _refuse_pickle(file, path, name)
    try:
        header = _header(file, size)
        data = torch.empty(size - len(header), dtype=torch.uint8)
        if file.readinto(data.numpy().data) != len(data):  # type: ignore[attr-defined]
            raise DamagedError("it was cut off while it was read")
        expected = ""
        if NAME.encode() in header:
            expected = _stored_checksum(header)
            if expected != _checksum(header, [data.numpy().data]):
                raise DamagedError("its contents differ from what was written")
        entries = sources.parse_json(header[8:])
        metadata = entries.pop("__metadata__", {})
        tensors = _tensors(entries, data)
        if not expected:
            return Stored(path, "", {}, tensors, "", "")
        text = sources.parse_json(metadata[NAME].encode())
        validation.expect(text[NAME] == FORMAT, "format", f"version {text[NAME]}", f"{FORMAT}")
        return Stored(path, str(text["kind"]), dict(text["about"]), tensors, str(text["version"]), expected)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        text = f"{path} ({size} bytes) is damaged or not a safetensors file"
        raise DamagedError(f"{name}: {text}: {error}") from error


def _header(file: BinaryIO, size: int) -> bytes:
    """Return the length of the header, 8 bytes, and the header."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    fits = len(start) == 8 and length <= size - 8 and length <= sources.MAX_JSON
    validation.expect(fits, "header", f"{length:,} bytes", f"at most {min(max(size - 8, 0), sources.MAX_JSON):,}")
    header = start + file.read(length)
    validation.expect(len(header) == 8 + length and header[8:9] == b"{", "header", "no JSON", "an object")
    return header


def _stored_checksum(header: bytes) -> str:
    found = _CHECKSUM.findall(header)
    validation.expect(len(found) == 1, "checksum", f"{len(found)} of them", "one")
    return str(found[0].decode())


def _checksum(header: bytes, chunks: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of a file whose checksum is replaced by zeros."""
    result = hashlib.sha256(_CHECKSUM.sub(lambda found: found[0].replace(found[1], _ZEROS), header))
    for chunk in chunks:
        result.update(chunk)
    return result.hexdigest()


def _keep(path: Path, scratch: Path, previous: Path) -> None:
    """Give a file a second name, so that it is there at every moment; where no links can be made, rename it."""
    try:
        scratch.hardlink_to(path)
    except OSError:
        path.replace(previous)
    else:
        scratch.replace(previous)


def _seal(path: Path) -> None:
    """Write the checksum into a file that holds zeros in its place."""
    with path.open("rb+") as file:
        header = _header(file, path.stat().st_size)
        found = _CHECKSUM.search(header)
        assert found is not None
        digest = _checksum(header, iter(lambda: file.read(CHUNK), b""))
        file.seek(found.start(1))
        file.write(digest.encode())


def _tensors(entries: Mapping[str, Any], data: Tensor) -> dict[str, Tensor]:
    """Return the tensors that a header describes, which share the memory of the data."""
    tensors, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (first, last) = TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        validation.expect(all(type(n) is int and 0 <= n < 1 << 48 for n in shape), name, f"shape {shape}", "sizes")
        size = math.prod(shape) * dtype.itemsize
        consistent = first == end and last - first == size and last <= len(data) and len(shape) <= 64
        validation.expect(consistent, name, f"bytes {first} to {last}", f"{size} bytes from {end} for shape {shape}")
        part, end = data[first:last], last
        aligned = part if first % dtype.itemsize == 0 else part.clone()
        tensors[name] = aligned.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    validation.expect(end == len(data), "data", f"{len(data)} bytes", f"{end}, the sum over all tensors")
    return tensors


def _plain(tensor: Data, name: str) -> Tensor:
    if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "biuf":
        tensor = torch.from_numpy(np.ascontiguousarray(tensor))
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {validation.describe(tensor)}, expected a tensor or array of numbers")
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _refuse_pickle(file: BinaryIO, path: Path, name: str) -> None:
    head = file.read(9)  # of a safetensors file: the length of its header in 8 bytes, any of them, and a brace
    file.seek(0)
    protocol = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    pickled = head[:2] == b"PK" or (protocol and head[8:] != b"{")
    if path.suffix.lower() in PICKLE_SUFFIXES or pickled:
        raise ValueError(
            f"{name}: {path} is a pickle{'' if pickled else ' by its name'}, and opening one can run any code. Where "
            "the model is trusted and loaded, write it with\n"
            '    safetensors.torch.save_file(model.state_dict(), "model.safetensors")\n'
            "and give that file instead"
        )
