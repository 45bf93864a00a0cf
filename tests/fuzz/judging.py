"""The verdict on one call: a right answer, a refusal that names the argument, or a finding."""

import dataclasses
import dis
import os
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import threadpoolctl
import torch
import xarray as xr
from torch import Tensor, nn

from .known import DRAWN, NAN, PADDED

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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: fingerprint(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}
    if type(value).__module__.startswith("bnrank"):
        public = {name: entry for name, entry in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
        return {name: fingerprint(entry, depth + 1) for name, entry in public.items()}
    return type(value).__name__


def owned(owner: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the fingerprints of an object's attributes: of all, or of those that it had before a call.

    Of private ones, only arrays and networks: others are caches and counters.
    """
    here = vars(owner) if hasattr(owner, "__dict__") else {}
    seen = [n for n, v in here.items() if not n.startswith("_") or isinstance(v, Tensor | np.ndarray | nn.Module)]
    made = {name: fingerprint(here.get(name)) for name in (seen if names is None else names) if name}
    return made | ({"": _module(owner)} if isinstance(owner, nn.Module) else {})


def _tensor(value: Tensor) -> Any:
    about = (str(value.dtype), str(value.layout), str(value.device), value.requires_grad, value.is_leaf)
    if value.is_nested or value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
        return about
    grad = None if not value.is_leaf or value.grad is None else _bits(value.grad)
    return (*about, tuple(value.shape), value.stride(), _bits(value), grad)


def _bits(value: Tensor) -> bytes:
    raw = (
        value.detach().to_dense().resolve_neg().resolve_conj().clone(memory_format=torch.contiguous_format).reshape(-1)
    )
    return raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""


def _module(net: nn.Module) -> Any:
    try:
        parts = [
            (name, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for name, m in net.named_modules()
        ]
        parameters = [(name, id(p), type(p).__name__, _tensor(p)) for name, p in net.named_parameters()]
        state = {k: _tensor(v) for k, v in net.named_buffers()}
        plain = {
            (name, key): repr(value)
            for name, m in net.named_modules()
            for key, value in vars(m).items()
            if isinstance(value, str | int | float | tuple) and key != "_forward_hooks"
        }
    except Exception:  # a module that cannot be read, such as a lazy one
        return type(net).__name__
    return (parts, parameters, state, plain)


_POOLS = threadpoolctl.ThreadpoolController()


def surroundings() -> dict[str, Any]:
    """Return the global state that a call must leave as it is."""
    name, keys, position, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's generator": (name, np.asarray(keys).tobytes(), position, *rest),
        "Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "threads of BLAS": [pool["num_threads"] for pool in _POOLS.info() if pool["user_api"] == "blas"],
        "matplotlib's settings": dict(matplotlib.rcParams),
        "import path": list(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "NumPy's printing": np.get_printoptions(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "flush denormal": bool(torch.tensor([1e-310], dtype=torch.float64) * 1.0 == 0),
        "warning filters": filters_of_others(),
        "NumPy's errors": np.geterr(),
        "working folder": str(Path.cwd()),
        "environment": {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"},  # torch's, at first use
    }


def filters_of_others() -> list[Any]:
    """Return the filters of warnings but that of xarray for its own message, which it adds when it reads a file."""
    return [one for one in warnings.filters if "decode_timedelta" not in str(one[1])]


def restore(state: Mapping[str, Any]) -> None:
    """Set the global state back."""
    torch.set_rng_state(torch.from_numpy(np.frombuffer(state["torch's generator"], dtype=np.uint8).copy()))
    random.setstate(state["Python's generator"])
    torch.set_default_dtype(state["default dtype"])
    torch.set_num_threads(state["threads"])
    torch.set_grad_enabled(state["grad mode"])
    torch.use_deterministic_algorithms(state["deterministic mode"])
    torch.set_flush_denormal(state["flush denormal"])
    kind, keys, *rest = state["NumPy's generator"]
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002
    np.seterr(**state["NumPy's errors"])
    np.set_printoptions(**{k: v for k, v in state["NumPy's printing"].items() if k != "override_repr"})
    sys.setrecursionlimit(state["recursion limit"])
    sys.path[:] = state["import path"]
    os.environ.clear()
    os.environ.update(state["environment"])
    for pool, number in zip(_POOLS.select(user_api="blas").lib_controllers, state["threads of BLAS"], strict=True):
        pool.set_num_threads(number)
    dict.update(matplotlib.rcParams, state["matplotlib's settings"])
    os.chdir(state["working folder"])


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the global state that differs."""
    return [name for name in before if before[name] != after[name]]


def leaves(value: Any, path: str = "result", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, arrays and texts of a result, each with its path of fields; classes are part of the path."""
    kind = type(value).__name__
    inner: dict[str, Any] = {}
    if depth > 5 or value is None:
        return
    if isinstance(value, Tensor):
        if (
            value.layout == torch.strided
            and value.device.type != "meta"
            and not (value.is_nested or value.is_quantized)
        ):
            detached = value.detach().cpu().resolve_neg().resolve_conj()
            yield path, (detached.float() if detached.dtype in _SMALL else detached).numpy()
    elif isinstance(value, np.ndarray | np.generic | int | float | complex | str):
        yield path, np.asarray(value)
    elif isinstance(value, xr.Dataset):
        inner = {f"{kind}.{name}": value[name].values for name in value.data_vars}
    elif isinstance(value, xr.DataArray):
        inner = {f"{kind}.{value.name or 'values'}": value.values}
    elif isinstance(value, pd.DataFrame):
        inner = {f"{kind}.{name}": value[name].to_numpy() for name in value}
    elif isinstance(value, pd.Series | pd.Index):
        inner = {f"{kind}.{value.name}": value.to_numpy()}
    elif isinstance(value, nn.Module):
        inner = {f"{kind}.{name}": parameter for name, parameter in value.state_dict().items()}
    elif isinstance(value, Mapping):
        inner = {str(key): entry for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        inner = {f"{i}": entry for i, entry in enumerate(value)}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {f"{kind}.{f.name}": getattr(value, f.name, None) for f in dataclasses.fields(value)}
    elif type(value).__module__.startswith("bnrank") and hasattr(value, "__dict__"):
        inner = {f"{kind}.{name}": entry for name, entry in vars(value).items() if not name.startswith("_")}
    for name, entry in inner.items():
        yield from leaves(entry, f"{path}.{name}", depth + 1)


_SMALL = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


def nans(value: Any, start: str = "result") -> Iterator[str]:
    """Yield where a result holds NaN, except in the fields of ``known.NAN``."""
    skipped = str(value.coords.get("skipped_name", "")) if isinstance(value, xr.Dataset) else ""
    for path, leaf in leaves(value, start):
        last = path.rsplit(".", 1)[-1]
        named = ".".join(path.split(".")[-2:])
        if any(f".{field}." in f".{path}." for field in NAN) or leaf.dtype.kind not in "fcO":
            continue
        if "jacobian" in skipped and last in ("jacobian_singular_values", "log_pseudo_determinant", "ntk_trace"):
            continue  # listed as not measured
        missing = leaf != leaf  # NaN only, in arrays of objects as well
        if bool(np.any(missing)) and not (named in PADDED and _padded(np.asarray(missing))):
            yield re.sub(r"\.\d+(?=\.|$)", "", path)


def explained(caught: Sequence[warnings.WarningMessage]) -> bool:
    """Whether one of the warnings speaks of numbers that are not finite or not defined."""
    texts = [str(w.message) for w in caught if issubclass(w.category, UserWarning | RuntimeWarning)]
    return any(
        re.search(r"(?i)\bnan\b|finite|invalid value|overflow|diverg|\bzero\b|undefined|empty", t) for t in texts
    )


def different(valid: Any, result: Any) -> list[str]:
    """Return where two results differ by more than rounding in float32, except in the fields of ``known.DRAWN``."""
    first, second = dict(leaves(valid)), dict(leaves(result))
    places = [path for path in first.keys() ^ second.keys()]
    for path in first.keys() & second.keys():
        a, b = first[path], second[path]
        if a.dtype.kind not in "fc" or b.dtype.kind not in "fc":
            same = a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))
        else:
            size = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
            same = a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-3, atol=1e-4 * size + 1e-9, equal_nan=True))
        if not same:
            places.append(path)
    return sorted(place for place in places if not any(f".{field}." in f"{place}." for field in DRAWN))


def _padded(missing: np.ndarray) -> bool:
    """Return whether NaN only follows the numbers of each row, and every row has one."""
    if not missing.ndim:
        return False
    rows = missing.reshape(-1, missing.shape[-1]).astype(int)
    return bool((np.diff(rows, axis=1) >= 0).all()) and not bool(rows[:, 0].any())


def refusal(error: BaseException, names: tuple[str, ...], wrong: str = "") -> tuple[str, str] | None:
    """Return the kind and text of the finding that an exception is, or None where it is a proper refusal.

    ``wrong`` is the one argument of a wrong type, which the message must mention.
    """
    text = f"{type(error).__name__}: {str(error).strip() or '(no message)'}".splitlines()[0][:200]
    if isinstance(error, MemoryError):
        return "memory", text
    if not isinstance(error, ValueError | TypeError):
        return "other exception", text
    message = str(error)
    if not raised_by_hand(error):
        return "raw error", text
    if message.startswith("module") and "module" not in names:
        return "says module", text
    if not names_argument(message, names):
        return "argument not named", text
    if wrong and not names_argument(message, (wrong,)):
        return "names another argument", text
    return None


def raised_by_hand(error: BaseException) -> bool:
    """Return whether a ``raise`` of this library, or of scikit-learn in it, made the error; not a call of PyTorch."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code
    package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    own = package in ("bnrank", "sklearn", "fuzz", "tests", "test_fuzz")
    return own and dis.opname[code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
