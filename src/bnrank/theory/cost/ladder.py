"""Networks of small norm that interpolate the same data at several depths."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.constructions.deepening import deepen
from bnrank.networks.mlp import MLP, from_layers
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
    initial: nn.Module | None = None,
) -> list[Solution]:
    """Return the interpolating networks of smallest norm found at several depths, as :func:`solve` for each.

    The search at each depth also starts from the solution at the next smaller one, made deeper (:func:`shorten` without
    training). From depth L to L' the
    norms found thus grow by at most k (L' - L), where k is the dimension of the narrowest hidden representation; random
    starts alone rarely interpolate at large depth.

    Parameters
    ----------
    x, y, width, slope, bias, starts, seed, steps, polish
        As in :func:`solve`; ``starts`` may be 0 with ``initial``.
    depths : sequence of int
        The depths L, in any order.
    initial : MLP or torch.nn.Sequential, optional
        A further start, of at most the smallest depth, such as a construction. The norm found at that depth is at most
        its norm, if it interpolates.

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
    starts = validation.integer(starts, "starts", 0 if initial is not None else 1)
    options = {"slope": slope, "bias": bias, "seed": seed, "steps": steps, "polish": polish}
    found: dict[int, Solution] = {}
    for depth in sorted(set(wanted)):
        results = [solve(x, y, depth, width, starts=starts, **options)] if starts else []  # type: ignore[arg-type]
        if initial is not None:
            results.append(shorten(_biased(deepen(initial, depth, x), bias), x, y, steps=0, polish=polish))
        found[depth] = min(results, key=lambda result: (not result.interpolates, result.norm))
        initial = found[depth].network if found[depth].interpolates else initial
    return [found[depth] for depth in wanted]


def _biased(net: MLP, bias: bool) -> MLP:
    """Return the network with biases, 0 where it has none, if they are requested."""
    if net.bias or not bias:
        return net
    return from_layers(list(net.weights), [w.new_zeros(len(w)) for w in net.weights], net.slope)
