"""Whether layers with small weights contract what passes a network, as far as data show it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bnrank._core.sampling import evenly_spaced
from bnrank.networks.capturing import UnobservedError, capture
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Samples
from bnrank.networks.reading import Reading

MAX_SAMPLES = 64  # that are looked at
INTEGERS = 1.0  # the variation of integers, such as tokens: that of vectors with a 1 at their place, at most


def variations(net: nn.Module, x: Samples, reading: Reading, start: int) -> tuple[float, float]:
    """Return how much what enters a layer varies over samples, and the most that anything after it does.

    That is the root mean square of the distance from the mean: of what enters layer ``start``, counted from 1, and the
    largest one of what enters later layers and of the outputs. Where layers have no values, that of x and the outputs.

    Examples
    --------
    >>> import bnrank
    >>> net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> for layer, scale in zip(net, (0.25, 2.0)):
    ...     _ = nn.init.constant_(layer.weight, scale)
    >>> variations(net, torch.tensor([[2.0], [-2.0]]), bnrank.networks.read(net), 1)     # then 0.5 and 1
    (2.0, 1.0)
    """
    some = x[evenly_spaced(len(x), MAX_SAMPLES).to(x.device)]
    if reading.layers:
        try:
            (part,) = capture(net, some, reading, MAX_SAMPLES)
            later = [*part.inputs[start:], part.output]
            return _variation(part.inputs[start - 1]), max(map(_variation, later))
        except UnobservedError:  # only some samples reach a layer
            pass
    with torch.no_grad():
        out = Functional(net)(some)
    return _variation(some) if isinstance(some, Tensor) else INTEGERS, _variation(out)


def _variation(values: Tensor) -> float:
    if not values.is_floating_point():
        return INTEGERS
    flat = values.detach().double().flatten(1)
    return float(torch.linalg.vector_norm(flat - flat.mean(0))) / math.sqrt(len(flat))
