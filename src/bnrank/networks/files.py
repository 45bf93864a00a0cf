"""Networks on disk: safetensors only, since a model file must not be able to run code."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from bnrank._core import files, validation
from bnrank._version import __version__
from bnrank.networks.blueprints import KINDS, blueprint, build
from bnrank.networks.mlp import MLP, make
from bnrank.networks.stack import Stack

__all__ = ["load", "load_module", "save"]

_PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_KEY = "bnrank"
_COMPRESSED = "bnrank-compressed"  # a plan of discovery's, not a chain of layers


def save(net: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Save a network as one safetensors file, with what it takes to build it again as metadata.

    The file appears complete or not at all: it is written under another name in the same folder and then renamed.

    Parameters
    ----------
    net : MLP, or a residual or convolutional network of `bnrank.networks`
        The network.
    path : path
        Where to, ending in ``.safetensors``. An existing file is replaced.

    Returns
    -------
    Path
        The path.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is no such network, or the path has another ending or lies in a folder that does not exist.

    Examples
    --------
    >>> import tempfile, pathlib, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(bnrank.MLP([3, 5, 2]), pathlib.Path(folder) / "net.safetensors")
    ...     load(path).widths
    [3, 5, 2]
    """
    plan = blueprint(net)
    if plan is None:
        raise TypeError(
            f"net: got {type(net).__name__}, expected a bnrank.MLP or one of {', '.join(KINDS)}, "
            "with the parts it was built with; save other modules "
            'with safetensors.torch.save_file(model.state_dict(), "model.safetensors")'
        )
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path: got {path.name!r}, expected a name ending in .safetensors")
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in net.state_dict().items()}
    _write(path, to_bytes(tensors, {"format": "pt", _KEY: json.dumps({**plan, "version": __version__})}))
    return path


def load(path: str | os.PathLike[str], slope: float = 0.0, order: Sequence[str] | None = None) -> MLP | Stack:
    """Load a network saved by :func:`save`, or any safetensors state dict of a plain chain of linear layers.

    Parameters
    ----------
    path : path
        A safetensors file. Pickles (.pt, .pth, ...) are refused, since opening one can run code.
    slope : float
        Slope of the activation of a foreign state dict, which does not say; 0 is ReLU. Files of :func:`save` have
        their own.
    order : sequence of str, optional
        Names of the weights of a foreign state dict, first layer first. Needed where the names carry no numbers
        to sort them by.

    Returns
    -------
    MLP, or whatever network was saved
        The network, in the precision of the file.

    Raises
    ------
    ValueError
        If the file is missing, a pickle, damaged, or no chain of 2-D weights; the message names the file.
    """
    path = Path(path)
    tensors, metadata = _read_safetensors(path, "path")
    if _KEY in metadata:
        return _from_own(path, tensors, metadata[_KEY])
    if _COMPRESSED in metadata:
        raise ValueError(
            f"path: {path} holds a network that was compressed; "
            f"load it with bnrank.discovery.load_compressed({str(path)!r})"
        )
    return _from_foreign(path, tensors, validation.slope(slope), order)


def load_module(spec: str, weights: str | os.PathLike[str] | None = None) -> nn.Module:
    """Build a module from code, and load its weights from a safetensors file.

    Parameters
    ----------
    spec : str
        ``"path/to/file.py:function"`` or ``"package.module:function"``, a function without arguments that returns
        a ``torch.nn.Module``. Its code is run, so it must be trusted.
    weights : path, optional
        A safetensors file with the module's state dict.

    Returns
    -------
    torch.nn.Module
        The module.

    Raises
    ------
    TypeError, ValueError
        If the file, module or function is not there, fails, or returns something else, or the weights do not fit.

    Examples
    --------
    >>> load_module("torch.nn:Identity")
    Identity()
    """
    function = _find_function(spec)
    try:
        module = function()
    except Exception as error:
        raise ValueError(f"spec: {spec!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise TypeError(f"spec: {spec!r} returned {validation.describe(module)}, expected a torch.nn.Module")
    if weights is not None:
        tensors, _ = _read_safetensors(Path(weights), "weights")
        try:
            module.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"weights: {Path(weights)} does not fit {spec!r}: {error}") from error
    return module


def _write(path: Path, data: bytes) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"path: got {str(path)!r}, expected a path in a folder that exists")
    if path.is_dir():
        raise ValueError(f"path: got {str(path)!r}, which is a folder, expected a file name")
    files.write_atomically(path, data)


def _read_safetensors(path: Path, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        raise ValueError(f"{name}: got {str(path)!r}, expected a file that exists")
    with path.open("rb") as file:
        head = file.read(9)  # of a safetensors file: the length of its header in 8 bytes, any of them, and a brace
    protocol = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    pickled = head[:2] == b"PK" or (protocol and head[8:] != b"{")
    if path.suffix.lower() in _PICKLE_SUFFIXES or pickled:
        raise ValueError(
            f"{name}: {path} is a pickle{'' if pickled else ' by its name'}, and opening one can run any code. Where "
            "the model is trusted and loaded, write it with\n"
            '    safetensors.torch.save_file(model.state_dict(), "model.safetensors")\n'
            "and give that file instead"
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            return tensors, file.metadata() or {}
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{name}: {path} ({path.stat().st_size} bytes) is not a complete safetensors file: {error}"
        ) from error


def _from_own(path: Path, tensors: Mapping[str, Tensor], text: str) -> MLP | Stack:
    try:
        settings = json.loads(text)
        if "kind" in settings:
            plan = {key: value for key, value in settings.items() if key != "version"}
            other = build(plan, _one_dtype(path, tensors))
            found = {name: tuple(t.shape) for name, t in tensors.items()}
            if found != {name: tuple(t.shape) for name, t in other.state_dict().items()}:
                raise ValueError(f"the tensors do not fit a {settings['kind']}: {found}")
            other.load_state_dict(dict(tensors))
            return other
        arguments = {key: settings[key] for key in ("widths", "slope", "bias", "init", "seed")}
        widths = [validation.integer(width, "widths") for width in arguments["widths"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"path: {path} has damaged metadata: {error!r}") from error
    expected: dict[str, tuple[int, ...]] = {
        f"layers.{i}.weight": (n_out, n_in) for i, (n_in, n_out) in enumerate(itertools.pairwise(widths))
    }
    if arguments["bias"]:
        expected |= {f"layers.{i}.bias": (n_out,) for i, n_out in enumerate(widths[1:])}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        raise ValueError(f"path: {path} says widths {widths}, but these tensors do not fit: {', '.join(wrong)}")
    try:
        net = make(**arguments, dtype=_one_dtype(path, tensors))
    except TypeError as error:
        raise ValueError(f"path: {path} has damaged metadata: {error}") from error
    net.load_state_dict(dict(tensors))
    return net


def _from_foreign(path: Path, tensors: Mapping[str, Tensor], slope: float, order: Sequence[str] | None) -> MLP:
    weights = {name: t for name, t in tensors.items() if t.ndim == 2 and re.fullmatch(r"(.*\.)?weight", name)}
    biases = {
        name: t
        for name, t in tensors.items()
        if t.ndim == 1 and f"{name[:-4]}weight" in weights and name.endswith("bias")
    }
    other = [f"{name} {tuple(t.shape)}" for name, t in tensors.items() if name not in weights and name not in biases]
    if other or not weights:
        raise ValueError(
            f"path: {path} is not a plain chain of linear layers, expected 2-D weights and their biases only"
            + (f", but it also has {', '.join(other[:5])}{' ...' if len(other) > 5 else ''}" if other else "")
            + '. Give the code of other modules with load_module("file.py:function", weights)'
        )
    names = _in_order(path, list(weights), order)
    bare = [name for name in names if f"{name[:-6]}bias" not in biases]
    if biases and bare:
        raise ValueError(f"path: {path} has biases in some layers but not in {', '.join(bare)}; an MLP has all or none")
    shapes = [tuple(weights[name].shape) for name in names]
    for (name, a), (following, b) in itertools.pairwise(zip(names, shapes, strict=True)):
        if a[0] != b[1]:
            raise ValueError(
                f"path: {path}: the layers do not chain: {name} {a} has {a[0]} outputs, {following} {b} has {b[1]} "
                "inputs; weights must be (out, in), first layer first (give the order of the names with order=[...])"
            )
    net = MLP([shapes[0][1], *(shape[0] for shape in shapes)], slope, bool(biases), dtype=_one_dtype(path, tensors))
    with torch.no_grad():
        for i, name in enumerate(names):
            net.weights[i].copy_(weights[name])
            if biases:
                net.biases[i].copy_(biases[f"{name[:-6]}bias"])
    return net


def _in_order(path: Path, names: list[str], order: Sequence[str] | None) -> list[str]:
    if order is not None:
        if sorted(order) != sorted(names):
            raise ValueError(f"order: got {list(order)}, expected the weights of {path} in some order: {sorted(names)}")
        return list(order)
    if len({re.sub(r"\d+", "", name) for name in names}) > 1:
        raise ValueError(
            f"path: {path}: the names {', '.join(sorted(names))} do not say which layer comes first; "
            "give them in order with order=[...]"
        )
    return sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def _one_dtype(path: Path, tensors: Mapping[str, Tensor]) -> torch.dtype:
    dtypes = {t.dtype for t in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise ValueError(
            f"path: {path} has dtypes {', '.join(sorted(map(str, dtypes)))}, expected one floating-point one"
        )
    return dtypes.pop()


def _find_function(spec: str) -> Callable[[], Any]:
    if not isinstance(spec, str):
        raise TypeError(
            f"spec: got {validation.describe(spec)}, expected 'file.py:function' or 'package.module:function'"
        )
    source, colon, name = spec.rpartition(":")
    if not colon or not source or not name:
        raise ValueError(f"spec: got {spec!r}, expected 'file.py:function' or 'package.module:function'")
    namespace = _run_file(Path(source), spec) if source.endswith(".py") else _import(source, spec)
    function = getattr(namespace, name, None)
    if not callable(function):
        near = validation.suggest(name, [key for key, value in vars(namespace).items() if callable(value)])
        raise ValueError(f"spec: got {spec!r}, but {source} has no function {name!r}{near}")
    return function


def _run_file(path: Path, spec: str) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"spec: got {spec!r}, expected a file that exists, {path} does not")
    info = importlib.util.spec_from_file_location(f"bnrank_user_{path.stem}", path)
    assert info is not None
    assert info.loader is not None
    module = importlib.util.module_from_spec(info)
    sys.modules[info.name] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        info.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"spec: {path} raised {type(error).__name__} when run: {error}") from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ValueError(f"spec: got {spec!r}, but importing {name} raised {type(error).__name__}: {error}") from error
