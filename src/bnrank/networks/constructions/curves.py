"""A curve of networks whose direction converges while an activation never settles (T43, T44)."""

import math

import torch

from bnrank._core import validation
from bnrank.networks.mlp import MLP, from_layers

__all__ = ["wavering"]


def wavering(t: float) -> MLP:
    """Return the network at time t of a curve whose direction converges while a neuron turns on and off forever.

    W_1 = [[t + sin t, t], [2t, t]] and W_2 = [t, t], ReLU, without biases. The direction theta / ||theta|| converges to
    (1, 1, 2, 1, 1, 1) / 3, at the rate 1/t. No entry of the limit is 0, and all weights are positive for t > 0: the
    signs are stable (T43). At x = (1, -1), however, the preactivations are sin t and t, so that the first neuron is
    active for t in (0, pi), inactive in (pi, 2 pi), and so on. The limit is on the boundary of an activation pattern.
    Hence convergence in direction does not imply stable activations, and pairs of neurons need not be conserved from
    some time on (T44), as the rate of T47 does not vanish where the patterns differ.

    Parameters
    ----------
    t : float
        Time, positive, at most 1e12, beyond which rounding hides sin t.

    Returns
    -------
    MLP
        The network, in float64.

    Raises
    ------
    TypeError, ValueError
        If t is not a number in this range.

    Notes
    -----
    Source: T43, T44; LeJegelka2022, claim 2, on a network instead of a set of points. The curve is a function of time,
    as in the source; it is not claimed to be the gradient flow of a loss.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> [bool(wavering(t).weights[0][0] @ x > 0) for t in (1.0, 4.0, 7.0, 10.0)]
    [True, False, True, False]
    """
    t = validation.number(t, "t", 0.0, strict=True)
    validation.expect(t <= 1e12, "t", f"{t:g}", "at most 1e12")
    first, second = [[t + math.sin(t), t], [2 * t, t]], [[t, t]]
    return from_layers([torch.tensor(rows, dtype=torch.float64) for rows in (first, second)])
