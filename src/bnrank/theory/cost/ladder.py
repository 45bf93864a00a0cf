"""Networks of small norm that interpolate the same data at several depths."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import read_chain
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.constructions import deepen
from bnrank.theory.cost.solving import Solution, shorten, solve


def solve_depths(
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
    depths: Sequence[int],
    width: int,
    *,
    slope: float = 0.0,
    bias: bool = True,
    starts: int = 8,
    seed: int = 0,
    steps: int = 300,
    polish: int = 100,
    initial: nn.Module | Sequence[nn.Module] | None = None,
) -> list[Solution]:
    """Return the interpolating networks of smallest norm found at several depths, as :func:`solve` for each.

    The search at each depth also starts from the solution at the next smaller one, made deeper (:func:`shorten` without
    training); random starts alone rarely interpolate at large depth. From one depth L to the next, L', the norms found
    thus grow by at most k (L' - L) for ReLU and for slope 1, where k is the least dimension of the span of a hidden
    representation of the samples. For other slopes, where representations can have negative entries, they grow by at
    most 2k (L' - L), plus a constant for splitting and joining (:func:`~bnrank.constructions.deepen`).

    Parameters
    ----------
    x, y, width, slope, bias, starts, seed, steps, polish
        As in :func:`solve`; ``starts`` may be 0 with ``initial``. ``width`` is that of the random starts alone.
    depths : sequence of int
        The depths L, in any order.
    initial : MLP or torch.nn.Sequential, or sequence of them, optional
        Further starts, such as constructions, each at the smallest of the depths that is at least its own. The norm
        found there is at most its norm, if it interpolates. They have the given slope, and no biases if ``bias`` is
        False.

    Returns
    -------
    list of Solution
        One per depth, in the given order.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(0.1, 1, 5).reshape(-1, 1)
    >>> [round(found.norm, 4) for found in solve_depths(x, x, [2, 5], width=4, starts=2, steps=100)]
    [2.0, 5.0]
    """
    wanted = [validation.integer(L, "depths") for L in validation.sequence(depths, "depths", "integers")]
    several = () if initial is None else [initial] if isinstance(initial, nn.Module) else initial
    given = validation.sequence(several, "initial", "networks")
    later = sorted((read_chain(net, "initial").network() for net in given), key=lambda net: net.depth)
    slope = validation.slope(slope)
    for net in later:
        validation.expect(net.slope == slope, "initial", f"a network with slope {net.slope:g}", f"slope {slope:g}")
        validation.expect(bias or not net.bias, "initial", "a network with biases", "none with bias=False")
    starts = validation.integer(starts, "starts", 0 if later else 1)
    deepest, first = max((net.depth for net in later), default=0), min((net.depth for net in later), default=0)
    most, least = max(wanted, default=0), min(wanted, default=0)
    validation.allocation(256 * most, "depths", most)
    validation.expect(deepest <= most, "initial", f"depth {deepest}", f"a depth of at most {most}")
    validation.expect(starts > 0 or first <= least, "initial", f"depth {first}", f"depth {least} or less, or starts")
    options = {"slope": slope, "bias": bias, "seed": seed, "steps": steps, "polish": polish}
    found: dict[int, Solution] = {}
    carried: list[MLP] = []
    for depth in sorted(set(wanted)):
        while later and later[0].depth <= depth:
            carried.append(later.pop(0))
        results = [solve(x, y, depth, width, starts=starts, **options)] if starts else []  # type: ignore[arg-type]
        for net in carried:
            results.append(shorten(_biased(deepen(net, depth, x), bias), x, y, steps=0, polish=polish))
        found[depth] = min(results, key=lambda result: (not result.interpolates, result.norm))
        carried = [found[depth].network] if found[depth].interpolates else carried
    return [found[depth] for depth in wanted]


def _biased(net: MLP, bias: bool) -> MLP:
    """Return the network with biases, 0 where it has none, if they are requested."""
    if net.bias or not bias:
        return net
    return from_layers(list(net.weights), [w.new_zeros(len(w)) for w in net.weights], net.slope)
