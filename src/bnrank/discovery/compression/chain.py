"""Segments of a module as sequences of parts in float64."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from bnrank.networks import reasons
from bnrank.networks.functional import hooked
from bnrank.networks.reading import read
from bnrank.networks.reasons import Skipped
from bnrank.networks.segments import Segment

Parts = tuple[nn.Module, ...]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def is_linear(part: nn.Module) -> bool:
    """Return whether a part is a Linear or an ordinary convolution (one group), without hooks."""
    return (type(part) is nn.Linear or _ungrouped(part)) and not hooked(part)


def _ungrouped(part: Any) -> bool:
    return type(part) in CONVOLUTIONS and part.groups == 1


def convolution(part: nn.Module) -> bool:
    """Return whether a part is a convolution."""
    return isinstance(part, CONVOLUTIONS)


def reach_of(part: Any) -> list[int]:
    """Return the extent of a convolution's kernel less 1, for each axis."""
    return [d * (k - 1) for d, k in zip(part.dilation, part.kernel_size, strict=True)]


def pads_of(part: Any) -> list[int]:
    """Return the padding of a convolution, both ends together, for each axis."""
    if part.padding == "same":
        return reach_of(part)
    return [0] * len(part.kernel_size) if part.padding == "valid" else [2 * p for p in part.padding]


def run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return the output of the parts for x."""
    if parts and not is_linear(parts[0]):
        x = x.clone()  # it may work in place
    for part in parts:
        x = part(x)
    return x


def trace(parts: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return x and the output of each part, one tensor more than there are parts."""
    values = [x]
    for part in parts:
        values.append(part(values[-1] if is_linear(part) else values[-1].clone()))  # some work in place
    return values


def segments(net: nn.Module, x: Tensor) -> tuple[list[Segment], list[Skipped]]:
    """Return the segments of a module that can be made smaller, and everything else that owns parameters.

    A ``nn.Sequential`` (nested ones as one) or an MLP is a segment; a Linear or convolution elsewhere is a segment of
    its own. Parts of a segment that cannot be made smaller are listed, too.

    Parameters
    ----------
    net : torch.nn.Module
        In float64 and eval mode.
    x : Tensor
        At least two samples, which are run through the module.

    Returns
    -------
    list of Segment, list of Skipped
        In order of registration. Parts are copies in eval mode, batch normalization is folded into the layer before.

    Examples
    --------
    >>> import torch
    >>> block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    >>> found, _ = segments(block.double().eval(), torch.ones(2, 3, dtype=torch.float64))
    >>> [type(part).__name__ for part in found[0].parts]
    ['Linear', 'ReLU', 'Linear']
    """
    reading = read(net, x)
    found = [_folded(segment) for segment in reading.segments if any(map(is_linear, segment.parts))]
    left = [
        _skipped(name, part)
        for segment in found
        for name, part in zip(segment.names, segment.parts, strict=True)
        if not is_linear(part) and any(True for _ in part.parameters())
    ]
    inside = [name for segment in reading.segments for name in segment.names if any(map(is_linear, segment.parts))]
    others = [*reading.skipped, *(_skipped(layer.name, layer.module) for layer in reading.layers)]
    left += [other for other in others if not any(other.name == n or other.name.startswith(f"{n}.") for n in inside)]
    return found, left


def _folded(segment: Segment) -> Segment:
    """Return a segment of copies with every batch normalization folded into the layer before it."""
    names: list[str] = []
    parts: list[nn.Module] = []
    for name, original in zip(segment.names, segment.parts, strict=True):
        part = copy.deepcopy(original).eval()
        if type(part) in _NORMS and parts and is_linear(parts[-1]) and part.track_running_stats:
            fuse: Any = fuse_conv_bn_eval if convolution(parts[-1]) else fuse_linear_bn_eval
            parts[-1] = fuse(parts[-1], part)
            continue
        if isinstance(part, nn.ReLU | nn.LeakyReLU):
            part.inplace = False
        names.append(name)
        parts.append(part)
    return Segment(segment.name, tuple(parts), tuple(names), len(segment.parts) - len(parts))


def _skipped(name: str, part: nn.Module) -> Skipped:
    reason = reasons.of_type(part)
    if reason is None and type(part) in CONVOLUTIONS and not _ungrouped(part):
        reason = "grouped convolution, whose channels do not mix"
    if reason is None and hooked(part):
        reason = "has forward hooks, which could change its output"
    other = f"{type(part).__name__} is not a Linear, a convolution or a Sequential of them"
    return Skipped.part(name, part, reason or other)


def neighbors(parts: Sequence[nn.Module]) -> list[tuple[int, int]]:
    """Return the indices of every linear part and of the next."""
    places = [i for i, part in enumerate(parts) if is_linear(part)]
    return list(itertools.pairwise(places))
