"""The bound on the parameter norm from the Jacobians at two points (T10)."""

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.measures.backward import Layers
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, example
from bnrank.networks.mlp import MLP
from bnrank.theory.cost.bounds import Certified


class TwoPointBound(Certified):
    """A lower bound on ||theta||^2 from two points: a float, with its terms.

    Attributes
    ----------
    pair : tuple of int
        The rows of x, or the row of x and that of y.
    points : tuple of Tensor
        Those samples, (d_in,), float64.
    singular_values : tuple of Tensor
        Singular values of both Jacobians, float64.
    difference : float
        ||Jf(x) - Jf(y)||_*, the nuclear norm.
    constant : float
        C, the largest of 1 and the operator norms of the Jacobians from the input and to the output at both points.
    depth : int
        L.
    pairs : int
        Number of pairs compared.
    """

    pair: tuple[int, int]
    points: tuple[Tensor, Tensor]
    singular_values: tuple[Tensor, Tensor]
    difference: float
    constant: float
    depth: int
    pairs: int


def two_point(
    net: nn.Module,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    *,
    max_pairs: int = 1000,
    seed: int = 0,
) -> TwoPointBound:
    """Return the largest two-point bound on ||theta||^2 over pairs of samples of a ReLU network (T10).

    ||theta||^2 >= (L/2) (||Jf(x)||_{2/L}^{2/L} + ||Jf(y)||_{2/L}^{2/L}) + C^{-2} ||Jf(x) - Jf(y)||_*, where ||A||_p^p
    is the sum of the p-th powers of the singular values, ||A||_* their sum, and C >= 1 bounds the operator norms of
    J a~_l, l = 1..L-2, and of J(a_l -> f), l = 2..L-1, at x and y (Jacot2023b proposition 13, corrected: E5). C depends
    on the network: the bound is on its norm, not on that of other networks of the same function.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with ReLU between them.
    x : Tensor or ndarray
        Samples, (N, d_in). At a kink the derivative of ReLU is taken to be 0.
    y : Tensor or ndarray, optional
        Samples to pair with those of x. Default: x.
    max_pairs : int
        Largest number of pairs; of more samples, random ones are taken.
    seed : int
        Seed of that choice.

    Returns
    -------
    TwoPointBound
        The bound as a float, with the pair, C and the nuclear norm of the difference.

    Raises
    ------
    TypeError, ValueError
        If the network is no chain, its activation is not ReLU (with slope -1/2 the best constant is 1/3, not 1), or an
        argument is out of range.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(1), torch.eye(1)])      # relu(x), norm 2
    >>> bound = two_point(net, torch.tensor([[-1.0], [1.0]]))
    >>> bound, bound.pair, bound.difference                                  # (2/2) (0 + 1) + 1
    (2.0, (0, 1), 1.0)
    """
    check_finite(net)
    chain = as_mlp(net)
    validation.expect(chain.slope == 0, "net", f"an activation of slope {chain.slope:g}", "ReLU, slope 0")
    max_pairs = validation.integer(max_pairs, "max_pairs")
    generator = torch.Generator().manual_seed(validation.integer(seed, "seed", 0))
    first = example(chain, x)
    second = first if y is None else validation.samples(y, "y", features=chain.widths[0])
    limit = int((1 + (1 + 8 * max_pairs) ** 0.5) / 2) if y is None else int(max_pairs**0.5)
    rows = _some(len(first), max(limit, 2 if y is None else 1), generator)
    columns = rows if y is None else _some(len(second), max(max_pairs // len(rows), 1), generator)
    at_x = _Jacobians(chain, first[rows])
    at_y = at_x if y is None else _Jacobians(chain, second[columns])
    best: tuple[float, int, int, float, float] | None = None
    for i in range(max(len(rows) - 1, 1) if y is None else len(rows)):
        start = min(i + 1, len(rows) - 1) if y is None else 0  # one sample alone is paired with itself
        difference = torch.linalg.svdvals(at_x.matrix[i] - at_y.matrix[start:]).sum(1)
        constant = at_y.constant[start:].clamp(min=float(at_x.constant[i]))
        bounds = 0.5 * (at_x.cost[i] + at_y.cost[start:]) + difference / constant**2
        j = int(bounds.argmax())
        if best is None or float(bounds[j]) > best[0]:
            best = (float(bounds[j]), i, start + j, float(difference[j]), float(constant[j]))
    assert best is not None
    value, i, j, nuclear, c = best
    return TwoPointBound(
        value,
        pair=(int(rows[i]), int(columns[j])),
        points=(at_x.points[i], at_y.points[j]),
        singular_values=(at_x.values[i], at_y.values[j]),
        difference=nuclear,
        constant=c,
        depth=chain.depth,
        pairs=max(len(rows) * (len(rows) - 1) // 2, 1) if y is None else len(rows) * len(columns),
    )


def _some(count: int, limit: int, generator: torch.Generator) -> Tensor:
    """Return the rows 0..count-1, or ``limit`` random ones of them in order."""
    if count <= limit:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:limit].sort().values


class _Jacobians:
    """At samples: the Jacobians, their singular values, L sum_k s_k^{2/L}, and C of each sample alone."""

    def __init__(self, net: MLP, x: Tensor) -> None:
        layers = Layers.of(net, torch.float64)
        found = layers.forward(x)
        self.points = found.inputs[0]
        into, out = layers.from_input(found.slopes), layers.to_output(found.slopes)
        at_layers = [weight @ j for weight, j in zip(layers.weights[:-2], into, strict=False)]  # J a~_l, l <= L - 2
        at_layers += [j @ weight for weight, j in zip(layers.weights[2:], out[2:], strict=True)]  # J(a_l -> f), l >= 2
        self.matrix = (layers.weights[-1] @ into[-1]).expand(len(x), -1, -1)
        self.values = torch.linalg.svdvals(self.matrix)
        self.cost = net.depth * linalg.schatten(self.values, net.depth, rtol=1e-10)
        norms = [torch.linalg.matrix_norm(j, 2) for j in at_layers]
        self.constant = torch.stack([self.cost.new_ones(len(x)), *norms]).amax(0)
