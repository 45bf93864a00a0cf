"""The verdict on one call: a right answer, a refusal that names the argument, or a finding."""

import dataclasses
import os
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor, nn

from .known import NAN, PADDED

ENGLISH = {"a", "b", "f", "g", "h", "k", "n", "d", "t", "r", "u", "v", "w", "i", "x", "y"}
"""Names of arguments that are also letters: they count only before a colon, a bracket or a dot."""


def names_argument(message: str, names: tuple[str, ...]) -> bool:
    """Whether a message names a public argument: at its start, or as a word where the name is no single letter.

    >>> names_argument("x: got 3", ("x",)), names_argument("got a network", ("a",)), names_argument("no net", ("net",))
    (True, False, True)
    """
    for name in names:
        if re.match(rf"{re.escape(name)}(\b|_)", message) or re.search(
            rf"(?<![\w.]){re.escape(name)}(\[[^]]*\])?: ", message
        ):
            return True
        if name not in ENGLISH and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message):
            return True
        if name in ENGLISH and re.search(
            rf"(?<![\w.]){re.escape(name)}(\[|\.[a-z]| and [a-z]\b|, [a-z]\b| =)", message
        ):
            return True
    return False


def fingerprint(value: Any, depth: int = 0) -> Any:
    """Return what must not change of an argument: bits, shapes, modes, flags and hooks."""
    if depth > 4:
        return None
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        bits = value.tobytes() if value.dtype != object else repr(value.tolist())
        return (value.dtype.str, value.shape, value.strides, value.flags.writeable, bits)
    if isinstance(value, nn.Module):
        return _module(value)
    if isinstance(value, pd.DataFrame | pd.Series | xr.Dataset | xr.DataArray):
        return (type(value).__name__, str(value.to_dict()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [fingerprint(entry, depth + 1) for entry in value])
    if isinstance(value, dict):
        return {repr(key): fingerprint(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, str | bytes | int | float | complex | Path):
        return repr(value)
    return type(value).__name__


def _tensor(value: Tensor) -> Any:
    about = (str(value.dtype), str(value.layout), str(value.device), value.requires_grad, value.is_leaf)
    if value.is_nested or value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
        return about
    grad = None if not value.is_leaf or value.grad is None else value.grad.clone()
    raw = value.detach().resolve_neg().resolve_conj().clone().contiguous().reshape(-1)
    bits = raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""
    return (*about, tuple(value.shape), value.stride(), bits, grad is None)


def _module(net: nn.Module) -> Any:
    try:
        parts = [
            (name, m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for name, m in net.named_modules()
        ]
        parameters = [(name, type(p).__name__, p.requires_grad, p.grad is None) for name, p in net.named_parameters()]
        state = {k: _tensor(v) if isinstance(v, Tensor) else None for k, v in net.state_dict().items()}
    except Exception:  # a module that cannot be read, such as a lazy one
        return type(net).__name__
    return (parts, parameters, state)


def surroundings() -> dict[str, Any]:
    """Return the global state that a call must leave as it is."""
    name, keys, position, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": (name, np.asarray(keys).tobytes(), position, *rest),
        "Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "flush denormal": bool(torch.tensor([1e-310], dtype=torch.float64) * 1.0 == 0),
        "warning filters": list(warnings.filters),
        "NumPy's errors": np.geterr(),
        "working folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }


def restore(state: Mapping[str, Any]) -> None:
    """Set the global state back."""
    torch.set_rng_state(torch.from_numpy(np.frombuffer(state["torch's generator"], dtype=np.uint8).copy()))
    random.setstate(state["Python's generator"])
    torch.set_default_dtype(state["default dtype"])
    torch.set_num_threads(state["threads"])
    torch.set_grad_enabled(state["grad mode"])
    torch.use_deterministic_algorithms(state["deterministic mode"])
    os.chdir(state["working folder"])


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the global state that differs."""
    return [name for name in before if before[name] != after[name]]


def nans(value: Any, path: str = "result", depth: int = 0) -> Iterator[str]:
    """Yield where a result holds NaN, except in the fields of ``known.NAN``."""
    if depth > 4 or path.rsplit(".", 1)[-1] in NAN:
        return
    if isinstance(value, Tensor):
        ordinary = value.layout == torch.strided and value.device.type == "cpu" and not value.is_nested
        if ordinary and (value.is_floating_point() or value.is_complex()) and bool(torch.isnan(value).any()):
            yield path
    elif isinstance(value, np.ndarray):
        padded = path.rsplit(".", 1)[-1] in PADDED
        if value.dtype.kind in "fc" and bool(np.isnan(value).any()) and not (padded and _padded(value)):
            yield path
    elif isinstance(value, float | complex):
        if value != value:
            yield path
    elif isinstance(value, xr.Dataset):
        for name in value.data_vars:
            yield from nans(value[name].values, f"{path}.{name}", depth + 1)
    elif isinstance(value, xr.DataArray):
        yield from nans(value.values, f"{path}.{value.name or 'values'}", depth + 1)
    elif isinstance(value, nn.Module):
        for name, p in value.named_parameters():
            yield from nans(p.detach(), f"{path}.{name}", depth + 1)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from nans(entry, f"{path}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for entry in value[:50]:
            yield from nans(entry, path, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from nans(getattr(value, field.name, None), f"{path}.{field.name}", depth + 1)


def _padded(value: np.ndarray) -> bool:
    """Return whether NaN only follows the numbers along an axis, and numbers are there."""
    missing = np.isnan(value)
    ends = [bool((np.diff(missing.astype(int), axis=axis) >= 0).all()) for axis in range(value.ndim)]
    return any(ends) and not bool(missing.all())


def refusal(error: BaseException, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the kind and text of the finding that an exception is, or None where it is a proper refusal."""
    text = f"{type(error).__name__}: {str(error).strip() or '(no message)'}".splitlines()[0][:200]
    if isinstance(error, MemoryError):
        return "memory", text
    if not isinstance(error, ValueError | TypeError):
        return "other exception", text
    message = str(error)
    if message.startswith("module") and "module" not in names:
        return "says module", text
    if not names_argument(message, names):
        return "argument not named", text
    return None
