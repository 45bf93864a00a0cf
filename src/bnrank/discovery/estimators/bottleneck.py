"""A network at its bottleneck: truncation to k dimensions, coordinates, and input directions."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators.counts import sample_losses
from bnrank.discovery.estimators.tables import layers_of
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
    net: MLP, x: Tensor, max_k: int, held_out: tuple[Tensor, np.ndarray] | None = None, classes: int = 0
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
    """
    places = _places(net, x[:: max(1, len(x) // CUT_ROWS)])
    full = places[-1].values
    others = _places(net, held_out[0]) if held_out is not None else []
    layers, change, errors = [], [], []
    for k in range(max_k + 1):
        made = [float(changes(full, cut.rest(cut.principal(k).project(cut.values)), classes).mean()) for cut in places]
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


def project(net: MLP, x: Tensor, layer: int, k: int) -> MLP:
    """Return F_k as a float64 network of the same widths, with W_l and b_l of one layer projected."""
    basis = next(cut for cut in _places(net, x) if cut.layer == layer).principal(k)
    assert basis.directions is not None
    onto = basis.directions @ basis.directions.T
    weights, biases = layers_of(net)
    weights[layer - 1] = onto @ weights[layer - 1]
    biases[layer - 1] = basis.origin + onto @ (biases[layer - 1] - basis.origin)
    return from_layers(weights, biases, net.slope)


def _places(net: MLP, x: Tensor) -> list[Cut]:
    with torch.no_grad():
        return [cut for cut in cuts(net, x) if cut.place in ("preactivation", "output")]


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


def coordinates_of(net: MLP, x: Tensor, layer: int, k: int) -> Coordinates:
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
    """
    net, x = net.double(), x.double()
    weights, biases = layers_of(net)
    first = from_layers(weights[:layer], biases[:layer], net.slope)
    with torch.no_grad():
        values = first(x)
    origin = values.mean(0)
    _, s, vt = torch.linalg.svd(values - origin, full_matrices=False)
    spread = s / len(x) ** 0.5
    k = min(k, len(spread))
    used = spread[:k] > DEAD * max(float(spread[0]), 1e-300)
    scale = torch.where(used, spread[:k], 1.0)
    down, up = (vt[:k].T / scale * used).T, vt[:k].T * scale * used  # z = down (a - origin), a = origin + up z

    def decoder(up: Tensor) -> MLP:
        return from_layers([up, *weights[layer:]], [origin, *biases[layer:]], net.slope)

    z = (values - origin) @ down.T
    strength, axes = torch.linalg.eigh(_mean_gram(decoder(up), z))
    axes = axes.flip(1)
    turned = z @ axes
    covariance = (turned - turned.mean(0)).T @ ((x - x.mean(0)) / x.std(0).clamp_min(1e-12))
    strongest = covariance.gather(1, covariance.abs().argmax(1, keepdim=True)).squeeze(1)
    axes = axes * torch.where(strongest < 0, -1.0, 1.0).to(z.dtype)
    encoder = from_layers(
        [*weights[: layer - 1], axes.T @ down @ weights[layer - 1]],
        [*biases[: layer - 1], axes.T @ down @ (biases[layer - 1] - origin)],
        net.slope,
    )
    influence = strength.flip(0).clamp_min(0).sqrt()
    return Coordinates(encoder, decoder(up @ axes), spread.numpy(), influence.numpy())


def sensitivity(encoder: MLP, x: Tensor, spread: Tensor) -> np.ndarray:
    """Return the sensitivity of each coordinate to each input, (k, d_in): rms of dz_j/dx_i times the spread of x_i.

    Parameters
    ----------
    encoder : MLP
        x -> z.
    x : Tensor
        Rows, (N, d_in), of which at most 500 are used.
    spread : Tensor
        Standard deviation of every input, (d_in,).
    """
    some = _some(x).double()
    squares = sum(j.square().sum(0) for j in Jacobian(encoder, some, kink_rtol=None).chunks()) / len(some)
    return (torch.as_tensor(squares).sqrt() * spread).numpy()


def _mean_gram(net: MLP, x: Tensor) -> Tensor:
    """Return mean_i J(x_i)^T J(x_i) over at most 500 rows."""
    some = _some(x)
    return torch.as_tensor(sum((j.mT @ j).sum(0) for j in Jacobian(net, some, kink_rtol=None).chunks())) / len(some)


def _some(x: Tensor) -> Tensor:
    return x[:: max(1, len(x) // GRADIENT_ROWS)]


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

    def __init__(self, net: MLP, x: Tensor) -> None:
        net, x = net.double(), x.double()
        self.center = x.mean(0)
        _, s, vt = torch.linalg.svd((x - self.center) / len(x) ** 0.5, full_matrices=False)
        varies = s > DEAD * max(float(s[0]), 1e-300)
        up = vt[varies] * s[varies, None]
        values, directions = torch.linalg.eigh(up @ _mean_gram(net, x) @ up.T)
        directions = directions.flip(1)
        self.down = (vt[varies].T / s[varies]) @ directions
        self.up = directions.T @ up
        self.spectrum = np.zeros(x.shape[1])
        self.spectrum[: len(values)] = values.flip(0).clamp_min(0).sqrt().numpy()

    def project(self, x: Tensor, number: int) -> Tensor:
        """Return x with all but the first ``number`` combinations set to their means."""
        return self.center + (x - self.center) @ self.down[:, :number] @ self.up[:number]
