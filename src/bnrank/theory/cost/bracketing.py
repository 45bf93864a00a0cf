"""Bracket of the representation cost, with a certificate for each end."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.chain import as_mlp, read_chain
from bnrank.networks.functional import check_finite
from bnrank.networks.mlp import MLP, from_layers, leaky_relu
from bnrank.theory.cost.bounds import LowerBound, lower_bound
from bnrank.theory.cost.pruning import prune
from bnrank.theory.cost.rescaling import balance
from bnrank.theory.cost.search import KINK, Domain, every_region, parameters, slopes_of

MARGIN = 1e-3  # relative to 1 + |x|: neighborhood of the samples on which an affine network equals the function
EQUAL = 1e-9  # allowed rounding error, relative to the upper bound or the largest output


@dataclass(frozen=True)
class CostBracket(Printed):
    """Bounds lower <= R(f; Omega, L) <= upper, with the evidence for both.

    Attributes
    ----------
    lower : LowerBound
        L sum_k s_k(Jf(point))^{2/L} (T4): a float, with ``point``, ``singular_values``, ``domain``, ``exact``.
    upper : float
        ||theta||^2 of ``network``, in float64.
    network : MLP
        A network of the same depth that equals f on the domain, in the precision of the given one.
    how : str
        Construction of that network: "balanced", "pruned and balanced", or "affine" if f is affine on the domain.
    deviation : float
        max |network(x_i) - f(x_i)| over outputs and samples of the domain, evaluated in float64.
    norm : float
        ||theta||^2 of the given network.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[8.0]]), torch.tensor([[2.0]])])       # 16 relu(x)
    >>> found = bnrank.cost.bracket(net, torch.tensor([[-1.0], [1.0]]))         # a bnrank.cost.CostBracket
    >>> round(found.norm, 9), round(found.lower, 9), round(found.upper, 9), found.exact
    (68.0, 32.0, 32.0, True)
    """

    lower: LowerBound
    upper: float
    network: MLP
    how: str
    deviation: float
    norm: float

    def _content(self) -> list[Part]:
        bounds = f"cost in [{float(self.lower):.4g}, {self.upper:.4g}] at depth {self.depth}"
        below = f"L sum_k s_k^(2/L) of the Jacobian at a point, of {len(self.lower.singular_values)} singular values"
        above = f"||theta||^2 of a network that equals f on the domain, {self.how}; deviation {self.deviation:.1e}"
        rows = [
            {"bound": "lower", "cost": float(self.lower), "evidence": below},
            {"bound": "upper", "cost": self.upper, "evidence": above},
            {"bound": "given network", "cost": self.norm, "evidence": "||theta||^2"},
        ]
        said = f"{bounds} (norm {self.norm:.4g}, upper bound: {self.how}, deviation {self.deviation:.1e})"
        return [said, Table("Bounds and their evidence", rows, printed=False)]

    @property
    def depth(self) -> int:
        """L."""
        return self.lower.depth

    @property
    def domain(self) -> str | Tensor:
        """Omega: "data" for any neighborhood of the samples, or a box (d, 2)."""
        return self.lower.domain

    @property
    def gap(self) -> float:
        """Upper bound minus lower bound."""
        return self.upper - float(self.lower)

    @property
    def exact(self) -> bool:
        """Whether both bounds agree up to rounding, so that R(f; Omega, L) is determined."""
        return self.gap <= EQUAL * self.upper


def bracket(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    domain: str | Tensor | np.ndarray = "box",
    rtol: float = 1e-12,
    starts: int = 512,
    rounds: int = 20,
    max_regions: int = 2000,
    seed: int = 0,
) -> CostBracket:
    """Return bounds on R(f; Omega, L), the smallest ||theta||^2 of networks of depth L equal to f on Omega (T1, T4).

    L is the depth of the network. The lower bound is the Jacobian bound of :func:`lower_bound`. The upper bound is the
    smallest norm among a few networks that equal f on Omega. The first is the given network without the neurons that
    are dead on Omega, pruned and balanced (:func:`prune`, :func:`balance`). If f is A x + c on Omega, with A = U S V^T,
    another is W_1 = S^{1/L} V^T, W_l = S^{1/L}, W_L = U S^{1/L}, the optimum of linear networks (T2). A ReLU network
    attains the cost of that optimum only if every v_i^T x has one sign on Omega; otherwise the first bias makes it
    non-negative and the last bias compensates, at an additional cost. The networks may have biases.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; not modified.
    x, domain, rtol, starts, rounds, max_regions, seed
        As in :func:`lower_bound`.

    Returns
    -------
    CostBracket
        Both bounds, the point and the singular values that certify the lower one, and the network that certifies the
        upper one.

    Raises
    ------
    TypeError, ValueError
        If the network is not a chain of linear layers with one activation, or an argument is out of range.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.tensor([[8.0], [1.0]]), torch.tensor([[1.0, 1.0]])])   # 9 relu(x)
    >>> found = bracket(net, torch.tensor([[-1.0], [1.0]]))
    >>> found.norm, round(found.lower, 9), round(found.upper, 9), found.exact, found.network.widths
    (67.0, 18.0, 18.0, True, [1, 1, 1])
    """
    check_finite(net)
    chain = as_mlp(net)
    lower = lower_bound(
        net, x, domain=domain, rtol=rtol, starts=starts, rounds=rounds, max_regions=max_regions, seed=seed
    )
    samples = validation.numbers(x, "x").detach().to(lower.point).flatten(1)
    where = Domain.of(domain, samples)
    pruned = prune(chain).network
    widths: list[int] = []
    while widths != pruned.widths:  # removing dead neurons can leave others without inputs
        widths, signs = pruned.widths, _signs(pruned, where, samples, max_regions)
        pruned = prune(_without_dead(pruned, signs)).network
    candidates = {}  # in order of preference
    if all(bool((s != 0).all()) for s in signs):
        candidates["affine"] = _affine(pruned, signs, where)
    if pruned.widths != chain.widths:
        candidates["pruned and balanced"] = pruned
    candidates["balanced"] = chain
    points = samples if where.name == "data" else torch.cat([where.inside(samples), lower.point[None], where.box.T])
    with torch.no_grad():
        expected, allowed = chain(points), EQUAL * float(_terms(chain, points).max())
        balanced = {how: as_mlp(balance(candidate)) for how, candidate in candidates.items()}
        norms = {
            how: read_chain(network).norm
            for how, network in balanced.items()
            if how == "balanced" or float((network(points) - expected).abs().max()) <= allowed
        }
        how = min(norms, key=lambda name: norms[name] * (1 + EQUAL * list(norms).index(name)))
        network = balanced[how].to(next(p.dtype for p in net.parameters() if p.is_floating_point()))
        deviation = float((as_mlp(network)(points) - expected).abs().max())
    return CostBracket(lower, read_chain(network).norm, network, how, deviation, read_chain(chain).norm)


def _terms(net: MLP, points: Tensor) -> Tensor:
    """Return the sums of the absolute values of the terms of the outputs, (n, d_out)."""
    a = points
    for layer in net.layers[:-1]:
        a = leaky_relu(layer(a), net.slope)
    weight, bias = parameters(net)[-1]
    return a.abs() @ weight.abs().T + bias.abs()


def _signs(net: MLP, domain: Domain, samples: Tensor, max_regions: int) -> list[Tensor]:
    """Return per hidden layer, (n_l,): 1 for preactivations >= 0 on the whole domain, -1 for <= 0, 0 otherwise."""
    if net.slope == 1:
        return [torch.ones(n, device=samples.device) for n in net.widths[1:-1]]
    if domain.name == "data":
        return _signs_near(net, samples)
    found = every_region(net, domain, max_regions)
    if found is not None:
        patterns = found.patterns.to(samples.device)
        return list(_sign(patterns.amin(0) >= 0, patterns.amax(0) <= 0).split(net.widths[1:-1]))
    middle, half = (domain.lower + domain.upper) / 2, (domain.upper - domain.lower) / 2
    return [_sign(a[0] >= 0, b[0] <= 0) for a, b in zip(*_ranges(net, middle[None], half[None]), strict=True)]


def _signs_near(net: MLP, samples: Tensor) -> list[Tensor]:
    """Return the signs of :func:`_signs` for neighborhoods of the samples."""
    signs, a, silent = [], samples, torch.zeros_like(samples, dtype=torch.bool)  # silent: 0 near the sample
    for weight, bias in parameters(net)[:-1]:
        z, size = a @ weight.T + bias, KINK * (a.abs() @ weight.abs().T + bias.abs())
        none = ((~silent).double() @ (weight != 0).double().T == 0) & (bias == 0)
        signs.append(_sign((z > size).all(0), ((z < -size) | none).all(0)))
        a, silent = leaky_relu(z, net.slope), (none | (z < -size)) if net.slope == 0 else none
    return signs


def _sign(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below, -1, above.int())


def _ranges(net: MLP, middle: Tensor, half: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return bounds on the preactivations of the hidden layers over boxes, (n, n_l), widened by rounding errors."""
    lows, highs = [], []
    for weight, bias in parameters(net)[:-1]:
        z, reach = middle @ weight.T + bias, half @ weight.abs().T
        reach = reach + KINK * (middle.abs() @ weight.abs().T + bias.abs())
        lows.append(z - reach)
        highs.append(z + reach)
        ends = torch.stack([leaky_relu(lows[-1], net.slope), leaky_relu(highs[-1], net.slope)])
        below, above = ends.amin(0), ends.amax(0)
        if net.slope < 0:
            below = torch.where((lows[-1] < 0) & (highs[-1] > 0), 0.0, below)
        middle, half = (below + above) / 2, (above - below) / 2
    return lows, highs


def _without_dead(net: MLP, signs: list[Tensor]) -> MLP:
    """Return the network with all weights of neurons that are dead on the domain set to 0, if it is a ReLU network."""
    if net.slope != 0:
        return net
    weights, biases = [w.detach().clone() for w in net.weights], [b.detach().clone() for b in net.biases]
    for i, sign in enumerate(signs):
        weights[i][sign < 0] = 0.0
        weights[i + 1][:, sign < 0] = 0.0
        if biases:
            biases[i][sign < 0] = 0.0
    return from_layers(weights, biases, net.slope).to(weights[0].device)


def _affine(net: MLP, signs: list[Tensor], domain: Domain) -> MLP:
    """Return the network with the optimal linear layers (T2) for the affine map that ``net`` computes on the domain."""
    depth, root = net.depth, 1 / net.depth
    matrix = torch.eye(net.widths[0]).to(domain.lower)
    offset = domain.lower.new_zeros(net.widths[0])
    for i, (weight, bias) in enumerate(parameters(net)):
        matrix, offset = weight @ matrix, weight @ offset + bias
        if i < depth - 1 and net.slope != 1:
            slopes = slopes_of(signs[i].to(matrix), net.slope)
            matrix, offset = slopes[:, None] * matrix, slopes * offset
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    kept = s > max(matrix.shape) * torch.finfo(torch.float64).eps * s[0]
    u, s, vt = u[:, kept], s[kept], vt[kept]
    if depth == 1:
        return from_layers([matrix], [offset], net.slope).to(u.device)
    if len(s) == 0:
        u, s, vt = u.new_zeros(len(u), 1), s.new_zeros(1), vt.new_zeros(1, vt.shape[1])
    margin = MARGIN * (1 + torch.maximum(domain.lower.abs(), domain.upper.abs())) * (domain.name == "data")
    lower, upper = domain.lower - margin, domain.upper + margin  # a neighborhood of the samples
    low = vt.clamp(min=0) @ lower + vt.clamp(max=0) @ upper
    high = vt.clamp(min=0) @ upper + vt.clamp(max=0) @ lower
    flip = torch.where(high.clamp(min=0) < (-low).clamp(min=0), -1.0, 1.0).to(s)
    u, vt, low = u * flip, vt * flip[:, None], torch.where(flip < 0, -high, low)
    shift = torch.zeros_like(low) if net.slope == 1 else (-low).clamp(min=0)
    weights = [s[:, None] ** root * vt, *[torch.diag(s**root)] * (depth - 2), u * s**root]
    biases = [shift * s**root, *[torch.zeros_like(s)] * (depth - 2), offset - u @ (s * shift)]
    return from_layers(weights, biases, net.slope).to(u.device)
