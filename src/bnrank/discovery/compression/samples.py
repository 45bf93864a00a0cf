"""The samples of a compression: checked, split, and joined by interpolated points."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.compression.chain import CONVOLUTIONS, trace
from bnrank.networks import Segment
from bnrank.networks.functional import Functional
from bnrank.networks.mlp import MLP

__all__ = [
    "ENRICH",
    "LEAST",
    "Parted",
    "affordable",
    "array",
    "check_classes",
    "check_spread",
    "classes",
    "enriched",
    "entering",
    "outputs",
    "samples",
    "split",
]

LEAST = 8  # samples: fewer cannot be split in three, and say little of the change


def array(value: Any, name: str) -> Any:
    """Return a DataFrame or Series of numbers, or a read-only ndarray, as an ndarray, and anything else as it is.

    Raises
    ------
    TypeError
        If a column is no numbers.

    Examples
    --------
    >>> array(pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]}), "x").tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    if not isinstance(value, pd.DataFrame | pd.Series):
        read_only = isinstance(value, np.ndarray) and not value.flags.writeable  # as columns of a DataFrame are
        return value.copy() if read_only else value
    columns = value.to_frame() if isinstance(value, pd.Series) else value
    bad = [
        f"{label} ({kind})"
        for label, kind in columns.dtypes.items()
        if not pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)
    ]
    if bad:
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise TypeError(f"{name}: got a {type(value).__name__} with columns that are no numbers: {shown}")
    if bool(columns.isna().any(axis=None)):
        raise ValueError(f"{name}: got a {type(value).__name__} with missing entries, expected numbers")
    whole = all(pd.api.types.is_integer_dtype(kind) for kind in columns.dtypes)
    return np.array(value.to_numpy(dtype=np.int64 if whole else np.float64))


def samples(net: nn.Module, value: Any, name: str, minimum: int = 1) -> Tensor:
    """Return samples for a module: floating point (N, ...), finite, or integers for one that embeds them."""
    value = array(value, name)
    features = net.widths[0] if isinstance(net, MLP) else None
    if features is None and isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        value = torch.from_numpy(value)
    if features is None and isinstance(value, Tensor) and _whole(value):
        if value.ndim == 0 or value.numel() == 0 or value.shape[0] < minimum:
            shape = tuple(value.shape)
            raise ValueError(f"{name}: got shape {shape}, expected (N, ...) with at least {minimum} sample(s)")
        return value
    return validation.samples(value, name, features=features, ndim=None if features is None else 2, minimum=minimum)


def _whole(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def classes(y: Any, count: int, name: str) -> Tensor:
    """Return classes, integers from 0, one per sample."""
    y = array(y, name)
    if not isinstance(y, Tensor | np.ndarray):
        raise TypeError(f"{name}: got {validation.describe(y)}, expected a Tensor or ndarray of integers")
    if isinstance(y, np.ndarray) and y.dtype.kind not in "iufbc":
        raise TypeError(f"{name}: got dtype {y.dtype}, expected integers from 0, the places of the outputs")
    labels = torch.as_tensor(y).detach().cpu()
    if not _whole(labels):
        raise TypeError(f"{name}: got dtype {labels.dtype}, expected integers from 0, the places of the outputs")
    if labels.shape != (count,):
        raise ValueError(f"{name}: got shape {tuple(labels.shape)}, expected ({count},), one class per sample")
    if count and int(labels.min()) < 0:
        raise ValueError(f"{name}: got the class {int(labels.min())}, expected integers from 0")
    return labels


def check_classes(labels: Tensor | None, found: Tensor, name: str) -> None:
    """Raise ValueError if a class is the place of no output."""
    if labels is not None and len(labels) and int(labels.max()) >= found.shape[1]:
        top, count = int(labels.max()), found.shape[1]
        raise ValueError(f"{name}: got the class {top}, expected less than the number of outputs, {count}")


def outputs(function: Functional, x: Tensor, name: str, chunk: int = 1024) -> Tensor:
    """Return what a module gives on x, (N, outputs), in float64.

    Raises
    ------
    TypeError, ValueError
        If it fails: with the argument's name, what came, and the layer that expected something else.
    """
    with torch.no_grad():
        try:
            return torch.cat([function(some).flatten(1).cpu() for some in x.split(chunk)])
        except ValueError as error:
            if error.__cause__ is None:  # it runs, and what it returns is unfit
                raise
            raise _explained(function.module, x, name, error.__cause__) from error


def _explained(net: nn.Module, x: Tensor, name: str, cause: BaseException) -> Exception:
    """Return the error that says why a module fails on samples."""
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
    function = Functional(net, own)
    kind = f"dtype {x.dtype}, on which the module fails"
    if not x.is_floating_point() and _runs(function, x.to(own)):
        return TypeError(f"{name}: got {kind}, expected floating point; convert it with .float()")
    if x.is_floating_point() and _runs(function, torch.zeros_like(x, dtype=torch.long)) and not _runs(function, x):
        return TypeError(f"{name}: got {kind}, expected integers; convert it with .long()")
    if _runs(function, x):
        return ValueError(
            f"net: it runs on {name} in {own}, but not in torch.float64, in which everything is computed: {cause}"
        )
    came = f"got samples of shape {tuple(x.shape[1:])} and dtype {x.dtype}"
    return ValueError(f"{name}: the module fails on it: {came}{_refusing(function, x)}: {cause}")


def _runs(function: Functional, x: Tensor) -> bool:
    try:
        function(x[:2])
    except ValueError as error:
        return error.__cause__ is None
    return True


def _refusing(function: Functional, x: Tensor) -> str:
    """Say which layer cannot read what reaches it, where it is a linear one or a convolution."""
    entered: list[tuple[str, Any, tuple[int, ...]]] = []
    handles = []
    for name, sub in function.module.named_modules():
        if isinstance(sub, (nn.Linear, *CONVOLUTIONS)):
            handles.append(
                sub.register_forward_pre_hook(lambda sub, given, name=name: entered.append((name, sub, given[0].shape)))
            )
            handles.append(sub.register_forward_hook(lambda *_: entered.clear()))
    try:
        _runs(function, x)
    finally:
        for handle in handles:
            handle.remove()
    if not entered:
        return ""
    name, sub, shape = entered[-1]
    count, what = (sub.in_features, "feature") if isinstance(sub, nn.Linear) else (sub.in_channels, "channel")
    wanted = f"{count} {what}{'s' if count != 1 else ''}"
    layer = f"layer {name}" if name else "the layer"
    return f", but {layer} ({type(sub).__name__}) expects {wanted} and is given {tuple(shape[1:])}"


def check_spread(net: nn.Module, x: Tensor, kept: Tensor, found: tuple[Tensor, Tensor]) -> None:
    """Refuse samples on which the outputs do not vary, as there is no spread that a change could be relative to.

    A module that is constant on samples that differ is fine: it is replaced by the constant.

    Parameters
    ----------
    net : torch.nn.Module
        Its precision says what is round-off.
    x, kept : Tensor
        All samples, and those held out.
    found : tuple of Tensor
        The outputs on both, (N, outputs).
    """
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64)
    if _equal(x):
        raise ValueError(f"x: got {len(x)} equal samples, expected different ones: the spread of the outputs is 0")
    if not _varies(found[1], own) and (_varies(found[0], own) or _equal(kept)):
        raise ValueError(
            f"held_out: the spread of the outputs on the {len(kept)} samples held out is 0, "
            "expected samples on which they vary"
        )


def _equal(x: Tensor) -> bool:
    return bool((x == x[:1]).all())


def _varies(found: Tensor, dtype: torch.dtype) -> bool:
    return float((found - found.mean(0)).norm()) > 32 * torch.finfo(dtype).eps * float(found.norm())


ENTRIES = 2e7  # of all values of a segment over the deciding samples: 160 MB
ENRICH = 1000  # samples that fits are made on; fewer are joined by points on lines through neighbors
REACH = 1.0  # how far on these lines, beyond either neighbor, in units of their distance
NEIGHBORS = 5


class Parted(NamedTuple):
    """Samples in two groups, and their classes where they are known.

    Attributes
    ----------
    x, y : Tensor
        All samples given, and their classes or None.
    deciding : Tensor
        In random order.
    kept : Tensor
        Held out: they decide nothing.
    y_kept : Tensor or None
        Their classes.
    """

    x: Tensor
    y: Tensor | None
    deciding: Tensor
    kept: Tensor
    y_kept: Tensor | None


def split(net: nn.Module, x: Tensor, y: Any, held_out: Any, seed: int) -> Parted:
    """Return the samples that decide and those that are held out, a share of x or others."""
    y = None if y is None else classes(y, len(x), "y")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    y_kept = None
    if isinstance(held_out, tuple):
        if len(held_out) != 2 or y is None:
            raise ValueError("held_out: got a tuple, expected samples, or samples and classes where y is given, too")
        kept = samples(net, held_out[0], "held_out[0]", LEAST)
        held_out, y_kept = kept, classes(held_out[1], len(kept), "held_out[1]")
    held_out = array(held_out, "held_out")
    if isinstance(held_out, Tensor | np.ndarray):
        kept = samples(net, held_out, "held_out", LEAST)
        if kept.shape[1:] != x.shape[1:]:
            raise ValueError(
                f"held_out: got samples of shape {tuple(kept.shape[1:])}, expected {tuple(x.shape[1:])} as in x"
            )
        if kept.is_floating_point() != x.is_floating_point():
            raise TypeError(f"held_out: got dtype {kept.dtype}, expected samples like x, of dtype {x.dtype}")
        return Parted(x, y, x[order], kept, y_kept)
    share = validation.number(held_out, "held_out", 0.0, strict=True)
    if share >= 1:
        raise ValueError(f"held_out: got {share:g}, expected samples or a share of x in (0, 1)")
    count = min(max(2, round(share * len(x))), len(x) - 4)
    return Parted(x, y, x[order[count:]], x[order[:count]], None if y is None else y[order[:count]])


def enriched(x: Tensor, fitted: int, least: int, seed: int) -> Tensor:
    """Put samples between neighbors in front of the fitted ones, until there are so many."""
    count = least - fitted
    if count <= 0 or not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(seed)
    own = x[:fitted].flatten(1)
    near = torch.cdist(own, own).topk(min(NEIGHBORS + 1, fitted), largest=False).indices[:, 1:]
    i = torch.randint(0, fitted, (count,), generator=generator)
    j = near[i, torch.randint(0, near.shape[1], (count,), generator=generator)]
    u = torch.rand((count, 1), generator=generator, dtype=torch.float64) * (1 + 2 * REACH) - REACH
    between = own[i] + u.to(own) * (own[j] - own[i])
    return torch.cat([between.reshape(count, *x.shape[1:]), x])


def affordable(net: nn.Module, found: list[Segment], x: Tensor, most: int) -> int:
    """Return how many samples may decide: at most so many, and no more values of a segment than memory is spent on."""
    entries = 1
    with torch.no_grad():
        for segment in found:
            values = trace(segment.parts, entering(net, segment.name, x[:2]))
            entries = max(entries, sum(value[0].numel() for value in values))
    return min(most, max(64, int(ENTRIES / entries)))


def entering(net: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what enters a submodule, "" for the module itself, on x."""
    if not name:
        return x
    seen: list[Tensor] = []
    handle = net.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    try:
        net(x.clone())
    finally:
        handle.remove()
    return seen[0]
