"""Lower bounds on the representation cost, each with the points that certify it (T4, T7, T10)."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.measures.backward import Layers
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, example
from bnrank.networks.mlp import MLP
from bnrank.theory.cost.search import Function, maximize

RANK_FIRST = 1e4  # exceeds all differences of log pseudo-determinants, so that the rank is maximized first


class Certified(float):
    """An immutable number with its evidence as attributes."""

    def __new__(cls, value: float, **evidence: Any) -> Self:
        """Create the number with its evidence."""
        bound = super().__new__(cls, value)
        vars(bound).update(evidence)
        return bound

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a {type(self).__name__} cannot be changed")


class JacobianBound(Certified):
    """A bound that the Jacobian at one point certifies.

    Attributes
    ----------
    point : Tensor
        Point at which the Jacobian is evaluated, shaped like a sample; float64.
    singular_values : Tensor
        Singular values of Jf(point) minus a bound on their rounding error, (min(d_in, d_out),); float64.
    domain : str or Tensor
        "data", or the box, (d, 2).
    exact : bool
        Whether the maximum is over all linear regions in the box, so that no other point gives a larger bound.
    evaluated : int
        Number of evaluated points or regions.
    """

    point: Tensor
    singular_values: Tensor
    domain: str | Tensor
    exact: bool
    evaluated: int


class LowerBound(JacobianBound):
    """A lower bound on R(f; Omega, L): a float, with the point that certifies it.

    Attributes
    ----------
    point, singular_values, domain, exact, evaluated
        As of :class:`JacobianBound`.
    depth : int
        L.
    """

    depth: int


class R1LowerBound(JacobianBound):
    """A lower bound on R1(f; Omega): a float, with the point that certifies it.

    Attributes
    ----------
    point, singular_values, domain, exact, evaluated
        As of :class:`JacobianBound`.
    rank : int
        rank Jf(point); the bound requires R0(f) = rank.
    assumes : str
        The assumption that is not verified; empty if R0(f) = rank is certain because
        rank <= Rank_J(f) <= R0(f) <= Rank_BN(f) <= rank.
    """

    rank: int
    assumes: str


def lower_bound(
    net: nn.Module,
    x: Tensor | np.ndarray,
    depth: int | None = None,
    *,
    domain: str | Tensor | np.ndarray = "box",
    rtol: float = 1e-12,
    starts: int = 512,
    rounds: int = 20,
    max_regions: int = 2000,
    seed: int = 0,
) -> LowerBound:
    """Return L max_x sum_k s_k(Jf(x))^{2/L}, a lower bound on R(f; Omega, L) (T4).

    R(f; Omega, L) is the smallest ||theta||^2 of a fully connected network of depth L, with an activation of slopes in
    [-1, 1], that equals f on Omega (Jacot2023a section 2, Jacot2023b section 3). The points x are those of ``domain``,
    and Omega is the box, or any set that contains a neighborhood of the samples: on isolated points a function has no
    Jacobian, and a network of rank 1 can attain any values. The bound holds at every point where f is differentiable;
    points at a kink are skipped.

    For small chains the maximum over all linear regions is exact. Otherwise a search looks for large values: at the
    samples, at random points and on the linear pieces of segments, then from the best points across the nearest kinks.
    The bound is valid at any of these points.

    Parameters
    ----------
    net : torch.nn.Module
        Any module that processes samples independently. The bound is on the cost of its function, not on its own
        parameter norm: the norm of a module whose layers are not full matrices is not an upper bound on R. A
        convolution counts as its dense matrix, in which each entry of the kernel occurs once per output position.
    x : Tensor or ndarray
        Samples, (N, ...), from which the search starts.
    depth : int, optional
        L. Default: the depth of the module, if it is a chain of linear layers.
    domain : "box", "data" or array (d, 2)
        The bounding box of the samples, the samples alone, or lower and upper bounds of every coordinate. If both
        bounds are the same number x, the box is widened by 1e-6 (1 + |x|) on both sides.
    rtol : float
        Singular values up to ``rtol`` times the largest are ignored.
    starts, rounds : int
        Number of random points, and of rounds that continue from the best ones.
    max_regions : int
        Largest number of linear regions for an exact maximum; with 0, the maximum is always searched.
    seed : int
        Random seed of the points.

    Returns
    -------
    LowerBound
        The bound as a float, with the point and the singular values that certify it, minus rounding errors.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the module is not a chain and no depth is given, or it cannot be differentiated.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0, 3.0]])], [
    ...     torch.tensor([0.0, -2.0]), torch.tensor([0.0])])    # relu(x) + 3 relu(x - 2)
    >>> bound = lower_bound(net, torch.tensor([[1.0], [1.5], [3.0]]))
    >>> round(bound, 9), bound.exact                            # slope 4 between 2 and 3: 2 * 4
    (8.0, True)
    """
    rtol = validation.rtol(rtol)
    function = Function(net, x)
    depth = function.depth(depth)

    def cost(values: Tensor) -> Tensor:
        return depth * linalg.schatten(values, depth, rtol)

    evidence = maximize(function, cost, domain, starts, rounds, max_regions, seed)
    return LowerBound(float(cost(evidence["singular_values"])), depth=depth, **evidence)


def r1_lower_bound(
    net: nn.Module,
    x: Tensor | np.ndarray,
    rank: int | None = None,
    *,
    domain: str | Tensor | np.ndarray = "box",
    rtol: float = 1e-6,
    starts: int = 512,
    rounds: int = 20,
    max_regions: int = 2000,
    seed: int = 0,
) -> R1LowerBound:
    """Return 2 max_x log |Jf(x)|_+ over points with rank Jf(x) = R0(f), a lower bound on R1(f) (T7).

    |A|_+ is the product of the non-zero singular values (Jacot2023b theorem 3). R0(f) is between the largest rank of
    the Jacobian and Rank_BN(f), which is at most the smallest rank of a weight matrix. If these differ, the bound
    assumes that R0(f) is the largest rank found, as recorded in ``assumes``.

    Parameters
    ----------
    net, x, domain, starts, rounds, max_regions, seed
        As in :func:`lower_bound`.
    rank : int, optional
        R0(f), if known.
    rtol : float
        The rank is the number of singular values above ``rtol`` times the largest.

    Returns
    -------
    R1LowerBound
        The bound as a float, with its point, the rank at that point and the assumption.

    Raises
    ------
    TypeError, ValueError
        As :func:`lower_bound`; or if no Jacobian has the given rank, or one has a larger rank.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[2.0]]), torch.tensor([[3.0]])])    # 6 relu(x)
    >>> bound = r1_lower_bound(net, torch.tensor([[-1.0], [1.0]]))
    >>> round(bound, 9), bound.rank, bound.assumes              # 2 log 6
    (3.583518938, 1, '')
    """
    rtol = validation.rtol(rtol)
    function = Function(net, x)
    if rank is not None:
        rank = validation.integer(rank, "rank", 0)

    def regularity(values: Tensor) -> Tensor:
        return RANK_FIRST * linalg.rank(values, rtol) + 2 * linalg.log_pseudo_determinant(values, None, rtol)

    evidence = maximize(function, regularity, domain, starts, rounds, max_regions, seed)
    values = evidence["singular_values"]
    found_rank = int(linalg.rank(values, rtol))
    value = 2 * float(linalg.log_pseudo_determinant(values, None, rtol))
    if rank is not None and found_rank != rank:
        raise ValueError(
            f"rank: got {rank}, but the largest rank of the Jacobian found is {found_rank}, at "
            f"{evidence['point'].flatten()[:5].tolist()}; "
            + ("R0 is at least that" if found_rank > rank else "the bound needs a point of rank R0")
        )
    weights = [] if function.chain is None else function.chain.weights  # f factors through the image of each
    largest = min([len(values), *(int(torch.linalg.matrix_rank(w.detach())) for w in weights)])
    assumes = "" if largest <= found_rank else f"R0(f) = {found_rank}; found {found_rank} <= R0(f) <= {largest}"
    if rank is not None and assumes:
        assumes = f"R0(f) = {rank}, as given"
    return R1LowerBound(value, rank=found_rank, assumes=assumes, **evidence)


class TwoPointBound(Certified):
    """A lower bound on ||theta||^2 from two points: a float, with its terms.

    Attributes
    ----------
    pair : tuple of int
        Two rows of x, or a row of x and a row of y.
    points : tuple of Tensor
        The samples in these rows, (d_in,), float64.
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
    on the network: the bound applies to its norm, not to the norm of other networks with the same function.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with ReLU between them.
    x : Tensor or ndarray
        Samples, (N, d_in). At a kink the derivative of ReLU is taken to be 0.
    y : Tensor or ndarray, optional
        Samples to pair with those of x. Default: x.
    max_pairs : int
        Largest number of pairs; if there are more, random samples are selected.
    seed : int
        Random seed of this selection.

    Returns
    -------
    TwoPointBound
        The bound as a float, with the pair, C and the nuclear norm of the difference.

    Raises
    ------
    TypeError, ValueError
        If the network is not a chain, its activation is not ReLU (with slope -1/2 the best constant is 1/3, not 1), or
        an argument is out of range.

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
    generator = torch.Generator().manual_seed(validation.seed(seed))
    first = example(chain, x)
    second = first if y is None else validation.samples(y, "y", features=chain.widths[0])
    limit = int((1 + (1 + 8 * max_pairs) ** 0.5) / 2) if y is None else int(max_pairs**0.5)
    rows = _some(len(first), max(limit, 2 if y is None else 1), generator)
    columns = rows if y is None else _some(len(second), max(max_pairs // len(rows), 1), generator)
    at_x = _Jacobians(chain, first[rows])
    at_y = at_x if y is None else _Jacobians(chain, second[columns])
    found = []
    for i in range(max(len(rows) - 1, 1) if y is None else len(rows)):
        start = min(i + 1, len(rows) - 1) if y is None else 0  # a single sample is paired with itself
        difference = torch.linalg.svdvals(at_x.matrix[i] - at_y.matrix[start:]).sum(1)
        constant = at_y.constant[start:].clamp(min=float(at_x.constant[i]))
        bounds = 0.5 * (at_x.cost[i] + at_y.cost[start:]) + difference / constant**2
        j = int(bounds.argmax())
        found.append((float(bounds[j]), i, start + j, float(difference[j]), float(constant[j])))
    value, i, j, nuclear, c = max(found, key=lambda bound: bound[0])
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
    """Return the rows 0..count-1, or a sorted random subset of ``limit`` of them."""
    if count <= limit:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:limit].sort().values


class _Jacobians:
    """Jacobians at samples, their singular values, L sum_k s_k^{2/L}, and the constant C of each single sample."""

    def __init__(self, net: MLP, x: Tensor) -> None:
        layers = Layers.of(net, torch.float64)
        found = layers.forward(x)
        self.points = found.inputs[0]
        into, out = layers.from_input(found.slopes), layers.to_output(found.slopes)
        at_layers = [
            j @ weight.mT for weight, j in zip(layers.weights[:-2], into, strict=False)
        ]  # (J a~_l)^T, l <= L-2
        at_layers += [j @ weight for weight, j in zip(layers.weights[:1:-1], out, strict=False)]  # J(a_l -> f), l >= 2
        self.matrix = layers.jacobian(found)
        self.values = torch.linalg.svdvals(self.matrix)
        self.cost = net.depth * linalg.schatten(self.values, net.depth, rtol=1e-10)
        norms = [torch.linalg.matrix_norm(j, 2).expand(len(x)) for j in at_layers]
        self.constant = torch.stack([self.cost.new_ones(len(x)), *norms]).amax(0)
