"""The localized loss at a network: how fast it leaves the origin, and how near to rank one each of its layers is.

Near the origin the cost of a bias-free network is C(0) + L0(theta), L0 = Tr[G^T f_theta(X)] (T34). What T38 compares
does not change when X, G or a layer is multiplied by a positive number, so all of them are scaled to Frobenius norm 1
first: that is the largest speed of any network with these ratios on the sphere ||theta||^2 = L, and nothing leaves the
range of floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from torch import Tensor

from bnrank.networks.constructions import deepen_escape
from bnrank.networks.mlp import MLP
from bnrank.theory.verdicts import NotApplicable

__all__ = ["Deeper", "Localized", "localized", "nonnegative_part", "one_deeper"]

CHUNK = 2**12  # samples at a time
DENSE = 256  # size of a matrix up to which all its eigenvalues are computed for the largest
ROUNDING = 1e-15  # what rounding can have added to or taken from a share of squared singular values
ALTERNATIONS = (10, 200)  # of the search for a non-negative part of rank one, at least and at most
EFFORT = 1 << 27  # entries of X that each start of the search goes over, between those limits
NEGATIVE = 1e-12  # of the largest entry: down to which an entry counts as non-negative


@dataclass(frozen=True)
class Localized:
    """What T38 compares, of one network on one data set.

    Tails are sum_{i>=2} s_i^2 / sum_i s_i^2, in [0, 1). A_0 = X, A_l = sigma(Z_l). Everything but ``sphere_speed`` and
    the three norms is for X, G and every layer scaled to Frobenius norm 1.

    Attributes
    ----------
    share : float
        s / (||X||_F ||G||_F) in (0, 1], s the speed -L0 with every layer scaled to norm 1.
    sphere_speed : float
        -L0 of the network scaled as a whole to ||theta||^2 = L; at most s, and s where the layers have equal norms.
    x_norm, g_norm : float
        ||X||_F and ||G||_F.
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
        The speed with the layers after A_l replaced by layers of rank one that start along u, A_l = s_1 v u^T + E, for
        l = 0, ..., L-1, (L,): ||G v|| s_1, as v and u can be chosen non-negative; at l = 0 the best of some u.
    nonnegative : bool
        Whether v can be chosen non-negative for A_0 = X.
    part : tuple of float
        ||E||_F and ||G v|| ||u|| of X = v u^T + E with v >= 0 and a least E that was found.
    """

    share: float
    sphere_speed: float
    x_norm: float
    g_norm: float
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
        """||E||_F of A_l = s_1 v u^T + E for l = 0, ..., L-1, (L,), and what rounding can have taken from it."""
        return (self.activation_tails + ROUNDING).sqrt() * self.activation_norms


def localized(weights: Sequence[Tensor], x: Tensor, g: Tensor) -> Localized:
    """Measure the localized loss of a bias-free ReLU network.

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
        If a layer, X or G is 0, or L0 is not negative: then there is no speed.

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
        if not value:
            raise NotApplicable(f"{what} is not 0")
    units = [w / n for w, n in zip(weights, norms, strict=True)]
    sums = [_Sums(w.shape[1], len(x)) for w in units]
    outside = torch.zeros(depth - 1, dtype=torch.float64)  # ||sigma(Z) - Z||^2
    loss = 0.0
    for rows, targets in zip(x.split(CHUNK), g.split(CHUNK), strict=True):
        a, b = rows.to(device, torch.float64) / x_norm, targets.to(device, torch.float64) / g_norm
        for layer, weight in enumerate(units):
            sums[layer].add(a, b)
            z = a @ weight.T
            a = z.clamp(min=0.0)
            if layer < depth - 1:
                outside[layer] += float((z - a).square().sum())
        loss += float((b * z).sum())
    if not loss < 0:
        raise NotApplicable("the speed is positive", f"L0 = {loss * x_norm * g_norm:.3g} with layers of norm 1")
    tops = [s.top() for s in sums]
    squares = torch.tensor([s.square for s in sums], dtype=torch.float64)
    part, one_neuron, nonnegative = _input(x / x_norm, g / g_norm, tops[0][1])
    relative = norms / norms.max()
    relative = (relative / relative.square().mean().sqrt()).cpu()
    return Localized(
        share=min(-loss, 1.0),
        sphere_speed=-loss * x_norm * g_norm * math.exp(float(relative.log().sum())),
        x_norm=x_norm,
        g_norm=g_norm,
        layer_norms=relative,
        weight_tails=torch.tensor([_tail(w) for w in units], dtype=torch.float64),
        weight_ranks=torch.tensor([min(w.shape) for w in units]),
        activation_tails=torch.tensor(
            [max(1 - top / s.square, 0.0) for (top, _), s in zip(tops, sums, strict=True)], dtype=torch.float64
        ),
        activation_ranks=torch.tensor([min(len(x), w.shape[1]) for w in units]),
        activation_norms=squares.sqrt(),
        nonlinearities=outside / (outside + squares[1:]),
        tail_speeds=torch.tensor(
            [one_neuron, *(float((s.cross @ u).norm()) for s, (_, u) in zip(sums[1:], tops[1:], strict=True))],
            dtype=torch.float64,
        ),
        nonnegative=nonnegative,
        part=part,
    )


@dataclass(frozen=True)
class Deeper:
    """What T39 says of the network of depth L + 1 that it makes of one of depth L.

    Attributes
    ----------
    speed : float
        -L0 on the sphere ||theta'||^2 = L + 1.
    norm : float
        ||theta'||^2 as built.
    weight_tails : tuple of float
        Of W_{L-1}, W_L and W_{L+1}.
    activation_tails : tuple of float
        Of sigma(Z_{L-1}) and sigma(Z_L).
    nonlinearity : float
        ||sigma(Z_L) - Z_L||_F^2 / ||Z_L||_F^2.
    """

    speed: float
    norm: float
    weight_tails: tuple[float, ...]
    activation_tails: tuple[float, ...]
    nonlinearity: float


def one_deeper(net: MLP, x: Tensor, g: Tensor) -> Deeper:
    """Build the network of T39 with one layer more, and measure what is said of it.

    Parameters
    ----------
    net : MLP
        A bias-free ReLU network with L0 < 0 and a hidden layer.
    x, g : Tensor
        X, (N, d_in), and G, (N, d_out).

    Returns
    -------
    Deeper

    Raises
    ------
    ValueError
        If X or G is 0, or the network is another one, see :func:`bnrank.networks.constructions.deepen_escape`.

    Notes
    -----
    Source: T39 with E18; Bantzis2025, Proposition 3.2.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2) / 2**0.5, torch.eye(2) / 2**0.5]).double()
    >>> round(one_deeper(net, torch.eye(2), -torch.eye(2)).speed, 12)
    1.0
    """
    x_norm, g_norm = float(_norm(x)), float(_norm(g))
    x, g = x.to(torch.float64) / x_norm, g.to(torch.float64) / g_norm
    deeper = deepen_escape(net, net.depth + 1, x, g)
    weights = [w.detach().to(torch.float64) for w in deeper.weights]
    sums = [_Sums(1, len(x)), _Sums(1, len(x))]
    loss = outside = 0.0
    for rows, targets in zip(x.split(CHUNK), g.split(CHUNK), strict=True):
        a, b = rows.to(weights[0]), targets.to(weights[0])
        for weight in weights[:-3]:
            a = (a @ weight.T).clamp(min=0.0)
        before = (a @ weights[-3].T).clamp(min=0.0)
        z = before @ weights[-2].T
        for total, values in zip(sums, (before, z.clamp(min=0.0)), strict=True):
            total.add(values, b)
        outside += float(z.clamp(max=0.0).square().sum())
        loss += float((b * (z.clamp(min=0.0) @ weights[-1].T)).sum())
    return Deeper(
        -loss * x_norm * g_norm,
        sum(float(w.square().sum()) for w in weights),
        tuple(_tail(w / _norm(w)) for w in weights[-3:]),
        tuple(s.tail() for s in sums),
        outside / (outside + sums[1].square),
    )


def nonnegative_part(x: Tensor, starts: Sequence[Tensor] = ()) -> Tensor:
    """Return v >= 0 of norm 1 for which X is near v u^T, u = X^T v, by alternating projections.

    ||X - v u^T||^2 = ||X||^2 - ||X^T v||^2, and v <- (X X^T v)_+ never lowers ||X^T v|| / ||v||. Which v is best is a
    hard question in general; the best one found is returned.

    Parameters
    ----------
    x : Tensor
        X, (N, d), not 0.
    starts : sequence of Tensor
        Directions u, (d,), to start from, besides the mean sample and the largest one.

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


class _Sums:
    """Sums over samples of one layer's inputs: A^T A (or A itself, where it is smaller), G^T A and ||A||^2."""

    def __init__(self, width: int, samples: int) -> None:
        self.wide = width > samples
        self.gram: Tensor | float = 0.0
        self.rows: list[Tensor] = []
        self.cross: Tensor = torch.zeros(())
        self.square = 0.0

    def add(self, a: Tensor, g: Tensor) -> None:
        """Add some samples."""
        if self.wide:
            self.rows.append(a)
        else:
            self.gram = self.gram + a.T @ a
        self.cross = self.cross.to(a) + g.T @ a
        self.square += float(a.square().sum())

    def tail(self) -> float:
        """Return sum_{i>=2} s_i^2 / sum_i s_i^2."""
        return max(1 - self.top()[0] / self.square, 0.0)

    def top(self) -> tuple[float, Tensor]:
        """Return s_1^2 and its singular vector among the features, (n,), non-negative where A is."""
        if not self.wide:
            assert isinstance(self.gram, Tensor)
            top, u = _largest(self.gram)
            return top, _same_signs(self.gram, u)
        a = torch.cat(self.rows)
        kernel = a @ a.T
        top, v = _largest(kernel)
        u = a.T @ _same_signs(kernel, v)
        return top, u / u.norm() if top > 0 else u


def _same_signs(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return |v| for a top eigenvector v of a matrix without negative entries: it is one, too (Perron)."""
    return vector.abs() if bool((matrix >= 0).all()) else vector


def _largest(matrix: Tensor) -> tuple[float, Tensor]:
    """Return the largest eigenvalue of a symmetric matrix with a vector to it."""
    n = len(matrix)
    if n > DENSE:
        start = torch.ones(n, dtype=torch.float64) + torch.arange(n, dtype=torch.float64) % 7 / 7
        try:
            values, vectors = eigsh(matrix.cpu().numpy(), k=1, which="LA", v0=start.numpy())
            return float(values[0]), torch.from_numpy(vectors[:, 0]).to(matrix)
        except ArpackNoConvergence:
            pass
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[-1]), vectors[:, -1]


def _tail(weight: Tensor) -> float:
    """Return the tail of a matrix of Frobenius norm 1."""
    gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
    return max(1 - _largest(gram)[0] / float(gram.trace()), 0.0)


def _input(x: Tensor, g: Tensor, direction: Tensor) -> tuple[tuple[float, float], float, bool]:
    """Return what is said of the inputs.

    That is ||E|| and ||G v|| ||u|| of X = v u^T + E, v >= 0; the speed of one neuron that looks along the best of these
    directions u; and whether the top singular vector of X can be v.
    """
    x, g = x.to(direction), g.to(direction)
    along = x @ direction
    if float(along.sum()) < 0:
        along, direction = -along, -direction
    whole = bool(along.min() >= -NEGATIVE * along.max())
    v = nonnegative_part(x, [direction, -direction])
    u = x.T @ v
    error = math.sqrt(
        sum(
            float((rows - torch.outer(part, u)).square().sum())
            for rows, part in zip(x.split(CHUNK), v.split(CHUNK), strict=True)
        )
    )
    neurons = torch.stack([direction, -direction, u / u.norm() if u.any() else u], 1)
    one_neuron = float((g.T @ (x @ neurons).clamp(min=0.0)).norm(dim=0).max())
    return (error, float((g.T @ v).norm() * u.norm())), one_neuron, whole


def _norm(values: Tensor) -> Tensor:
    """Return the Frobenius norm in float64, of values as large or small as floats are."""
    values = values.to(torch.float64)
    scale = values.abs().max()
    return scale * (values / scale).norm() if scale > 0 else scale
