"""Argument checks: data, depths and bias-free networks; and gradients of a loss with respect to outputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.tasks.losses import cost_and_gradient

Array = np.ndarray
Loss = str | Callable[..., Any]
NAMED = ("mse", "cross_entropy")


def data(x: Tensor | Array, g: Tensor | Array, *, zeros: bool = False) -> tuple[Array, Array]:
    """Return X, (N, d_in), and G, (N, d_out), in float64; neither may be zero unless ``zeros``."""
    x_, g_ = (validation.samples(v, name).detach().cpu().double().numpy() for name, v in (("x", x), ("g", g)))
    validation.expect(len(g_) == len(x_), "g", f"{len(g_)} samples", f"as many as x has, {len(x_)}")
    expected = "other values: with x = 0 all outputs are 0, with g = 0 the loss is flat at the origin to first order"
    for name, value in (("x", x_), ("g", g_)):
        validation.expect(zeros or value.any(), name, "zeros only", expected)
    return x_, g_


def check_depth(depth: object) -> int:
    """Return the depth as an integer, at least 2."""
    depth = validation.integer(depth, "depth")
    why = "At depth 1 the outputs are linear in the weights, and the origin is no saddle to escape from"
    validation.expect(depth > 1, "depth", "1", f"at least 2. {why}")
    return depth


def scaled(x: Array, g: Array) -> tuple[Array, Array, float]:
    """Return X and G scaled to Frobenius norm 1, and the product of their norms; RangeError if out of float range."""
    x_largest, g_largest = float(np.abs(x).max()), float(np.abs(g).max())
    x, g = x / x_largest, g / g_largest
    x_norm, g_norm = float(np.linalg.norm(x)), float(np.linalg.norm(g))
    units = x_largest * g_largest * (x_norm * g_norm)
    got = f"largest entries {x_largest:.3g} and {g_largest:.3g}"
    expected = (
        "||X|| ||G|| between 2.2e-308 and 1.8e308; bring x or g to another scale, the speed is proportional to both"
    )
    validation.expect(np.finfo(float).tiny <= units < math.inf, "x, g", got, expected, validation.RangeError)
    return x / x_norm, g / g_norm, units


def bias_free(net: nn.Module) -> Chain:
    """Return the layers of a network without biases."""
    chain = read_chain(net)
    why = "with biases the outputs are not homogeneous in the parameters, as T34 to T41 assume"
    validation.expect(not chain.biases, "net", "a network with biases", f"layers with bias=False: {why}")
    return chain


def network(net: nn.Module, inputs: int, outputs: int) -> tuple[list[Array], float]:
    """Return W_1, ..., W_L on the sphere ||theta||^2 = L, in float64, and the slope of a bias-free network."""
    chain = bias_free(net)
    weights, _ = chain.arrays()
    sizes = weights[0].shape[1], len(weights[-1])
    got = f"{sizes[0]} inputs and {sizes[1]} outputs"
    expected = f"{inputs} and {outputs}, as x and g have"
    validation.expect(sizes == (inputs, outputs), "net", got, expected)
    largest = max(float(np.abs(w).max()) for w in weights)
    validation.expect(largest, "net", "parameters that are all zero", "a direction in parameter space")
    weights = [w / largest for w in weights]
    norm = math.sqrt(sum(float((w * w).sum()) for w in weights))
    return [w * (math.sqrt(len(weights)) / norm) for w in weights], chain.slope


def output_gradient(loss: Loss, y: Tensor | np.ndarray, outputs: int | None = None) -> Tensor:
    """Return G, the gradient of the loss with respect to the outputs at zero output (T34).

    "mse": G = -2 Y / N; "cross_entropy": G = (softmax(0) - Y) / N with one-hot Y.

    Parameters
    ----------
    loss : "mse", "cross_entropy" or callable
        A callable takes outputs (N, d_out) and y, in float64 if y is floating point, and returns a scalar tensor,
        including the mean over samples.
    y : Tensor or ndarray
        (N, d_out) targets for "mse", class indices (N,) for "cross_entropy"; class indices, or any
        floating-point values with N rows, for a callable.
    outputs : int, optional
        d_out. Default: the number of columns of the targets, or the largest class index plus 1.

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
    >>> y = torch.tensor([[1.0], [-3.0]])
    >>> output_gradient("mse", y).flatten().tolist()
    [-1.0, 3.0]
    >>> output_gradient(lambda f, y: (f - y).square().mean(), y).flatten().tolist()
    [-1.0, 3.0]
    """
    y = _labels(y)
    validation.expect(y.ndim != 0 and len(y) != 0, "y", f"shape {tuple(y.shape)}", "at least one sample")
    outputs = None if outputs is None else validation.integer(outputs, "outputs")
    loss = loss if callable(loss) else validation.choice(loss, "loss", NAMED)
    columns = y.shape[1] if y.ndim == 2 else 1
    if loss != "mse" and not y.is_floating_point():
        columns = int(validation.classes(y, "y", outputs).max()) + 1
    width = outputs or columns
    validation.expect(loss != "mse" or width == columns, "outputs", f"{outputs}", f"{columns}, the columns of y")
    gradient = gradient_at(loss, torch.zeros(len(y), width, dtype=torch.float64, device=y.device), y)
    finite = bool(torch.isfinite(gradient).all())
    validation.expect(finite, "loss", "a gradient at zero output that is not finite", "one that is")
    return gradient


def gradient_at(loss: Loss, outputs: Tensor, y: object) -> Tensor:
    """Return dC/df at the outputs f(X), (N, d_out).

    Examples
    --------
    >>> gradient_at("mse", torch.tensor([[2.0], [0.0]]), torch.ones(2, 1)).flatten().tolist()
    [1.0, -1.0]
    """
    y = _labels(y).to(outputs.device)
    if callable(loss):
        leaf = outputs.clone().requires_grad_()
        with torch.enable_grad():
            try:
                cost = loss(leaf, y.double() if y.is_floating_point() else y)
            except Exception as error:
                raise ValueError(f"loss: it raised {type(error).__name__} on outputs and y: {error}") from error
        if not isinstance(cost, Tensor) or cost.numel() != 1 or not cost.requires_grad:
            raise TypeError(f"loss: got {validation.describe(cost)}, expected a scalar tensor that depends on f")
        return torch.autograd.grad(cost.reshape(()), leaf)[0]
    validation.choice(loss, "loss", NAMED)
    count, width = outputs.shape
    y = validation.samples(y, "y", features=width).to(outputs) if loss == "mse" else validation.classes(y, "y", width)
    validation.expect(len(y) == count, "y", f"{len(y)} samples", f"as many as x has, {count}")
    gradient = outputs[None].clone()
    cost_and_gradient(loss, gradient, y, count)
    return gradient[0]


def _labels(y: object) -> Tensor:
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
        y = validation.from_array(y, "y")
    if not isinstance(y, Tensor):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray of numbers")
    return validation.dense(y, "y").detach()
