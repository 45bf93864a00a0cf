"""One file format: tensors and plain values in a safetensors file, written atomically."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from bnrank._core import validation
from bnrank._core.files import atomic_path, checked_path
from bnrank._core.validation import Data
from bnrank._version import __version__

SUFFIX = ".safetensors"
KEY = "bnrank"
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
    """

    path: Path
    kind: str
    about: dict[str, Any]
    tensors: dict[str, Tensor]
    version: str


def save(path: str | os.PathLike[str], tensors: Mapping[str, Data], about: Mapping[str, Any], kind: str) -> Path:
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

    Raises
    ------
    TypeError, ValueError
        If the path has another ending, is a folder, lies in a folder that does not exist or cannot be written to, or
        if ``about`` has values that JSON cannot represent.

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
    plain, seen = {name: _plain(tensor) for name, tensor in tensors.items()}, set()
    for name, tensor in plain.items():  # safetensors refuses tensors that share memory
        plain[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    text = json.dumps({"kind": kind, "version": __version__, "about": dict(about)})
    metadata = {"format": "pt", KEY: text, "digest": _digest(plain, text)}
    try:
        with atomic_path(path) as temporary:
            save_file(plain, temporary, metadata)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"path: cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
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
        If the file is missing, damaged, a pickle, not written by bnrank, or of another kind.
    """
    stored = read(path, name=name)
    expected = f", expected a {kind}" if kind else ""
    if not stored.kind:
        raise ValueError(f"{name}: {stored.path} is a safetensors file that bnrank did not write{expected}")
    if kind is not None and stored.kind != kind:
        raise ValueError(f"{name}: {stored.path} holds a {stored.kind}{expected}")
    return stored


def read(path: str | os.PathLike[str], *, name: str = "path") -> Stored:
    """Return the contents of any safetensors file, such as a state dict of another program.

    Raises
    ------
    ValueError
        If the file is missing, damaged or a pickle.
    """
    path = Path(path)
    validation.expect(path.is_file(), name, f"{str(path)!r}", "a file that exists")
    _refuse_pickle(path, name)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
        if KEY not in metadata:
            return Stored(path, "", {}, tensors, "")
        if metadata.get("digest") != _digest(tensors, metadata[KEY]):
            raise ValueError("its contents differ from what was written")
        text = json.loads(metadata[KEY])
        return Stored(path, str(text["kind"]), dict(text["about"]), tensors, str(text["version"]))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        damaged = f"{path} ({path.stat().st_size} bytes) is damaged or not a safetensors file"
        raise ValueError(f"{name}: {damaged}: {error}") from error


def _plain(tensor: Data) -> Tensor:
    if isinstance(tensor, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(tensor))
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the SHA-256 of the text and of name, dtype, shape and raw bytes of every tensor."""
    result = hashlib.sha256(text.encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        result.update(f"\n{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():  # one from NumPy with no entries has stride 0, and no view as bytes
            result.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def _refuse_pickle(path: Path, name: str) -> None:
    with path.open("rb") as file:
        head = file.read(9)  # of a safetensors file: the length of its header in 8 bytes, any of them, and a brace
    protocol = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    pickled = head[:2] == b"PK" or (protocol and head[8:] != b"{")
    if path.suffix.lower() in PICKLE_SUFFIXES or pickled:
        raise ValueError(
            f"{name}: {path} is a pickle{'' if pickled else ' by its name'}, and opening one can run any code. Where "
            "the model is trusted and loaded, write it with\n"
            '    safetensors.torch.save_file(model.state_dict(), "model.safetensors")\n'
            "and give that file instead"
        )
