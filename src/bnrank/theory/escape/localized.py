"""The localized loss of a network: its speed away from the origin, and the distance of its layers from rank one.

Near the origin the cost of a bias-free network is C(0) + L0(theta), L0 = Tr[G^T f_theta(X)] (T34). The quantities of
T38 are invariant under scaling of X, G or a layer by a positive number. X, G and all layers are therefore first scaled
to Frobenius norm 1. This maximizes the speed over rescalings of the layers on the sphere ||theta||^2 = L, and prevents
overflow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.measures import balance
from bnrank.networks.mlp import MLP
from bnrank.theory.escape.direction import deepen
from bnrank.theory.verdicts import assume

CHUNK = 2**12  # samples at a time
ROUNDING = 1e-14  # rounding error of the distance of A from rank one, relative to ||A||
ALTERNATIONS = (10, 200)  # smallest and largest number of alternations in the search for a non-negative rank-one part
EFFORT = 1 << 27  # entries of X that each start of that search reads, subject to these limits
NEGATIVE = 1e-12  # entries above minus this times the largest one count as non-negative


@dataclass(frozen=True)
class Ratio:
    """A ratio in [0, 1) that T38 bounds.

    Attributes
    ----------
    name : str
        E.g. "the tail of W_1".
    layer : int
        l.
    value, largest : float
        The ratio, and its largest possible value.
    activation : bool
        Whether it is the tail of sigma(Z_l), one of the candidates for the layer near rank one.
    """

    name: str
    layer: int
    value: float
    largest: float
    activation: bool


@dataclass(frozen=True)
class Localized:
    """The quantities of T38, for one network on one data set.

    Tails are sum_{i>=2} s_i^2 / sum_i s_i^2, in [0, 1). A_0 = X, A_l = sigma(Z_l). All quantities except
    ``sphere_speed`` and the norms are for X, G and every layer scaled to Frobenius norm 1.

    Attributes
    ----------
    share : float
        s / (||X||_F ||G||_F) in (0, 1], s the speed -L0 with every layer scaled to norm 1.
    sphere_speed : float
        -L0 of the network scaled as a whole to ||theta||^2 = L; at most s, with equality if all layers have equal
        norms.
    x_norm, g_norm : float
        ||X||_F and ||G||_F.
    squared_norm : float
        ||theta||^2 of the network as given.
    layer_norms : Tensor
        ||W_l||_F of the network scaled as a whole to ||theta||^2 = L, (L,).
    weight_tails : Tensor
        Of W_1, ..., W_L, (L,).
    weight_ranks : Tensor
        The largest ranks that W_1, ..., W_L can have, (L,).
    activation_tails : Tensor
        Of A_0, ..., A_{L-1}, (L,).
    activation_ranks : Tensor
        The largest ranks that A_0, ..., A_{L-1} can have, (L,).
    activation_norms : Tensor
        ||A_l||_F for l = 0, ..., L-1, (L,).
    nonlinearities : Tensor
        ||sigma(Z_l) - Z_l||_F^2 / ||Z_l||_F^2 for l = 1, ..., L-1, (L-1,).
    tail_speeds : Tensor
        For l = 0, ..., L-1, (L,): the speed with the layers after A_l = s_1 v u^T + E replaced by rank-one layers that
        read the direction u. It is ||G v|| s_1, since v and u can be chosen non-negative; at l = 0 it is the largest
        over a few candidates u.
    nonnegative : bool
        Whether v can be chosen non-negative for A_0 = X.
    part : tuple of float
        ||E||_F and ||G v|| ||u|| of X = v u^T + E with v >= 0 and the smallest E found.
    """

    share: float
    sphere_speed: float
    x_norm: float
    g_norm: float
    squared_norm: float
    layer_norms: Tensor
    weight_tails: Tensor
    weight_ranks: Tensor
    activation_tails: Tensor
    activation_ranks: Tensor
    activation_norms: Tensor
    nonlinearities: Tensor
    tail_speeds: Tensor
    nonnegative: bool
    part: tuple[float, float]

    @property
    def speed(self) -> float:
        """The speed s with every layer scaled to norm 1."""
        return self.share * self.x_norm * self.g_norm

    @property
    def constant(self) -> float:
        """Constant c = (||X|| ||G|| / s) (2 log(||X|| ||G|| / s))^{1/2} of T38."""
        return math.sqrt(max(-2 * math.log(self.share), 0.0)) / self.share

    @property
    def errors(self) -> Tensor:
        """||E||_F of A_l = s_1 v u^T + E for l = 0, ..., L-1, (L,), plus a bound on its rounding error."""
        return (self.activation_tails.sqrt() + ROUNDING) * self.activation_norms

    @property
    def ratios(self) -> list[Ratio]:
        """The numbers that T38 bounds: tails of W_l and sigma(Z_l), and nonlinearities of Z_l."""
        kinds = [
            ("the tail of W_{}", self.weight_tails, 1 - 1 / self.weight_ranks.double()),
            ("the tail of sigma(Z_{})", self.activation_tails[1:], 1 - 1 / self.activation_ranks[1:].double()),
            ("the nonlinearity of Z_{}", self.nonlinearities, torch.ones_like(self.nonlinearities)),
        ]
        return [
            Ratio(name.format(i), i, float(value), float(largest), activation="sigma" in name)
            for name, values, limits in kinds
            for i, (value, largest) in enumerate(zip(values, limits, strict=True), 1)
        ]

    def excess(self, layer: int) -> float:
        """Return the gain in speed from rank-one layers after a layer, less what its distance from rank one explains.

        The gain is relative to the speed.
        """
        gain = float(self.tail_speeds[layer] - self.errors[layer]) - self.share
        return max(gain, 0.0) / self.share

    def bound(self, error: float, excess: float) -> float:
        """Return the bound of Proposition 3.3; for an excess speed D, its proof adds 2 D / (s - ||G|| eps)."""
        rest = self.share - error
        return (8 * error + 2 * excess * self.share) / rest if rest > 0 else math.inf


def localized(weights: Sequence[Tensor], x: Tensor, g: Tensor) -> Localized:
    """Return the quantities of T38 for a bias-free ReLU network.

    Parameters
    ----------
    weights : sequence of Tensor
        W_1, ..., W_L, each (n_l, n_{l-1}), in float64.
    x, g : Tensor
        X, (N, d_in), and G, (N, d_out), one sample per row.

    Returns
    -------
    Localized

    Raises
    ------
    NotApplicable
        If a layer, X or G is 0, or L0 is not negative, so that the speed is not positive.

    Notes
    -----
    Source: T34, T36, T38; Bantzis2025, section 3 and appendix A.4.

    Examples
    --------
    >>> x, g = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0], [0.5]])
    >>> found = localized([torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[0.5]]).double()], x, g)
    >>> round(found.speed, 12), found.activation_tails.tolist()
    (1.0, [0.5, 0.0])
    """
    device, depth = weights[0].device, len(weights)
    norms = torch.stack([_norm(w) for w in weights])
    x_norm, g_norm = float(_norm(x)), float(_norm(g))
    for what, value in {"every layer": float(norms.min()), "X": x_norm, "G": g_norm}.items():
        assume(value > 0, f"{what} is not 0")
    units = [w / n for w, n in zip(weights, norms, strict=True)]
    inputs = [_Activations(w) for w in units]
    outside = torch.zeros(depth - 1, dtype=torch.float64)  # ||sigma(Z) - Z||^2
    loss = 0.0
    for rows, targets in zip(x.split(CHUNK), g.split(CHUNK), strict=True):
        a, b = rows.to(device, torch.float64) / x_norm, targets.to(device, torch.float64) / g_norm
        for layer, weight in enumerate(units):
            inputs[layer].add(a, b)
            z = a @ weight.T
            a = z.clamp(min=0.0)
            if layer < depth - 1:
                outside[layer] += float((z - a).square().sum())
        loss += float((b * z).sum())
    assume(loss < 0, "the speed is positive", f"L0 = {loss * x_norm * g_norm:.3g} with layers of norm 1")
    spectra = [each.spectrum() for each in inputs]
    squares = torch.stack([s.square().sum() for s, _ in spectra]).cpu()
    directions = [u for _, u in spectra]
    part, one_neuron, nonnegative = _input(x / x_norm, g / g_norm, directions[0])
    relative = norms / norms.max()
    relative = (relative / relative.square().mean().sqrt()).cpu()
    later = [(each.cross @ u).norm() for each, u in zip(inputs[1:], directions[1:], strict=True)]
    return Localized(
        share=min(-loss, 1.0),
        sphere_speed=-loss * x_norm * g_norm * math.exp(float(relative.log().sum())),
        x_norm=x_norm,
        g_norm=g_norm,
        squared_norm=float(norms.square().sum()),
        layer_norms=relative,
        weight_tails=_tails([torch.linalg.svdvals(w) for w in units]),
        weight_ranks=torch.tensor([min(w.shape) for w in units]),
        activation_tails=_tails([s for s, _ in spectra]),
        activation_ranks=torch.tensor([min(len(x), w.shape[1]) for w in units]),
        activation_norms=squares.sqrt(),
        nonlinearities=outside / (outside + squares[1:]),
        tail_speeds=torch.tensor([one_neuron, *map(float, later)], dtype=torch.float64),
        nonnegative=nonnegative,
        part=part,
    )


def residual_bound(weights: Sequence[Tensor], layer_norms: Tensor) -> float:
    """Return a lower bound on ||grad L0 + s theta|| / (s ||theta||) from the weights alone.

    L0 is homogeneous in every layer, and invariant if the incoming weights of a neuron are scaled by e^t and the
    outgoing ones by e^-t. So s (||W_l||^2 - 1) and s (in^2 - out^2) are inner products of the residual with W_l and
    with directions of length (in^2 + out^2)^{1/2}; those of neurons in every second layer are mutually orthogonal.
    """
    units = [w * (n / w.norm()) for w, n in zip(weights, layer_norms.tolist(), strict=True)]
    layers = float(((layer_norms**2 - 1).abs() / layer_norms).max())
    neurons = []
    for incoming, outgoing in zip(*balance.norms(units, []), strict=True):
        parts = (incoming - outgoing) ** 2 / (incoming + outgoing)
        neurons.append(float(parts[incoming + outgoing > 0].sum()))
    return max(layers, math.sqrt(max(sum(neurons[::2]), sum(neurons[1::2])))) / math.sqrt(len(weights))


def one_deeper(net: MLP, x: Tensor, g: Tensor) -> Localized:
    """Return the measurements of the network of T39, one layer deeper than ``net``.

    Parameters
    ----------
    net : MLP
        A bias-free ReLU network with L0 < 0 and a hidden layer.
    x, g : Tensor
        X, (N, d_in), and G, (N, d_out).

    Raises
    ------
    ValueError
        If X or G is 0, or `bnrank.escape.deepen` refuses the network.

    Notes
    -----
    Source: T39 with E18; Bantzis2025, Proposition 3.2.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2) / 2**0.5, torch.eye(2) / 2**0.5]).double()
    >>> round(one_deeper(net, torch.eye(2), -torch.eye(2)).sphere_speed, 12)
    1.0
    """
    deeper = deepen(net, net.depth + 1, *(v.to(torch.float64) / _norm(v) for v in (x, g)))
    return localized([w.detach().to(torch.float64) for w in deeper.weights], x, g)


def nonnegative_part(x: Tensor, starts: Sequence[Tensor] = ()) -> Tensor:
    """Return v >= 0 of norm 1 such that X is close to v u^T, u = X^T v, by alternating projections.

    ||X - v u^T||^2 = ||X||^2 - ||X^T v||^2, and v <- (X X^T v)_+ never lowers ||X^T v|| / ||v||. Finding the optimal v
    is hard in general; the best one found is returned.

    Parameters
    ----------
    x : Tensor
        X, (N, d), not 0.
    starts : sequence of Tensor
        Directions u, (d,), to start from, in addition to the mean sample and the largest one.

    Returns
    -------
    Tensor
        v, (N,).

    Examples
    --------
    >>> x = torch.tensor([[1.0, -1.0], [2.0, -2.0]])                          # rank one, its factor u has two signs
    >>> v = nonnegative_part(x)
    >>> round(float((x - torch.outer(v, x.T @ v)).norm()), 6)
    0.0
    """
    largest = x[int(x.square().sum(1).argmax())]
    best, kept = -1.0, x.new_zeros(len(x))
    rounds = sorted((*ALTERNATIONS, EFFORT // x.numel()))[1]
    for start in (*starts, x.sum(0), largest):
        v = (x @ start.to(x)).clamp(min=0.0)
        value = -1.0
        for _ in range(rounds):
            size = float(v.norm())
            if not size:
                break
            v = v / size
            u = x.T @ v
            found = float(u.norm())
            if found > best:
                best, kept = found, v
            if found <= value * (1 + 1e-9):
                break
            value, v = found, (x @ u).clamp(min=0.0)
    return kept


class _Activations:
    """Sums over samples of a layer's inputs A: R of A = Q R, which has the singular values of A, and G^T A."""

    def __init__(self, weight: Tensor) -> None:
        self.r = weight.new_zeros(0, weight.shape[1])
        self.cross = weight.new_zeros(())
        self.nonnegative = True

    def add(self, a: Tensor, g: Tensor) -> None:
        """Add some samples."""
        self.r = torch.linalg.qr(torch.cat([self.r, a]), mode="r").R
        self.cross = self.cross + g.T @ a
        self.nonnegative = self.nonnegative and bool((a >= 0).all())

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Return the singular values and the top right singular vector, chosen non-negative if A is."""
        _, values, vectors = torch.linalg.svd(self.r, full_matrices=False)
        return values, vectors[0].abs() if self.nonnegative else vectors[0]  # |u| is a top vector, too (Perron)


def _tails(spectra: Sequence[Tensor]) -> Tensor:
    """Return sum_{i>=2} s_i^2 / sum_i s_i^2 of each list of singular values."""
    tails = [linalg.tails(values) for values in spectra]
    return torch.stack([t[1] / t[0] for t in tails]).cpu()


def _input(x: Tensor, g: Tensor, direction: Tensor) -> tuple[tuple[float, float], float, bool]:
    """Return (||E||, ||G v|| ||u||) for X = v u^T + E with v >= 0, the speed of the best neuron, and a flag.

    The neuron is the best of a few candidate directions u. The flag tells whether the top left singular vector of X can
    be chosen non-negative.
    """
    x, g = x.to(direction), g.to(direction)
    along = x @ direction
    if float(along.sum()) < 0:
        along, direction = -along, -direction
    whole = bool(along.min() >= -NEGATIVE * along.max())
    v = nonnegative_part(x, [direction, -direction])
    u = x.T @ v
    parts = zip(x.split(CHUNK), v.split(CHUNK), strict=True)
    error = math.sqrt(sum(float((rows - torch.outer(part, u)).square().sum()) for rows, part in parts))
    neurons = torch.stack([direction, -direction, u / u.norm() if u.any() else u], 1)
    one_neuron = float((g.T @ (x @ neurons).clamp(min=0.0)).norm(dim=0).max())
    return (error, float((g.T @ v).norm() * u.norm())), one_neuron, whole


def _norm(values: Tensor) -> Tensor:
    """Return the Frobenius norm in float64, without overflow or underflow of the squares."""
    values = values.to(torch.float64)
    scale = values.abs().max()
    return scale * (values / scale).norm() if scale > 0 else scale
