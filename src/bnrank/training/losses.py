"""Losses of whole ensembles: value per member and the gradient with respect to the outputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def cost_and_gradient(loss: str, output: Tensor, target: Tensor, n: int) -> Tensor:
    """Return the cost C of every member and overwrite the outputs with dC/d(output).

    Parameters
    ----------
    loss : "mse", "cross_entropy" or "logistic"
        "mse": C = (1/n) sum_i ||f(x_i) - y_i||^2, sum over outputs, mean over samples, no factor 1/2.
        "cross_entropy": C = (1/n) sum_i -log softmax(f(x_i))[y_i] (docs/theory.md).
        "logistic": C = (1/n) sum_i log(1 + exp(-y_i f(x_i))) of a scalar output (T48).
    output : Tensor
        f(x), shape (members, B, d_out), for all samples or a block of them. Overwritten.
    target : Tensor
        Shape (B, d_out) or (members, B, d_out) for "mse"; the same with d_out = 1 and entries -1 and +1 for "logistic";
        (B,) or (members, B) class numbers for "cross_entropy".
    n : int
        Number of samples in the mean; the costs and gradients of blocks add up to those of the whole.

    Returns
    -------
    Tensor
        C, shape (members,), summed in float64.
    """
    if loss == "mse":
        residual = output.sub_(target)
        cost = residual.to(torch.float64, copy=True).square_().flatten(1).sum(1).div_(n)
        residual.mul_(2 / n)
        return cost
    if loss == "logistic":
        margin = output.mul_(target)
        # Member by member: the last bit of these functions depends on alignment in memory.
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


def gradient_at_zero(loss: str, y: Tensor, outputs: int | None = None) -> Tensor:
    """Return G, the gradient of the cost with respect to the outputs where these are zero, in float64.

    "mse": G = -2 Y / N; "cross_entropy": G = (softmax(0) - Y) / N with one-hot Y (T34); "logistic":
    G = -Y / (2 N).

    Parameters
    ----------
    loss : "mse", "cross_entropy" or "logistic"
        As in :func:`cost_and_gradient`.
    y : Tensor
        (N, d_out) for "mse", (N, 1) for "logistic", class numbers (N,) for "cross_entropy".
    outputs : int, optional
        d_out of "cross_entropy". Default: the largest class number plus 1.

    Returns
    -------
    Tensor
        (N, d_out).

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
"""C of one network as a function of outputs and y, for automatic differentiation."""
