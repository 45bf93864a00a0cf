"""Modules built by the user's code."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from bnrank._core import store, validation


def load_module(spec: str, weights: str | os.PathLike[str] | None = None) -> nn.Module:
    """Return a module built by code, with weights from a safetensors file.

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
        try:
            module.load_state_dict(store.read(weights, name="weights").tensors)
        except RuntimeError as error:
            raise ValueError(f"weights: {Path(weights)} does not fit {spec!r}: {error}") from error
    return module


def _find_function(spec: str) -> Callable[[], Any]:
    if not isinstance(spec, str):
        raise TypeError(
            f"spec: got {validation.describe(spec)}, expected 'file.py:function' or 'package.module:function'"
        )
    source, colon, name = spec.rpartition(":")
    validation.expect(colon and source and name, "spec", f"{spec!r}", "'file.py:function' or 'package.module:function'")
    if source.endswith(".py") and not Path(source).is_file():
        raise ValueError(f"spec: got {spec!r}, expected a file that exists, {source} does not")
    try:
        namespace = _run_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:
        raise ValueError(
            f"spec: got {spec!r}, but importing {source} raised {type(error).__name__}: {error}"
        ) from error
    function = getattr(namespace, name, None)
    if not callable(function):
        near = validation.suggest(name, [key for key, value in vars(namespace).items() if callable(value)])
        raise ValueError(f"spec: got {spec!r}, but {source} has no function {name!r}{near}")
    return function


def _run_file(path: Path) -> ModuleType:
    module = ModuleType(f"bnrank_user_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    finally:
        sys.path.remove(folder)
    return module
