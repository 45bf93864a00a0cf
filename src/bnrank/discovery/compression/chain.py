"""Stretches of a module that run one part after another, as parts in float64."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from bnrank.networks.functional import is_plain_mlp
from bnrank.networks.stack import activation

__all__ = [
    "CONVOLUTIONS",
    "Parts",
    "Stretch",
    "Untouched",
    "convolution",
    "hooked",
    "is_linear",
    "run",
    "stretches",
    "trace",
]

Parts = tuple[nn.Module, ...]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DROPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Untouched:
    """A part of a module that was left as it is, and why."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True)
class Stretch:
    """Parts of a module that run one after another and can be replaced together.

    Attributes
    ----------
    name : str
        Of the submodule that they are; "" for the whole module.
    parts : tuple of torch.nn.Module
        In order, copies in eval mode: Linear, convolutions, and whatever stands between. Dropout and identities are
        left out, and batch normalization is folded into the layer before it.
    folded : int
        How many normalizations were folded.
    """

    name: str
    parts: Parts
    folded: int = 0


def is_linear(part: nn.Module) -> bool:
    """Say whether a part is a Linear or an ordinary convolution (one group), without hooks."""
    plain = type(part) is nn.Linear or (isinstance(part, CONVOLUTIONS) and _ungrouped(part))
    return plain and not hooked(part)


def _ungrouped(part: Any) -> bool:
    return type(part) in CONVOLUTIONS and part.groups == 1


def convolution(part: nn.Module) -> bool:
    """Say whether a part is a convolution."""
    return isinstance(part, CONVOLUTIONS)


def run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return what the parts make of x."""
    if parts and not is_linear(parts[0]):
        x = x.clone()  # it may work in place
    for part in parts:
        x = part(x)
    return x


def trace(parts: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return x and what each part makes of it, one tensor more than there are parts."""
    values = [x]
    for part in parts:
        values.append(part(values[-1] if is_linear(part) else values[-1].clone()))  # some work in place
    return values


def stretches(net: nn.Module, x: Tensor) -> tuple[list[Stretch], list[Untouched]]:
    """Find the stretches of a module, and what is in none.

    A ``nn.Sequential`` (nested ones as one) or an MLP is a stretch, with what is in it and cannot be read as a part
    that stays; a Linear or convolution elsewhere is a stretch of its own. What runs other than once, or has parameters
    that are used elsewhere, stays as it is.

    Parameters
    ----------
    net : torch.nn.Module
        In float64 and eval mode.
    x : Tensor
        Two samples or more, which are run through the module.

    Returns
    -------
    list of Stretch, list of Untouched
        In order of registration.

    Examples
    --------
    >>> import torch
    >>> block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    >>> found, _ = stretches(block.double().eval(), torch.ones(2, 3, dtype=torch.float64))
    >>> [type(part).__name__ for part in found[0].parts]
    ['Linear', 'ReLU', 'Linear']
    """
    uses = Counter(id(p) for m in set(net.modules()) for p in m._parameters.values() if p is not None)
    calls = _calls(net, x)
    found: list[Stretch] = []
    left: list[Untouched] = []
    for name, sub in _candidates(net, ""):
        parts = list(_flat(sub))
        again = any(is_linear(part) and calls.get(id(part), 0) > 1 for part in parts)
        shared = again or any(uses[id(p)] > 1 for p in sub.parameters())
        reason = ""
        if not any(is_linear(part) for part in parts):
            reason = _why_unread(sub)
        elif calls.get(id(sub), 0) != 1:
            times = calls.get(id(sub), 0)
            reason = f"runs {times} times in a pass, expected once" if times else "never runs on x, or not by a call"
        elif shared:
            reason = "has parameters that are used in more than one place"
        if not reason:
            merged, folded = _without_norms([copy.deepcopy(part).eval() for part in parts])
            found.append(Stretch(name, tuple(merged), folded))
        elif any(True for _ in sub.parameters()):
            left.append(Untouched(name, type(sub).__name__, reason))
    return found, left


def _candidates(net: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    if _sequential(net) or is_plain_mlp(net) or is_linear(net):
        yield name, net
        return
    children = [(child, sub) for child, sub in net.named_children() if any(True for _ in sub.parameters())]
    if net._parameters or not children or isinstance(net, nn.MultiheadAttention):
        yield name, net  # owns parameters that nobody can replace
    if not isinstance(net, nn.MultiheadAttention):
        for child, sub in children:
            yield from _candidates(sub, f"{name}.{child}" if name else child)


def _sequential(net: nn.Module) -> bool:
    return isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward and not hooked(net)


def hooked(net: nn.Module) -> bool:
    """Say whether a module's call does something else than its class says."""
    return bool(net._forward_hooks or net._forward_pre_hooks or "forward" in vars(net))


def _flat(net: nn.Module) -> Iterator[nn.Module]:
    if _sequential(net):
        for part in net._modules.values():
            if part is not None:
                yield from _flat(part)
    elif is_plain_mlp(net):
        layers = list(net.layers)
        for layer in layers[:-1]:
            yield layer
            if net.slope != 1:
                yield activation(net.slope)
        yield layers[-1]
    elif not isinstance(net, _DROPPED) or hooked(net):
        yield net


def _without_norms(parts: list[nn.Module]) -> tuple[list[nn.Module], int]:
    """Fold every batch normalization into the layer before it, which does not change the function in eval mode."""
    merged: list[nn.Module] = []
    folded = 0
    for part in parts:
        before: Any = merged[-1] if merged else None
        if type(part) in _NORMS and before is not None and is_linear(before) and cast(Any, part).track_running_stats:
            fuse: Callable[..., nn.Module] = fuse_conv_bn_eval if convolution(before) else fuse_linear_bn_eval
            merged[-1], folded = fuse(before, part), folded + 1
        else:
            merged.append(part)
    for part in merged:
        if isinstance(part, nn.ReLU | nn.LeakyReLU):
            part.inplace = False
    return merged, folded


def _why_unread(net: nn.Module) -> str:
    if type(net) in CONVOLUTIONS and cast(Any, net).groups != 1:
        return "grouped convolution, whose channels do not mix"
    if hooked(net):
        return "has forward hooks, which could change its output"
    return f"{type(net).__name__} is no Linear, convolution or Sequential of them"


def _calls(net: nn.Module, x: Tensor) -> dict[int, int]:
    """Count how often each submodule is called with one tensor and returns one, in a pass over x."""
    counts: Counter[int] = Counter()

    def note(sub: nn.Module, given: Any, out: Any) -> None:
        plain = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(out, Tensor)
        batched = plain and len(given[0]) == len(x) == len(out)
        counts[id(sub)] += 1 if batched else 2

    handles = [sub.register_forward_hook(note) for sub in set(net.modules())]
    try:
        with torch.no_grad():
            net(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    return dict(counts)


def neighbors(parts: Sequence[nn.Module]) -> list[tuple[int, int]]:
    """Return the places of every linear part and of the next."""
    places = [i for i, part in enumerate(parts) if is_linear(part)]
    return list(itertools.pairwise(places))
