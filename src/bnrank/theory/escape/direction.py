"""An escape direction, its speed, and how far its layers are from rank one and from linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.mlp import MLP
from bnrank.theory.escape import reading
from bnrank.training.losses import gradient_at_zero

__all__ = ["EscapeDirection", "Measures", "measures", "output_gradient", "speed"]

Array = np.ndarray


@dataclass(frozen=True)
class Measures:
    """What T38 bounds, layer by layer.

    Attributes
    ----------
    weight_rank_one : ndarray, (L,)
        sum_{i >= 2} s_i^2 / sum_i s_i^2 of W_l; 0 for rank one.
    activation_rank_one : ndarray, (L - 1,)
        The same of sigma(Z_l), the activations of all samples; NaN where they are all 0.
    nonlinearity : ndarray, (L - 1,)
        ||sigma(Z_l) - Z_l||_F^2 / ||Z_l||_F^2; NaN where Z_l is 0.
    """

    weight_rank_one: Array
    activation_rank_one: Array
    nonlinearity: Array


@dataclass(frozen=True, eq=False)
class EscapeDirection:
    """What :func:`bnrank.theory.escape.find` found.

    Attributes
    ----------
    speed : float
        s = -L0 of ``network``, on the sphere ||theta||^2 = L, in the units of x times those of g.
    network : MLP
        float64, without biases, every layer of Frobenius norm 1.
    speeds : ndarray
        Speed that every start ended with: first those drawn, then those given as ``initial``; the best one after
        polishing.
    residual : float
        min ||grad L0 + s theta|| / (s ||theta||) over the subgradients at kinks (T36), with those that
        :func:`bnrank.theory.escape.residual` names: with kinks in one layer at most the distance from the Clarke
        subdifferential. Inf where the speed is 0.
    converged : bool
        Whether the residual is at most the tolerance asked for. No proof of a maximum, not even of a local one.
    weight_rank_one, activation_rank_one, nonlinearity : ndarray
        As in :class:`Measures`.
    kinks : int
        Pairs of a neuron and a sample with preactivation 0 on which the gradient depends, parallel neurons counted
        once.
    steps : int
        Projected steps that were made.
    x, g : Tensor
        The data, (N, d_in), and G, (N, d_out), float64.
    """

    speed: float
    network: MLP
    speeds: Array
    residual: float
    converged: bool
    weight_rank_one: Array
    activation_rank_one: Array
    nonlinearity: Array
    kinks: int
    steps: int
    x: Tensor = field(repr=False)
    g: Tensor = field(repr=False)

    @property
    def depth(self) -> int:
        """L."""
        return self.network.depth

    def __str__(self) -> str:
        """Return the speed, the residual and a table of the layers."""
        state = "converged" if self.converged else "not converged"
        near = int((self.speeds >= self.speed * (1 - 1e-3)).sum()) if self.speed > 0 else 0
        lines = [
            f"escape direction of depth {self.depth}, widths {self.network.widths}: speed {self.speed:.9g}",
            f"residual {self.residual:.1e} ({state}), {self.kinks} kinks; "
            f"{near} of {len(self.speeds)} starts within 0.1 percent",
            "layer   W: beyond rank one   activations: beyond rank one   nonlinearity",
        ]
        for layer, weight in enumerate(self.weight_rank_one):
            hidden = layer < self.depth - 1
            rank = f"{self.activation_rank_one[layer]:28.2e}" if hidden else f"{'-':>28}"
            bent = f"{self.nonlinearity[layer]:14.2e}" if hidden else f"{'-':>14}"
            lines.append(f"{layer + 1:5} {weight:20.2e} {rank} {bent}")
        return "\n".join(lines)


def speed(net: nn.Module, x: Tensor | Array, g: Tensor | Array) -> float:
    """Return the escape speed s = -L0 = -sum(G * f(X)) of a network scaled to the sphere ||theta||^2 = L.

    Of an escape direction it is the rate in T37; of any other network, the rate at which the loss falls along it.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Without biases; of any norm but 0.
    x, g : Tensor or ndarray
        X, (N, d_in), and G, (N, d_out), the gradient of the loss at zero output (:func:`output_gradient`).

    Returns
    -------
    float
        Negative where the loss grows.

    Raises
    ------
    TypeError
        If the network is no chain of linear layers with one positively homogeneous activation.
    ValueError
        If it has biases, x or g is zero, sizes differ, or ||X|| ||G|| is no float (RangeError).

    Notes
    -----
    Source: T36; Bantzis2025, section 2.2. On the unit sphere L0 = -s L^{-L/2} (E2).

    Examples
    --------
    >>> import bnrank, torch
    >>> x, g = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0], [0.5]])
    >>> net = bnrank.networks.from_layers([torch.tensor([[7.0, 0.0]]), torch.tensor([[7.0]])])
    >>> round(speed(net, x, g), 12)
    3.0
    """
    x_, g_ = reading.data(x, g)
    weights, slope = reading.network(net, x_.shape[1], g_.shape[1])
    x_, g_, units = reading.scaled(x_, g_)
    *_, output = preactivations(weights, x_, slope)
    return -float((output * g_.T).sum()) * units


def preactivations(weights: Sequence[Array], x: Array, slope: float) -> list[Array]:
    """Return Z_1, ..., Z_L, (n_l, N)."""
    result = [weights[0] @ x.T]
    for w in weights[1:]:
        result.append(w @ np.where(result[-1] > 0, result[-1], slope * result[-1]))
    return result


def measures(weights: Sequence[Array], x: Array, slope: float) -> Measures:
    """Return what T38 bounds, of W_1, ..., W_L."""
    hidden = preactivations(weights, x, slope)[:-1]
    active = [np.where(z > 0, z, slope * z) for z in hidden]
    return Measures(
        np.array([_beyond_rank_one(w) for w in weights]),
        np.array([_beyond_rank_one(a) for a in active]),
        np.array([_share(a - z, z) for a, z in zip(active, hidden, strict=True)]),
    )


def _beyond_rank_one(matrix: Array) -> float:
    if min(matrix.shape) > 1 and matrix.shape[1] > 4 * matrix.shape[0]:  # few neurons, many samples
        matrix = np.asarray(np.linalg.qr(matrix.T, mode="r"))
    values = np.linalg.svd(matrix, compute_uv=False)
    return _share(values[1:], values)


def _share(part: Array, whole: Array) -> float:
    size = float(np.abs(whole).max(initial=0.0))
    if size == 0:
        return float("nan")
    return float(((part / size) ** 2).sum() / ((whole / size) ** 2).sum())


def output_gradient(
    loss: str | Callable[[Tensor, Tensor], Tensor], y: Tensor | Array, outputs: int | None = None
) -> Tensor:
    """Return G, the gradient of the loss with respect to the outputs where these are zero (T34).

    "mse": G = -2 Y / N; "cross_entropy": G = (softmax(0) - Y) / N with one-hot Y.

    Parameters
    ----------
    loss : "mse", "cross_entropy" or callable
        A callable takes outputs (N, d_out) and y, float64 where y was floating point, and returns a scalar tensor;
        the mean over the samples is its own business.
    y : Tensor or ndarray
        (N, d_out) targets for "mse", class numbers (N,) for "cross_entropy", anything for a callable.
    outputs : int, optional
        d_out. Default: columns of targets, the largest class number and 1 of integers.

    Returns
    -------
    Tensor
        (N, d_out), float64.

    Raises
    ------
    TypeError, ValueError
        If the loss is unknown, the labels do not fit it, or a callable does not return a finite gradient.

    Examples
    --------
    >>> import torch
    >>> y = torch.tensor([[1.0], [-3.0]])
    >>> output_gradient("mse", y).flatten().tolist()
    [-1.0, 3.0]
    >>> output_gradient(lambda f, y: (f - y).square().mean(), y).flatten().tolist()
    [-1.0, 3.0]
    """
    if isinstance(y, np.ndarray):
        if y.dtype.kind not in "biuf":
            raise TypeError(f"y: got {validation.describe(y)}, expected numbers")
        y = torch.from_numpy(np.ascontiguousarray(y))
    if not isinstance(y, Tensor):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray")
    if y.ndim == 0 or len(y) == 0:
        raise ValueError(f"y: got shape {tuple(y.shape)}, expected at least one sample")
    if outputs is not None:
        outputs = validation.integer(outputs, "outputs")
    if not callable(loss):
        validation.choice(loss, "loss", ["mse", "cross_entropy"])
    if loss == "mse":
        y = validation.samples(y, "y").detach().double()
        if outputs not in (None, y.shape[1]):
            raise ValueError(f"outputs: got {outputs}, expected {y.shape[1]}, the columns of y")
        return gradient_at_zero("mse", y)
    classes = _classes(y, outputs) if loss == "cross_entropy" or not y.is_floating_point() else None
    if loss == "cross_entropy":
        return gradient_at_zero("cross_entropy", y.detach().long(), classes)
    return _by_autograd(loss, y.detach(), classes or outputs or (y.shape[1] if y.ndim == 2 else 1))


def _classes(y: Tensor, outputs: int | None) -> int:
    if y.ndim != 1 or y.is_floating_point() or y.dtype is torch.bool:
        raise TypeError(f"y: got {validation.describe(y)}, expected class numbers: integers, shape (N,)")
    least, most = int(y.min()), int(y.max())
    if least < 0 or (outputs is not None and most >= outputs):
        limit = "0 or more" if outputs is None else f"0 to {outputs - 1}"
        raise ValueError(f"y: got class numbers from {least} to {most}, expected {limit}")
    return outputs or most + 1


def _by_autograd(loss: Callable[[Tensor, Tensor], Tensor] | str, y: Tensor, outputs: int) -> Tensor:
    assert callable(loss)
    zero = torch.zeros(len(y), outputs, dtype=torch.float64, device=y.device, requires_grad=True)
    with torch.enable_grad():
        value = loss(zero, y.double() if y.is_floating_point() else y)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise TypeError(f"loss: got {validation.describe(value)} from it, expected a scalar tensor that depends on f")
    (gradient,) = torch.autograd.grad(value.reshape(()), zero)
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("loss: got a gradient at zero output that is not finite, expected one that is")
    return gradient
