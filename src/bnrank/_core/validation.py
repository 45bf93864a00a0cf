"""Argument validation. Every error names the argument, the value and the expectation."""

import contextlib
import difflib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

T = TypeVar("T")


Data = Tensor | np.ndarray
"""Samples, weights or values as a user has them."""


class RangeError(ValueError, OverflowError):
    """Values of a network outside the range of the computation."""


class DtypeError(TypeError, ValueError):
    """Samples of a dtype on which a network fails."""


def conversion(dtype: torch.dtype) -> str:
    """Return how samples of a dtype become floating-point numbers."""
    if dtype.is_complex:
        return "give real and imaginary parts as separate features, for example torch.view_as_real(x).flatten(1)"
    return "convert it with .float()"


def describe(value: object) -> str:
    """Return a short description of a value: type, shape and dtype of arrays, else its representation."""
    if isinstance(value, Tensor) and value.is_nested:
        return "a nested tensor"
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes no more than 4,300 digits
        return f"an integer of {value.bit_length():,} bits"
    try:
        shown = " ".join(repr(value).split())
    except Exception:  # of a class of the user, or of a very long integer inside
        return f"an object of class {type(value).__name__}"
    return f"{shown if len(shown) <= 80 else shown[:77] + '...'} ({type(value).__name__})"


def expect(condition: object, name: object, got: object, expected: str, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` with the text ``"name: got ..., expected ..."`` unless the condition holds.

    ``got`` is a text, or a value for :func:`describe`; one that a user may have given as a text comes described.
    """
    if not condition:
        raise error(f"{name}: got {got if isinstance(got, str) else describe(got)}, expected {expected}")


def suggest(value: object, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'adam'?"`` for the option nearest to a text, or an empty string."""
    known = {str(option).lower(): str(option) for option in options}
    near = difflib.get_close_matches(value.lower(), list(known), n=1, cutoff=0.5) if isinstance(value, str) else []
    return f"; did you mean {known[near[0]]!r}?" if near else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names joined by commas: the first few, and how many others there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def choice(value: object, name: str, options: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``options``, else raise with the nearest one suggested."""
    if isinstance(value, str) and value in options:
        return value
    expected = ", ".join(repr(option) for option in options)
    raise ValueError(f"{name}: got {describe(value)}, expected one of {expected}{suggest(value, options)}")


def integer(value: object, name: str, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
    """Return ``value`` as an int of at least ``minimum`` and at most ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: got {describe(value)}, expected an integer of at least {minimum}")
    got = str(value) if abs(int(value)) <= 1 << 128 else describe(value)
    expect(value >= minimum, name, got, f"an integer of at least {minimum}")
    expect(value <= maximum, name, got, f"an integer of at most {maximum}")
    return int(value)


def depth(value: object, minimum: int = 1, per_layer: int = 256) -> int:
    """Return a number of layers of which each takes so many numbers, all of which fit into memory."""
    count = integer(value, "depth", minimum)
    allocation(count * per_layer, "depth", count)
    return count


def seed(value: object, name: str = "seed", bits: int = 64) -> int:
    """Return a seed, an integer of at most ``bits`` bits; PyTorch takes 64."""
    return integer(value, name, 0, 2**bits - 1)


def flag(value: object, name: str) -> bool:
    """Return True or False, or 1 or 0, as a bool."""
    known = isinstance(value, bool | np.bool_) or (type(value) is int and value in (0, 1))
    expect(known, name, value, "True or False", TypeError)
    return bool(value)


def text(value: object, name: str) -> str:
    """Return ``value`` if it is a text."""
    expect(isinstance(value, str), name, value, "a text", TypeError)
    return cast(str, value)


def kind(value: object, name: str, expected: type[T], article: str = "a") -> T:
    """Return ``value`` if it is of a class."""
    where = expected.__module__.split(".")[0]
    expect(isinstance(value, expected), name, value, f"{article} {where}.{expected.__name__}", TypeError)
    return cast(T, value)


def allocation(count: int, name: str, got: object, itemsize: int = 8) -> None:
    """Raise ValueError unless ``count`` numbers of ``itemsize`` bytes fit into the memory of this machine."""
    stored = _AT_MOST.get()
    if stored is not None and count > stored:
        raise ValueError(f"{name}: got {describe(got)}, expected a size that fits the numbers that are stored")
    limit, size = memory(), min(count * itemsize, 1 << 1000)
    if size > limit:
        expected = f"a size that fits into the memory of this machine, {limit / 2**30:.0f} GiB"
        raise ValueError(f"{name}: got {describe(got)}, {size / 2**30:.3g} GiB, expected {expected}")


@contextlib.contextmanager
def at_most(count: int) -> Iterator[None]:
    """Let :func:`allocation` refuse more than ``count`` numbers, those that a file can fill."""
    before = _AT_MOST.set(count)
    try:
        yield
    finally:
        _AT_MOST.reset(before)


_AT_MOST: ContextVar[int | None] = ContextVar("at_most", default=None)


def largest_fits(count: int, sizes: Mapping[str, int], itemsize: int = 8) -> None:
    """Raise ValueError, naming the largest of the arguments, unless the numbers fit into memory."""
    name = max(sizes, key=lambda key: sizes[key])
    allocation(count, name, sizes[name], itemsize)


def networks_fit(d_in: int, d_out: int, sizes: Mapping[str, int]) -> None:
    """Raise ValueError unless networks, of a depth, width and number in this order, fit into memory."""
    depth, width, members = sizes.values()
    layer = max(width**2, 1000)  # what a module itself takes counts too
    largest_fits(members * ((d_in + d_out) * (width if depth > 1 else 1) + max(depth - 2, 0) * layer), sizes)


def memory() -> int:
    """Return the bytes of memory of this machine, or of this process where it has less; 64 GiB where none tells."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        machine = 1 << 36
    if resource is None:
        return machine
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    return machine if allowed == resource.RLIM_INFINITY else min(machine, allowed)


def number(value: object, name: str, minimum: float = -math.inf, *, strict: bool = False) -> float:
    """Return ``value`` as a finite float of at least ``minimum`` (more than it when ``strict``)."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: got {describe(value)}, expected a number")
    expected = "a finite number" if minimum == -math.inf else f"a finite number {'>' if strict else '>='} {minimum:g}"
    is_huge = isinstance(value, int) and abs(value) > sys.float_info.max
    result, got = (math.inf, describe(value)) if is_huge else (float(value), f"{value}")
    expect(math.isfinite(result) and (result > minimum if strict else result >= minimum), name, got, expected)
    return result


def optional(check: Callable[..., T], value: object, *arguments: Any, **options: Any) -> T | None:
    """Return ``check(value, ...)``, one of the checks of this module, or None for None."""
    return None if value is None else check(value, *arguments, **options)


def rtol(value: object, name: str = "rtol") -> float:
    """Return a relative tolerance, a number in [0, 1)."""
    result = number(value, name, 0.0)
    expect(result < 1, name, f"{result:g}", "a number in [0, 1)")
    return result


def integers(value: object, name: str, minimum: int = 1) -> list[int]:
    """Return a sequence of integers of at least ``minimum`` as a list."""
    expect(not isinstance(value, set | frozenset), name, value, "a sequence of integers, not a set", TypeError)
    value = sequence(value, name, "a sequence of integers")
    return [integer(entry, f"{name}[{i}]", minimum) for i, entry in enumerate(value)]


def sequence(value: object, name: str, expected: str = "a sequence") -> list[Any]:
    """Return the entries of a sequence, array or other finite iterable; a text or a mapping is none."""
    lists = torch.nn.ParameterList | torch.nn.ModuleList
    whole = isinstance(value, str | bytes | Mapping | torch.nn.Module | type) and not isinstance(value, lists)
    single = isinstance(value, Tensor | np.ndarray) and value.ndim == 0
    if whole or single or not isinstance(value, Iterable):
        raise TypeError(f"{name}: got {describe(value)}, expected {expected}")
    return list(dense(value, name) if isinstance(value, Tensor) else value)


def dtype(value: object, name: str = "dtype") -> torch.dtype:
    """Return a floating-point dtype of at least 16 bits."""
    floating = isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize >= 2
    expect(floating, name, value, "a floating-point torch.dtype, such as torch.float64", TypeError)
    return cast(torch.dtype, value)


def slope(value: object, name: str = "slope", *, linear: bool = False) -> float:
    """Return the slope of a leaky ReLU, in the open interval (-1, 1), or 1 (no activation) where ``linear``."""
    result = number(value, name)
    expected = "a number in the open interval (-1, 1); 0 is ReLU" + ", 1 is no activation" * linear
    expect(-1 < result < 1 or (linear and result == 1), name, f"{result:g}", expected)
    return result


def init(value: object, name: str = "init") -> str | float:
    """Return ``value`` if it is "he" or a standard deviation of at least 0."""
    return choice(value, name, ["he"]) if isinstance(value, str) else number(value, name, 0.0)


def per_member(value: Any, name: str, members: int, minimum: float = 0.0, *, strict: bool = False) -> list[float]:
    """Return one number per member: a single number is repeated, a sequence must have one entry per member."""
    if isinstance(value, Tensor | np.ndarray):
        value = numbers(value, name, f"one number or one per member ({members})").tolist()
    if isinstance(value, list | tuple):
        expect(len(value) == members, name, f"{len(value)} values", f"one number or one per member ({members})")
        return [number(v, f"{name}[{i}]", minimum, strict=strict) for i, v in enumerate(value)]
    return [number(value, name, minimum, strict=strict)] * members


def real(value: object, name: str, expected: str = "real numbers") -> Tensor:
    """Return finite real numbers as a tensor: floating point as given, integers as float64.

    Raises
    ------
    TypeError, ValueError
        If it is not a tensor, array or nested sequence of real numbers, or an entry is NaN or infinite.

    Examples
    --------
    >>> real([[1, 2]], "a").dtype
    torch.float64
    """
    return finite(numbers(value, name, expected), name)


def numbers(value: object, name: str, expected: str = "real numbers") -> Tensor:
    """Return real numbers, NaN and infinite ones among them, as :func:`real` does."""
    tensor = dense(value if isinstance(value, Tensor) else _from_sequence(value, name, expected), name).detach()
    expect(not tensor.is_complex() and tensor.dtype != torch.bool, name, value, expected, TypeError)
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def _from_sequence(value: object, name: str, expected: str) -> Tensor:
    """Return a copy of an array or a nested sequence as a tensor."""
    expect(not np.ma.is_masked(value), name, "a masked array", "one without missing values", TypeError)
    try:
        return from_array(np.asarray(value), name).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: got {describe(value)}, expected {expected}") from error


def dense(value: Tensor, name: str) -> Tensor:
    """Return a tensor of ordinary numbers in memory; no sparse, nested, quantized, meta or 8-bit floating-point one.

    Examples
    --------
    >>> dense(torch.eye(2).to_sparse(), "x")
    Traceback (most recent call last):
        ...
    TypeError: x: got a sparse tensor, expected a dense one; convert it with .to_dense()
    """
    narrow = value.is_floating_point() and value.element_size() < 2
    if narrow or value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise TypeError(f"{name}: got {_unusual(value)}")
    return value.resolve_neg() if value.is_neg() else value


def _unusual(value: Tensor) -> str:
    """Return what a tensor is that :func:`dense` refuses, and what is expected."""
    if value.is_nested:
        return "a nested tensor, expected a dense one; convert it with .to_padded_tensor(0)"
    if value.layout != torch.strided:
        return "a sparse tensor, expected a dense one; convert it with .to_dense()"
    if value.is_quantized:
        return "a quantized tensor, expected a dense one; convert it with .dequantize()"
    if value.is_meta:
        return "a tensor on the meta device, expected one with values"
    return f"dtype {value.dtype}, expected at least 16 bits; convert it with .float()"


def from_array(value: np.ndarray, name: str, expected: str = "numbers") -> Tensor:
    """Return an array of numbers as a tensor, of the same memory where possible."""
    numbers = value.dtype.kind in "fiubc" and value.dtype.itemsize // (2 if value.dtype.kind == "c" else 1) <= 8
    expect(numbers, name, value, f"{expected} of at most 64 bits", TypeError)
    expect(not np.ma.is_masked(value), name, "a masked array", "one without missing values", TypeError)
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    value = np.ascontiguousarray(value) if value.ndim else np.asarray(value)
    fits = value.flags.writeable and min(value.strides, default=0) >= 0  # a single row can be contiguous and negative
    return torch.from_numpy(value if fits else value.copy())


def finite(value: Tensor, name: str) -> Tensor:
    """Return a tensor with no NaN or infinite entries."""
    expect(bool(torch.isfinite(value).all()), name, "NaN or infinite entries", "finite ones")
    return value


def array(value: object, name: str, shape: str, *ndim: int) -> Tensor:
    """Return a tensor or array of finite floating-point numbers, of one of the numbers of dimensions, as a tensor."""
    value = dense(value, name) if isinstance(value, Tensor) else value
    floating = isinstance(value, np.ndarray) or (isinstance(value, Tensor) and value.is_floating_point())
    expect(floating, name, describe(value), f"floating-point numbers of shape {shape}", TypeError)
    tensor = real(value, name, f"floating-point numbers of shape {shape}")
    expect(tensor.ndim in ndim and 0 not in tensor.shape, name, f"shape {tuple(tensor.shape)}", shape)
    return tensor


def classes(value: Tensor | np.ndarray, name: str, count: int | None = None) -> Tensor:
    """Return class indices, (N,) integers from 0 to ``count`` - 1 (of any size by default), as int64.

    Examples
    --------
    >>> classes(np.array([0, 2]), "y", 3)
    tensor([0, 2])
    """
    try:
        labels = from_array(value, name) if isinstance(value, np.ndarray) else torch.as_tensor(value).detach()
        labels = dense(labels, name)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: got {describe(value)}, expected class indices: integers, shape (N,)") from error
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name}: got {describe(value)}, expected class indices: integers, shape (N,)")
    expect(len(labels), name, "an empty array", "class indices: integers, shape (N,)")
    labels = labels.long()
    first, last = int(labels.min()), int(labels.max())
    inside = first >= 0 and (count is None or last < count)
    expected = "class indices from 0" + ("" if count is None else f" to {count - 1}")
    expect(inside, name, f"class indices from {first} to {last}", expected)
    return labels


def targets(value: Any, d_out: int) -> Any:
    """Return y as given; real targets (N,) as (N, 1) where a network has one output.

    Examples
    --------
    >>> targets(torch.zeros(3), 1).shape, targets(torch.zeros(3, dtype=torch.int64), 1).shape
    (torch.Size([3, 1]), torch.Size([3]))
    """
    alone = d_out == 1 and isinstance(value, Tensor) and value.ndim == 1 and value.is_floating_point()
    return value.unsqueeze(1) if alone else value


def samples(value: object, name: str, *, features: int | None = None, minimum: int = 1, ndim: int | None = 2) -> Tensor:
    """Return data as a floating-point tensor, one sample per row.

    Parameters
    ----------
    value : Tensor or ndarray
        Shape (N, features), or (N, ...) when ``ndim`` is None.
    name : str
        The argument's name, for errors.
    features : int, optional
        Expected number of columns.
    minimum : int
        Minimum number of samples.
    ndim : int or None
        Expected number of dimensions; None allows any from 2 up.

    Raises
    ------
    TypeError
        If it is not a floating-point tensor or array.
    ValueError
        If it is empty, has too few samples, the wrong shape, or a NaN or infinite entry.
    """
    value = from_array(value, name, "floating-point numbers") if isinstance(value, np.ndarray) else value
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: got {describe(value)}, expected a torch.Tensor or numpy.ndarray")
    value = dense(value, name)
    if not value.is_floating_point():
        raise TypeError(f"{name}: got dtype {value.dtype}, expected floating point; {conversion(value.dtype)}")
    got = f"shape {tuple(value.shape)}"
    expected = "(N, ...)" if ndim is None else f"(N, {'features' if features is None else features})"
    expect(value.ndim >= 2 if ndim is None else value.ndim == ndim, name, got, f"{expected}, one sample per row")
    expect(value.numel(), name, f"an empty array of {got}", expected)
    expect(features is None or value.shape[-1] == features, name, got, expected)
    expect(value.shape[0] >= minimum, name, f"{value.shape[0]} sample(s)", f"at least {minimum}")
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).flatten(1).any(1).sum())
        raise ValueError(f"{name}: got NaN or infinite entries in {bad} of {value.shape[0]} samples, expected finite")
    return value
