"""A network at its bottleneck: truncation to k dimensions, coordinates, and input directions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators.counts import sample_losses
from bnrank.discovery.estimators.tables import layers_of
from bnrank.discovery.estimators.weights import as_factors, drawn, mean_of
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.factorization import Cut, cuts

CUT_ROWS = 1000  # on which the layer of a cut is chosen
GRADIENT_ROWS = 500  # over which derivatives are averaged
DEAD = 1e-9  # standard deviation, relative to the largest, below which a coordinate does not vary


@dataclass(frozen=True)
class Truncation:
    """A network truncated to 0, 1, ..., K dimensions, each time at the layer where this changes the outputs least.

    Attributes
    ----------
    layers : list of int
        The layer whose preactivations are projected, for every k.
    change : ndarray
        Mean change of the outputs for every k: ||f - F_k||^2, or the divergence KL(f || F_k) of class probabilities.
    errors : ndarray
        Loss of F_k on held-out rows, (K + 1, rows); empty without any.
    """

    layers: list[int]
    change: np.ndarray
    errors: np.ndarray


def truncate(
    net: MLP,
    x: Tensor,
    max_k: int,
    held_out: tuple[Tensor, np.ndarray] | None = None,
    classes: int = 0,
    row_weights: np.ndarray | None = None,
) -> Truncation:
    """Return the truncations of a network to every number of dimensions up to ``max_k``.

    For F_k, the preactivations of one layer are projected onto the k-dimensional affine subspace that fits them best
    (T5: then F_k = h o g with inner dimension k, so that k bounds its bottleneck rank); the layer is the one that
    changes the outputs the least.

    Parameters
    ----------
    net : MLP
        The network.
    x : Tensor
        Training rows, (N, d_in).
    max_k : int
        Largest number of dimensions.
    held_out : tuple, optional
        Inputs and outputs of other rows.
    classes : int
        Number of classes, 0 for the squared error.
    row_weights : ndarray, optional
        Weights of the training rows, (N,), in subspaces and changes; the errors are those of single rows.
    """
    some, own = _some(x, row_weights, CUT_ROWS)
    places, factors = _places(net, some, own), as_factors(own)
    full = places[-1].values
    others = _places(net, held_out[0]) if held_out is not None else []
    layers, change, errors = [], [], []
    for k in range(max_k + 1):
        made = [
            float(mean_of(changes(full, cut.rest(cut.principal(k).project(cut.values)), classes), factors))
            for cut in places
        ]
        best = int(np.argmin(made))
        layers.append(places[best].layer)
        change.append(made[best])
        if held_out is not None:
            values = others[best].rest(places[best].principal(k).project(others[best].values))
            errors.append(sample_losses(values.numpy(), held_out[1], classes))
        if made[best] <= DEAD * max(change[0], 1e-12):  # further dimensions change nothing
            rest = max_k - k
            layers += layers[-1:] * rest
            change += change[-1:] * rest
            errors += errors[-1:] * rest
            break
    return Truncation(layers, np.array(change), np.array(errors))


def changes(before: Tensor, after: Tensor, classes: int) -> Tensor:
    """Return the change of the outputs, row by row: ||f - F||^2, or KL(softmax f || softmax F).

    Examples
    --------
    >>> changes(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]), 0)
    tensor([5.])
    """
    if not classes:
        return (before - after).square().sum(1)
    p, q = before.log_softmax(1), after.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def project(net: MLP, x: Tensor, layer: int, k: int, row_weights: np.ndarray | None = None) -> MLP:
    """Return F_k as a float64 network of the same widths, with W_l and b_l of one layer projected."""
    basis = next(cut for cut in _places(net, x, row_weights) if cut.layer == layer).principal(k)
    assert basis.directions is not None
    onto = basis.directions @ basis.directions.T
    weights, biases = layers_of(net)
    weights[layer - 1] = onto @ weights[layer - 1]
    biases[layer - 1] = basis.origin + onto @ (biases[layer - 1] - basis.origin)
    return from_layers(weights, biases, net.slope)


def _places(net: MLP, x: Tensor, row_weights: np.ndarray | None = None) -> list[Cut]:
    factors = as_factors(row_weights)
    with torch.no_grad():
        places = [cut for cut in cuts(net, x) if cut.place in ("preactivation", "output")]
    return places if factors is None else [replace(cut, weights=factors) for cut in places]


@dataclass(frozen=True)
class Coordinates:
    """The factors of f = h o g, g: x -> z in R^k and h: z -> y, with z of mean 0 and covariance 1 on the given rows.

    Attributes
    ----------
    encoder, decoder : MLP
        g and h, float64, in the units of the network.
    spectrum : ndarray
        Standard deviations of the layer's preactivations along their principal directions, descending.
    influence : ndarray
        Root mean square of the derivative of the outputs in each z_i, (k,), descending.
    """

    encoder: MLP
    decoder: MLP
    spectrum: np.ndarray
    influence: np.ndarray


def coordinates_of(net: MLP, x: Tensor, layer: int, k: int, row_weights: np.ndarray | None = None) -> Coordinates:
    """Return the two halves of a network, split through the k principal directions of a layer's preactivations.

    z is unique up to a rotation. Its axes are those of mean_i Jh(z_i)^T Jh(z_i), most influential first, with the sign
    for which z_j increases with the input that it correlates with most on the given rows.

    Parameters
    ----------
    net : MLP
        The network, with biases.
    x : Tensor
        Rows, (N, d_in).
    layer : int
        Counted from 1.
    k : int
        Number of coordinates, at least 1.
    row_weights : ndarray, optional
        Weights of the rows, (N,), in all means, covariances and principal directions.
    """
    factors = as_factors(row_weights)
    net, x = net.double(), x.double()
    weights, biases = layers_of(net)
    first = from_layers(weights[:layer], biases[:layer], net.slope)
    with torch.no_grad():
        values = first(x)
    origin = mean_of(values, factors)
    _, s, vt = torch.linalg.svd(_scaled(values - origin, factors), full_matrices=False)
    spread = s / len(x) ** 0.5
    k = min(k, len(spread))
    used = spread[:k] > DEAD * max(float(spread[0]), 1e-300)
    scale = torch.where(used, spread[:k], 1.0)
    down, up = (vt[:k].T / scale * used).T, vt[:k].T * scale * used  # z = down (a - origin), a = origin + up z

    def decoder(up: Tensor) -> MLP:
        return from_layers([up, *weights[layer:]], [origin, *biases[layer:]], net.slope)

    z = (values - origin) @ down.T
    strength, axes = torch.linalg.eigh(_mean_gram(decoder(up), z, row_weights))
    axes = axes.flip(1)
    turned = z @ axes
    away = x - mean_of(x, factors)
    spreads = x.std(0) if factors is None else mean_of(away.square(), factors).sqrt()
    standard = away / spreads.clamp_min(1e-12)
    covariance = (turned - mean_of(turned, factors)).T @ (standard if factors is None else standard * factors)
    strongest = covariance.gather(1, covariance.abs().argmax(1, keepdim=True)).squeeze(1)
    axes = axes * torch.where(strongest < 0, -1.0, 1.0).to(z.dtype)
    encoder = from_layers(
        [*weights[: layer - 1], axes.T @ down @ weights[layer - 1]],
        [*biases[: layer - 1], axes.T @ down @ (biases[layer - 1] - origin)],
        net.slope,
    )
    influence = strength.flip(0).clamp_min(0).sqrt()
    return Coordinates(encoder, decoder(up @ axes), spread.numpy(), influence.numpy())


def sensitivity(encoder: MLP, x: Tensor, spread: Tensor, row_weights: np.ndarray | None = None) -> np.ndarray:
    """Return the sensitivity of each coordinate to each input, (k, d_in): rms of dz_j/dx_i times the spread of x_i.

    Parameters
    ----------
    encoder : MLP
        x -> z.
    x : Tensor
        Rows, (N, d_in), of which at most 500 are used.
    spread : Tensor
        Standard deviation of every input, (d_in,).
    row_weights : ndarray, optional
        Weights of the rows, (N,).
    """
    return (_mean_over(encoder, x.double(), row_weights, torch.square).sqrt() * spread).numpy()


def _mean_gram(net: MLP, x: Tensor, row_weights: np.ndarray | None) -> Tensor:
    """Return mean_i J(x_i)^T J(x_i) over at most 500 rows."""
    return _mean_over(net, x, row_weights, lambda j: j.mT @ j)


def _mean_over(net: MLP, x: Tensor, row_weights: np.ndarray | None, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean over at most 500 rows of a function of their Jacobians."""
    some, own = _some(x, row_weights, GRADIENT_ROWS)
    factors, total, first = as_factors(own), torch.zeros((), dtype=torch.float64), 0
    for j in Jacobian(net, some, kink_rtol=None).chunks():
        values = of(j)
        if factors is not None:
            values = values * factors[first : first + len(j), None]
        total, first = total + values.sum(0), first + len(j)
    return total / len(some)


def _some(x: Tensor, row_weights: np.ndarray | None, number: int) -> tuple[Tensor, np.ndarray | None]:
    """Return about ``number`` rows evenly spaced, with their weights: a sample in proportion to weights, if given."""
    if row_weights is None or len(x) < 2 * number:
        return x[:: max(1, len(x) // number)], row_weights
    times = drawn(row_weights, number)
    return x[torch.from_numpy(times > 0)], times[times > 0].astype(float)


def _scaled(table: Tensor, factors: Tensor | None) -> Tensor:
    """Return rows times the roots of their weights."""
    return table if factors is None else table * factors.sqrt()


class InputDirections:
    """The linear combinations of inputs that f depends on, most important first.

    With x = center + S u, u of covariance 1 on the given rows, these are the principal directions of mean_i S^T
    Jf(x_i)^T Jf(x_i) S: their number does not depend on the coordinates of x, and combinations that hardly vary on the
    rows come last. A function of one output has a bottleneck of dimension 1; the number of directions still
    distinguishes functions. It is the dimension of the central mean subspace of sufficient dimension reduction,
    estimated by the outer product of gradients (Xia et al. 2002) of the network.

    Parameters
    ----------
    net : MLP
        f, in the scale of training.
    x : Tensor
        Rows, (N, d_in).
    row_weights : ndarray, optional
        Weights of the rows, (N,).

    Attributes
    ----------
    spectrum : ndarray
        Root mean square of the derivative of f along each direction, descending, (d_in,).

    Examples
    --------
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3)[:2], torch.ones(1, 2)], [torch.zeros(2), torch.zeros(1)])
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> found = InputDirections(net, x)
    >>> torch.allclose(net.double()(found.project(x, 2)), net(x))
    True
    """

    def __init__(self, net: MLP, x: Tensor, row_weights: np.ndarray | None = None) -> None:
        net, x, factors = net.double(), x.double(), as_factors(row_weights)
        self.center = mean_of(x, factors)
        centered = _scaled(x - self.center, factors)
        _, s, vt = torch.linalg.svd(centered / len(x) ** 0.5, full_matrices=False)
        varies = s > DEAD * max(float(s[0]), 1e-300)
        up = vt[varies] * s[varies, None]
        values, directions = torch.linalg.eigh(up @ _mean_gram(net, x, row_weights) @ up.T)
        directions = directions.flip(1)
        self.down = (vt[varies].T / s[varies]) @ directions
        self.up = directions.T @ up
        self.spectrum = np.zeros(x.shape[1])
        self.spectrum[: len(values)] = values.flip(0).clamp_min(0).sqrt().numpy()

    def project(self, x: Tensor, number: int) -> Tensor:
        """Return x with all but the first ``number`` combinations set to their means."""
        return self.center + (x - self.center) @ self.down[:, :number] @ self.up[:number]
