"""What it takes to build a network again, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from bnrank.networks.circular import CircularConvolutional
from bnrank.networks.convolutional import Convolutional, LinearConvolutional
from bnrank.networks.mlp import MLP, make
from bnrank.networks.residual import ResNetDiagonal, ResNetFree, ResNetIdentity
from bnrank.networks.stack import Stack

__all__ = ["blueprint", "build"]

KINDS: dict[str, Callable[..., Stack]] = {
    kind.__name__: kind
    for kind in (
        ResNetIdentity,
        ResNetDiagonal,
        ResNetFree,
        Convolutional,
        LinearConvolutional,
        CircularConvolutional,
    )
}


def blueprint(net: nn.Module) -> dict[str, Any] | None:
    """Return the arguments a network is built from, with its ``kind`` where it is no MLP.

    None of any other module, and of a network parts of which were changed after it was built.
    """
    if isinstance(net, MLP):
        return {"widths": net.widths, "slope": net.slope, "bias": net.bias, "init": net.init, "seed": net.seed}
    if type(net).__name__ in KINDS and type(net) is KINDS[type(net).__name__] and isinstance(net, Stack):
        plan = {"kind": type(net).__name__, **net.settings, "init": net.init, "seed": net.seed}
        return plan if _parts(net) == _parts(build(plan)) else None
    return None


def _parts(net: nn.Module) -> list[tuple[str, str, str, str]]:
    """Return what of a network its arguments decide: name, class, settings and shapes of every part."""
    return [
        (name, type(part).__name__, part.extra_repr(), str([tuple(p.shape) for p in part.parameters(recurse=False)]))
        for name, part in net.named_modules()
    ]


def build(plan: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> MLP | Stack:
    """Return the network of a blueprint, drawn from its seed.

    Raises
    ------
    TypeError, ValueError, KeyError
        If the blueprint is no such thing.

    Examples
    --------
    >>> from bnrank.networks import ResNetFree
    >>> build(blueprint(ResNetFree(3, width=4, seed=7))).seed
    7
    """
    arguments = dict(plan)
    kind = arguments.pop("kind", None)
    return make(**arguments, dtype=dtype) if kind is None else KINDS[kind](**arguments, dtype=dtype)
