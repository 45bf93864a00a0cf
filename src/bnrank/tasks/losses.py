"""Losses: cost, gradient and Hessian with respect to a network's outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn


def cost_and_gradient(loss: str, output: Tensor, target: Tensor, n: int, weights: Tensor | None = None) -> Tensor:
    """Return the cost C of every member and overwrite the outputs with dC/d(output).

    Parameters
    ----------
    loss : "mse", "cross_entropy" or "logistic"
        "mse": C = (1/n) sum_i ||f(x_i) - y_i||^2, a sum over outputs and mean over samples, without a factor 1/2.
        "cross_entropy": C = (1/n) sum_i -log softmax(f(x_i))[y_i] (docs/theory/notation.md).
        "logistic": C = (1/n) sum_i log(1 + exp(-y_i f(x_i))) of a scalar output (T48).
    output : Tensor
        f(x), shape (members, B, d_out), for all samples or a block of them. Overwritten.
    target : Tensor
        Shape (B, d_out) or (members, B, d_out) for "mse"; the same with d_out = 1 and entries -1 and +1 for "logistic";
        class indices, shape (B,) or (members, B), for "cross_entropy".
    n : int
        Number of samples in the mean. Costs and gradients of blocks sum to those of all n samples.
    weights : Tensor, optional
        Weights of the samples, of mean 1 over all n: (B,) or (members, B). They multiply the losses.

    Returns
    -------
    Tensor
        C, shape (members,), summed in float64.
    """
    if weights is not None:
        return _weighted(loss, output, target, n, weights)
    if loss == "mse":
        residual = output.sub_(target)
        cost = residual.to(torch.float64, copy=True).square_().flatten(1).sum(1).div_(n)
        residual.mul_(2 / n)
        return cost
    if loss == "logistic":
        margin = output.mul_(target)
        # One member at a time: the last bit of these functions depends on memory alignment.
        each = torch.stack([torch.nn.functional.softplus(-row, threshold=50) for row in margin])
        cost = each.double().flatten(1).sum(1).div_(n)
        for row in margin:
            row.neg_().sigmoid_()
        margin.mul_(target).div_(-n)
        return cost
    target = target.expand(output.shape[:2]).unsqueeze(2)
    log_probability = torch.log_softmax(output, dim=2)
    cost = log_probability.gather(2, target).double().flatten(1).sum(1).div_(-n)
    torch.exp(log_probability, out=output)
    output.scatter_add_(2, target, output.new_full(target.shape, -1.0))
    output.div_(n)
    return cost


def _weighted(loss: str, output: Tensor, target: Tensor, n: int, weights: Tensor) -> Tensor:
    """Return the cost with weights, and overwrite the outputs with its gradient: see :func:`cost_and_gradient`."""
    each = weights.expand(output.shape[:2])
    if loss == "cross_entropy":
        index = target.expand(output.shape[:2]).unsqueeze(2)
        losses = -torch.log_softmax(output, dim=2).gather(2, index).squeeze(2).double()
    elif loss == "mse":
        losses = (output - target).double().square().sum(2)
    else:
        margin = output * target
        losses = torch.stack([torch.nn.functional.softplus(-row, threshold=50) for row in margin]).double().sum(2)
    cost_and_gradient(loss, output, target, n)
    output.mul_(each.unsqueeze(2))
    return (losses * each).sum(1).div_(n)


def gradient_at_zero(loss: str, y: Tensor, outputs: int | None = None) -> Tensor:
    """Return G, the gradient of the cost with respect to the outputs at zero outputs, in float64.

    "mse": G = -2 Y / N; "cross_entropy": G = (softmax(0) - Y) / N with one-hot Y (T34); "logistic":
    G = -Y / (2 N).

    Parameters
    ----------
    loss : "mse", "cross_entropy" or "logistic"
        As in :func:`cost_and_gradient`.
    y : Tensor
        Shape (N, d_out) for "mse", (N, 1) for "logistic"; class indices, shape (N,), for "cross_entropy".
    outputs : int, optional
        d_out for "cross_entropy". Default: the largest class index plus 1.

    Returns
    -------
    Tensor
        Shape (N, d_out).

    Examples
    --------
    >>> gradient_at_zero("cross_entropy", torch.tensor([0, 1]))
    tensor([[-0.2500,  0.2500],
            [ 0.2500, -0.2500]], dtype=torch.float64)
    """
    width = y.shape[1] if loss != "cross_entropy" else outputs or int(y.max()) + 1
    zero = torch.zeros(1, len(y), width, dtype=torch.float64, device=y.device)
    cost_and_gradient(loss, zero, y, len(y))
    return zero[0]


def _mean_squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().sum() / len(y)


def _logistic(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.softplus(-y * outputs, threshold=50).sum() / len(y)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": _mean_squares,
    "cross_entropy": nn.functional.cross_entropy,
    "logistic": _logistic,
}
"""C of one network as a differentiable function of outputs and y."""

SAMPLE_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda outputs, y: (outputs - y).square().sum(1),
    "cross_entropy": functools.partial(nn.functional.cross_entropy, reduction="none"),
    "logistic": lambda outputs, y: nn.functional.softplus(-y * outputs, threshold=50).sum(1),
}
"""The loss of every sample, (N,), of which C is the mean."""


def output_hessians(loss: str, outputs: Tensor, weights: Tensor) -> Tensor:
    """Return the Hessian of the cost C with respect to the outputs of every sample.

    Parameters
    ----------
    loss : "mse", "cross_entropy" or "logistic"
        As in :func:`cost_and_gradient`. None of the three Hessians depends on the targets.
    outputs : Tensor
        f(x), (N, d_out).
    weights : Tensor
        Weights of the samples in C, (N,): 1 / N if all count alike.

    Returns
    -------
    Tensor
        (N, d_out, d_out).

    Examples
    --------
    >>> output_hessians("logistic", torch.zeros(1, 1), torch.ones(1))
    tensor([[[0.2500]]])
    """
    w = weights[:, None, None]
    if loss == "mse":
        return 2 * w * torch.eye(outputs.shape[1]).to(outputs)
    if loss == "logistic":
        p = outputs.sigmoid()
        return w * (p * (1 - p))[:, :, None]
    p = outputs.softmax(1)
    return w * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
