"""Files of weights without code: safetensors, PyTorch, TorchScript and ONNX. No code of a file is run."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bnrank._core import sources, store, validation
from bnrank.networks.reading import onnx_files
from bnrank.networks.reading.stored import Stored, nothing, of_mapping, record, unwrapped

SUFFIXES = (".safetensors", ".onnx", ".pt", ".pth", ".bin", ".ckpt", ".jit", ".ts", ".pth.tar", ".index.json")
RESULTS = ("watch", "comparison", "dataset")  # files of bnrank whose tensors are no weights
_POINTER = b"version https://git-lfs"


def is_named_so(path: Path) -> bool:
    """Return whether the name of a path is one of a file of weights."""
    return path.name.lower().endswith(SUFFIXES)


@contextlib.contextmanager
def opened(path: object, name: str = "net") -> Iterator[list[Stored]]:
    """Provide the tensors of a file, each read where it is loaded.

    Parameters
    ----------
    path : path
        ``.safetensors``; ``.onnx`` (needs the package onnx); ``.pt``, ``.pth``, ``.bin``, ``.ckpt``, ``.pth.tar`` of
        ``torch.save``, of which only tensors and plain values are accepted; a TorchScript archive, whose code is not
        run; or the ``.index.json`` of weights that are split into several of these files, beside it.
    name : str
        The argument in errors.

    Raises
    ------
    ValueError
        If the file is missing, damaged, of another format, or holds objects other than tensors and plain values.
    """
    path = sources.as_path(path, name)
    expected = f"one ending in {', '.join(SUFFIXES)}"
    validation.expect(is_named_so(path), name, f"{str(path)!r}", f"a file of weights, {expected}")
    with contextlib.ExitStack() as stack:
        if path.name.lower().endswith(".index.json"):
            yield unwrapped(_ordered(_shards(path, name, stack)))
        elif (found := _lazily(path, name, stack)) is not None:
            yield unwrapped(_ordered(found))
        else:
            yield _whole(path, name, stack)


def _ordered(records: list[Stored]) -> list[Stored]:
    """Return records with numbers in their names in numerical order, for files that do not keep the order."""

    def key(stored: Stored) -> list[tuple[int, int, str]]:
        parts = filter(None, re.split(r"(\d+)", stored.name))
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]

    return sorted(records, key=key)


def _start(file: BinaryIO, path: Path, name: str) -> bytes:
    """Return the first bytes of a file that has some of its own."""
    start = file.read(len(_POINTER))
    file.seek(0)
    validation.expect(start, name, f"{path}, which is empty", "a file of weights")
    pointer = f"{path}, a pointer of Git LFS in place of the weights"
    validation.expect(start != _POINTER, name, pointer, "the file itself (git lfs pull)")
    return start


def _whole(path: Path, name: str, stack: contextlib.ExitStack) -> list[Stored]:
    """Return the tensors of a file that is not read lazily from safetensors."""
    file = stack.enter_context(sources.opened(path, name))
    start = _start(file, path, name)
    if path.suffix.lower() == ".onnx":
        return onnx_files.records(path, name)
    if _is_safetensors(path, start):
        kept = store.read(path, name=name)  # verified by its checksum
        validation.expect(kept.kind not in RESULTS, name, f"{path} with a {kept.kind}", "a file of weights")
        return of_mapping(kept.tensors, name)
    if start[:2] == b"PK" and (root := _script_root(file)) is not None:
        return _script(path, file, root, name)
    return _pickled(path, name, start)


def _is_safetensors(path: Path, start: bytes) -> bool:
    return path.suffix.lower() == ".safetensors" or (start[8:9] == b"{" and path.suffix.lower() != ".onnx")


def _lazily(path: Path, name: str, stack: contextlib.ExitStack) -> list[Stored] | None:
    """Return the tensors of a safetensors file, as they are stored; None for another file, or one of bnrank."""
    from safetensors import SafetensorError, safe_open

    with sources.opened(path, name) as file:
        if not _is_safetensors(path, _start(file, path, name)) or b"bnrank file" in file.read(1 << 16):
            return None
    try:
        opened = stack.enter_context(safe_open(path, "pt"))
        names = list(opened.keys())
        validation.expect(names, name, f"{path} without tensors", "a file with some")
        return [_lazy(opened, key) for key in names]
    except (SafetensorError, OSError) as error:
        raise sources.DamagedError(f"{name}: {path} is damaged or not a safetensors file: {error}") from error


def _shards(path: Path, name: str, stack: contextlib.ExitStack) -> list[Stored]:
    """Return the tensors of the files in which an index says that they are."""
    try:
        places = sources.parse_json(sources.read(path, name, sources.MAX_JSON))["weight_map"]
        files = sorted(set(places.values()))
        fits = bool(files) and all(_is_inside(Path(file)) and is_named_so(Path(file)) for file in files)
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise sources.DamagedError(f"{name}: {path} is damaged or no index of weights: {error}") from error
    validation.expect(fits, name, f"{path} of {files[:3]}", "an index of files of weights in its folder")
    found: list[Stored] = []
    for file in files:
        shard = path.parent / file
        validation.expect(shard.is_file(), name, f"{path} without {file}", "all files of the index beside it")
        validation.expect(not file.endswith(".index.json"), name, f"{path} of {file}", "an index of files of weights")
        lazy = _lazily(shard, name, stack)
        part = _whole(shard, name, stack) if lazy is None else lazy
        missing = {key for key, where in places.items() if where == file} - {one.name for one in part}
        if missing and lazy is not None:
            raise sources.DamagedError(
                f"{name}: {shard} has no tensor {min(missing)!r}, which {path.name} places there"
            )
        found += [one for one in part if places.get(one.name, file) == file]
    return found


def _is_inside(path: Path) -> bool:
    """Return whether a relative path stays in its folder."""
    return not path.is_absolute() and ".." not in path.parts


def _lazy(file: Any, key: str) -> Stored:
    part = file.get_slice(key)
    dtype = store.TYPES.get(part.get_dtype())
    named = part.get_dtype() if dtype is None else str(dtype).removeprefix("torch.")
    reason = "" if dtype is not None else f"numbers of type {named}, which PyTorch does not have"
    floating = dtype is not None and (dtype.is_floating_point or dtype.is_complex)
    return Stored(key, tuple(part.get_shape()), named, lambda: file.get_tensor(key), floating, reason=reason)


def _pickled(path: Path, name: str, start: bytes) -> list[Stored]:
    """Return the tensors of a file of torch.save: only tensors and plain values are unpickled."""
    advice = (
        "Where the model is trusted and loaded, write "
        'torch.save(model.state_dict(), "weights.pt") or '
        'safetensors.torch.save_file(model.state_dict(), "weights.safetensors"), and give that file'
    )
    known = start[:4] == b"PK\3\4" or start[:1] == b"\x80"
    validation.expect(known, name, f"{path}, which is no file of torch.save", "a file of weights")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=start[:2] == b"PK")
    except pickle.UnpicklingError as error:
        first = str(error).split("\n")[0].split("WeightsUnpickler error: ")[-1]
        line = next((x.strip() for x in str(error).splitlines() if "Unsupported" in x or "GLOBAL" in x), first)
        refused = re.search(r"GLOBAL ([\w.]+)", line)
        what = refused[1] if refused else line[:160].strip()
        only = "Only tensors and plain values are read, since a pickle can run any code"
        raise ValueError(f"{name}: {path} holds more than tensors ({what}). {only}. {advice}") from error
    except Exception as error:  # whatever torch raises for a damaged file
        text = str(error).split(". This is an internal")[0][:200] or "it ends too early"
        raise sources.DamagedError(f"{name}: {path} is damaged or no file of torch.save: {text}") from error
    if isinstance(loaded, Tensor):
        return [record("tensor", loaded)]
    if isinstance(loaded, list | tuple) and any(isinstance(value, Tensor | Mapping) for value in loaded):
        loaded = dict(enumerate(loaded))
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{name}: {path} holds {validation.describe(loaded)}, expected a state dict. {advice}")
    return of_mapping(loaded, name)


# TorchScript ---------------------------------------------------------------------------------------------------------


def _script_root(file: BinaryIO) -> str | None:
    """Return the folder inside a TorchScript archive; None for another archive, or a damaged one."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, OSError):
        return None
    roots = {entry.split("/")[0] for entry in names if entry.endswith("/constants.pkl")}
    return next((root for root in roots if f"{root}/data.pkl" in names), None)


class _Object:
    """A scripted object: its attributes, and nothing of its class."""

    def __init__(self, *arguments: object) -> None:
        self.state: object = arguments or None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Stored:
    """Numbers in an archive, read where they are needed."""

    def __init__(self, kind: str, key: str) -> None:
        self.kind, self.key = kind, key


class _Unpickler(pickle.Unpickler):
    """Reads the attributes of a scripted module; every class becomes a plain holder of attributes."""

    def persistent_load(self, pid: Any) -> _Stored:
        _, kind, key, *_ = pid
        return _Stored(kind if isinstance(kind, str) else getattr(kind, "__name__", ""), str(key))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _View
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name.endswith("Storage"):
            return type(name, (), {})
        return type(name, (_Object,), {})


class _View:
    """A tensor in an archive: storage, offset, shape and strides."""

    def __init__(self, storage: _Stored, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: object):
        self.storage, self.offset, self.shape, self.stride = storage, offset, tuple(shape), tuple(stride)

    @property
    def dtype(self) -> torch.dtype | None:
        return _STORAGES.get(self.storage.kind)


_STORAGES = {
    **{"DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
    **{"ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128},
    **{"UInt16Storage": torch.uint16, "UInt32Storage": torch.uint32, "UInt64Storage": torch.uint64},
    **{"Float8_e4m3fnStorage": torch.float8_e4m3fn, "Float8_e4m3fnuzStorage": torch.float8_e4m3fnuz},
    **{"Float8_e5m2Storage": torch.float8_e5m2, "Float8_e5m2fnuzStorage": torch.float8_e5m2fnuz},
}
_OTHERS = {
    "_rebuild_sparse_tensor": "sparse layout; .to_dense() makes it measurable",
    "_rebuild_qtensor": "quantized; measure the network before quantization",
}


def _script(path: Path, file: BinaryIO, root: str, name: str) -> list[Stored]:
    archive, whose = zipfile.ZipFile(file), f"{name}: {path}"
    try:
        module = _Unpickler(io.BytesIO(_member(archive, f"{root}/data.pkl"))).load()
        found = [_of_view(key, value, archive, f"{root}/data", whose) for key, value in _attributes(module, "")]
        constants = _Unpickler(io.BytesIO(_member(archive, f"{root}/constants.pkl"))).load()
        named = {f"CONSTANTS.c{i}": value for i, value in enumerate(constants)}  # as the code calls them
        found += [_of_view(key, value, archive, f"{root}/constants", whose) for key, value in _attributes(named, "")]
    except RecursionError as error:
        raise sources.DamagedError(f"{name}: {path}: the modules in it are nested too deep") from error
    except Exception as error:  # whatever a damaged pickle raises
        raise sources.DamagedError(f"{name}: {path} is damaged or no TorchScript archive: {error}") from error
    validation.expect(found, name, f"{path} without tensors", "a scripted module with weights")
    return unwrapped(found)


def _member(archive: zipfile.ZipFile, key: str) -> bytes:
    """Return a file of the archive, unless it expands beyond measure."""
    about = archive.getinfo(key)
    most = sources.may_expand_to(about.compress_size)
    validation.expect(about.file_size <= most, key, f"{about.file_size:,} bytes", f"at most {most:,}")
    return archive.read(about)


def _attributes(value: object, prefix: str) -> Iterator[tuple[str, object]]:
    """Iterate over the tensors of a scripted module, by name, of any layout, and over packed weights."""
    state = value.state if isinstance(value, _Object) else value
    if isinstance(value, _View):
        yield prefix, value
    elif isinstance(state, Mapping):
        for key, inner in state.items():
            yield from _attributes(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(state, list | tuple) and isinstance(value, _Object) and any(isinstance(v, _View) for v in state):
        yield (prefix if type(value).__name__ in _OTHERS else f"{prefix}._packed"), value
    elif isinstance(state, list | tuple):
        for i, inner in enumerate(state):
            if isinstance(inner, _View | _Object | Mapping | list | tuple):
                yield from _attributes(inner, f"{prefix}.{i}" if prefix else str(i))


def _of_view(key: str, value: object, archive: zipfile.ZipFile, folder: str, whose: str) -> Stored:
    kind = type(value).__name__
    if kind in _OTHERS:
        return Stored(key, (), kind, nothing, reason=_OTHERS[kind])
    if not isinstance(value, _View):
        return record(key, value)
    dtype = value.dtype
    if dtype is None:
        text = f"numbers of type {value.storage.kind}, which is not read"
        return Stored(key, value.shape, value.storage.kind, nothing, False, reason=text)

    def load(dtype: torch.dtype = dtype) -> Tensor:
        try:
            data = bytearray(_member(archive, f"{folder}/{value.storage.key}"))
            numbers = torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)
            last = value.offset + sum((n - 1) * s for n, s in zip(value.shape, value.stride, strict=True))
            inside = value.offset >= 0 and last < len(numbers) and min(value.stride, default=1) >= 0
            validation.expect(inside or 0 in value.shape, "shape", value.shape, f"one of {len(numbers)} numbers")
            return numbers.as_strided(value.shape, value.stride, value.offset)
        except Exception as error:  # whatever a damaged archive raises
            raise sources.DamagedError(f"{whose}: {key!r} cannot be read: {error}") from error

    place = archive.filename, folder, value.storage.key
    storage = (place, value.offset, value.shape, value.stride) if math.prod(value.shape) else None
    floating = dtype.is_floating_point or dtype.is_complex
    return Stored(key, value.shape, str(dtype).removeprefix("torch."), load, floating, storage)
