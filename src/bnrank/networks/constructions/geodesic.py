"""A function whose near-optimal hidden representations diverge with depth."""

import math

import torch

from bnrank._core import validation
from bnrank.networks.chain import Chain
from bnrank.networks.constructions._arguments import DOUBLE
from bnrank.networks.mlp import MLP


def diverging_geodesic(depth: int, gamma: float = 0.75, a: float = 1.0) -> MLP:
    """Return a network of f(x, y, z) = (x, y, z + a max(0, x - y)) on R^3_+ whose representations diverge with depth.

    With eps = L^-gamma and u = (L - 2) eps: layers diag(e^eps, e^eps, e^(-2 eps)) up to L/2 - 1; layer L/2 adds a
    fourth neuron with row sqrt(a) e^(-u/2) (1, -1, 0); layer L/2 + 1 adds it to z with weight sqrt(a) e^(-u); layers
    diag(e^-eps, e^-eps, e^(2 eps)) from there on. No biases, ReLU. For even L

        ||theta||^2 = 6 + a (2 e^(-u) + e^(-2u)) + (L - 2) (2 cosh 2 eps + cosh 4 eps) = 3 L + 12 L^(1 - 2 gamma) + ...

    so R0 = 3 and R1 = 0, while values in the middle reach e^(u/2) times the inputs, u = L^(1 - gamma) - ... At odd L
    one more layer follows the middle than precedes it, and the layers after the middle invert those before in equal
    steps.

    Parameters
    ----------
    depth : int
        L >= 2.
    gamma : float
        In (1/2, 1): above 1/2 the norm tends to 3L, below 1 the representations diverge.
    a : float
        Strength of the nonlinear term, a >= 0.

    Returns
    -------
    MLP
        ReLU, without biases, in float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T31, with the norm of E10; Jacot2023b, Example 20.

    Examples
    --------
    >>> import torch
    >>> net = diverging_geodesic(1000)
    >>> f = net(torch.tensor([[1.0, 0.25, 0.5]], dtype=torch.float64)).detach()
    >>> [round(v, 12) for v in f[0].tolist()]
    [1.0, 0.25, 1.25]
    >>> round(sum(float((p * p).sum().detach()) for p in net.parameters()) - 3000, 2)         # 12 / sqrt(1000) = 0.38
    0.39
    """
    depth, a = validation.integer(depth, "depth", 2), validation.number(a, "a", 0.0)
    gamma = validation.number(gamma, "gamma")
    validation.expect(0.5 < gamma < 1, "gamma", f"{gamma:g}", "a number in the open interval (1/2, 1)")
    before, after = (depth - 2) // 2, depth - 2 - (depth - 2) // 2
    eps = depth**-gamma
    total = 2 * before * eps  # u
    back = total / (2 * after) if after else 0.0
    direction = torch.tensor([1.0, 1.0, -2.0], dtype=DOUBLE)
    eye, root = torch.eye(3, dtype=DOUBLE), math.sqrt(a)
    row = root * math.exp(-total / 2) * torch.tensor([[1.0, -1.0, 0.0]], dtype=DOUBLE)
    column = root * math.exp(-total) * torch.tensor([[0.0], [0.0], [1.0]], dtype=DOUBLE)
    weights = [
        *[torch.diag(torch.exp(eps * direction))] * before,
        torch.cat([eye, row]),
        torch.cat([eye, column], 1),
        *[torch.diag(torch.exp(-back * direction))] * after,
    ]
    return Chain(weights, [], 0.0).network()
