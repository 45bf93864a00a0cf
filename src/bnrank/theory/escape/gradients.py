"""Gradients of a loss with respect to the outputs of a network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.training.losses import cost_and_gradient

Loss = str | Callable[..., Any]
NAMED = ("mse", "cross_entropy")


def output_gradient(loss: Loss, y: Tensor | np.ndarray, outputs: int | None = None) -> Tensor:
    """Return G, the gradient of the loss with respect to the outputs at zero output (T34).

    "mse": G = -2 Y / N; "cross_entropy": G = (softmax(0) - Y) / N with one-hot Y.

    Parameters
    ----------
    loss : "mse", "cross_entropy" or callable
        A callable takes outputs (N, d_out) and y, float64 where y was floating point, and returns a scalar tensor; it
        takes the mean over samples itself.
    y : Tensor or ndarray
        (N, d_out) targets for "mse", class numbers (N,) for "cross_entropy", anything for a callable.
    outputs : int, optional
        d_out. Default: the number of columns of the targets, or the largest class number plus 1.

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
    width = None if outputs is None else validation.integer(outputs, "outputs")
    if not callable(loss):
        validation.choice(loss, "loss", NAMED)
    if loss == "mse":
        columns = validation.samples(y, "y").shape[1]
        validation.expect(width in (None, columns), "outputs", f"{outputs}", f"{columns}, the columns of y")
        width = columns
    elif width is None and not y.is_floating_point():
        width = int(y.max()) + 1
    elif width is None:
        width = y.shape[1] if y.ndim == 2 else 1
    if loss == "cross_entropy" or not y.is_floating_point():
        _check_classes(y, width)
    gradient = gradient_at(loss, torch.zeros(len(y), width, dtype=torch.float64, device=y.device), y)
    if not bool(torch.isfinite(gradient).all()):
        raise ValueError("loss: got a gradient at zero output that is not finite, expected one that is")
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
            cost = loss(leaf, y.double() if y.is_floating_point() else y)
        if not isinstance(cost, Tensor) or cost.numel() != 1 or not cost.requires_grad:
            raise TypeError(
                f"loss: got {validation.describe(cost)} from it, expected a scalar tensor that depends on f"
            )
        return torch.autograd.grad(cost.reshape(()), leaf)[0]
    validation.choice(loss, "loss", NAMED)
    count, width = outputs.shape
    if loss == "mse":
        y = validation.samples(y, "y", features=width).to(outputs)
    else:
        _check_classes(y, width)
    validation.expect(len(y) == count, "y", f"{len(y)} samples", f"as many as x has, {count}")
    gradient = outputs[None].clone()
    cost_and_gradient(loss, gradient, y if loss == "mse" else y.long(), count)
    return gradient[0]


def _labels(y: object) -> Tensor:
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
        y = torch.from_numpy(np.ascontiguousarray(y))
    if not isinstance(y, Tensor):
        raise TypeError(f"y: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray of numbers")
    return y.detach()


def _check_classes(y: Tensor, count: int) -> None:
    if y.ndim != 1 or y.is_floating_point() or y.dtype is torch.bool:
        raise TypeError(f"y: got {validation.describe(y)}, expected class numbers: integers, shape (N,)")
    first, last = int(y.min()), int(y.max())
    if first < 0 or last >= count:
        raise ValueError(f"y: got class numbers from {first} to {last}, expected class numbers from 0 to {count - 1}")
