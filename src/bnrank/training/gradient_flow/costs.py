"""The cost C(theta) of one network on fixed data: value, gradient, outputs, and the gradient at the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks import MLP
from bnrank.networks.functional import Functional
from bnrank.networks.mlp import leaky_relu
from bnrank.training.ensemble import Workers, aligned, split
from bnrank.training.losses import LOSSES, cost_and_gradient
from bnrank.training.objective_mlp import MLPObjective

__all__ = ["AutogradCost", "Cost", "HandCost"]


class Cost(Protocol):
    """What the integrators ask of a cost; ``batch`` holds sample numbers, shape (1, B), all samples without it."""

    theta: Tensor
    shapes: list[tuple[int, ...]]
    x: Tensor
    y: Tensor
    evaluations: int

    def evaluate(self, theta: Tensor, batch: Tensor | None = None) -> tuple[float, Tensor]:
        """Return C and its gradient, shape (size,), which lies in a buffer that the next call overwrites."""

    def outputs(self, theta: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return f_theta(X), shape (N, d_out)."""

    def at_outputs(self, outputs: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return dC/dY at given outputs, shape (N, d_out), float64."""


class HandCost:
    """C of an MLP with a loss that `MLPObjective` knows; threads share the blocks of samples.

    ``theta`` is the objective's own row: where the point to evaluate lies in it already, nothing is copied.
    """

    def __init__(self, net: MLP, x: Tensor, y: Tensor, loss: str, workers: Workers) -> None:
        self.net, self.loss, self.workers = net, loss, workers
        self.x, self.y = aligned(x), y
        self.objective = MLPObjective(net, self.x, y, loss, 1, workers)
        self.theta = self.objective.theta[0]
        self.shapes = self.objective.shapes
        self.evaluations = 0

    def evaluate(self, theta: Tensor, batch: Tensor | None = None) -> tuple[float, Tensor]:
        """Return C and its gradient; see `Cost`."""
        if theta.data_ptr() != self.theta.data_ptr():
            self.theta.copy_(theta)
        self.evaluations += 1
        return float(self.objective.evaluate(batch)[0]), self.objective.gradient[0]

    def outputs(self, theta: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return f_theta(X), shape (N, d_out)."""
        pieces = split(theta, self.shapes)
        step = 2 if self.net.bias else 1
        a = self.x if batch is None else self.x[batch[0]]
        with self.workers.all_threads(), torch.no_grad():
            for number, weight in enumerate(pieces[::step]):
                a = a @ weight.mT
                if self.net.bias:
                    a = a + pieces[2 * number + 1]
                if number < len(pieces) // step - 1:
                    a = leaky_relu(a, self.net.slope)
        return a

    def at_outputs(self, outputs: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return dC/dY at given outputs, shape (N, d_out), float64."""
        y = self.y if batch is None else self.y[batch[0]]
        result = outputs.to(torch.float64, copy=True).unsqueeze(0)
        cost_and_gradient(self.loss, result, y.double() if y.is_floating_point() else y, len(y))
        return result[0]


class AutogradCost:
    """C of any module, in eval mode, by automatic differentiation; parameters without a gradient stay as they are."""

    def __init__(
        self, net: nn.Module, x: Tensor, y: Tensor, loss: str | Callable[..., Any], dtype: torch.dtype, workers: Workers
    ) -> None:
        self.x, self.y, self.workers = x, y, workers
        self.loss: Callable[[Tensor, Tensor], Tensor] = LOSSES[loss] if isinstance(loss, str) else loss
        self.function = Functional(net, dtype)
        trained = [name for name, p in self.function.module.named_parameters() if p.requires_grad]
        self.fixed = {name: p for name, p in self.function.parameters.items() if name not in trained}
        self.names = trained
        self.shapes = [tuple(self.function.parameters[name].shape) for name in trained]
        self.theta = torch.cat([self.function.parameters[name].flatten() for name in trained])
        self.evaluations = 0

    def evaluate(self, theta: Tensor, batch: Tensor | None = None) -> tuple[float, Tensor]:
        """Return C and its gradient; see `Cost`."""
        self.evaluations += 1
        row = theta.detach().requires_grad_()
        x, y = (self.x, self.y) if batch is None else (self.x[batch[0]], self.y[batch[0]])
        with self.workers.all_threads(), torch.enable_grad():
            cost = self._scalar(self.loss(self._run(row, x), y))
            (gradient,) = torch.autograd.grad(cost, row, allow_unused=True, materialize_grads=True)
        return float(cost.detach()), gradient

    def outputs(self, theta: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return f_theta(X), shape (N, d_out)."""
        with self.workers.all_threads(), torch.no_grad():
            return self._run(theta, self.x if batch is None else self.x[batch[0]])

    def at_outputs(self, outputs: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return dC/dY at given outputs, shape (N, d_out), float64."""
        y = self.y if batch is None else self.y[batch[0]]
        leaf = outputs.detach().double().requires_grad_()
        with torch.enable_grad():
            cost = self._scalar(self.loss(leaf, y.double() if y.is_floating_point() else y))
            (gradient,) = torch.autograd.grad(cost, leaf, allow_unused=True, materialize_grads=True)
        return gradient

    def _run(self, row: Tensor, x: Tensor) -> Tensor:
        held = dict(zip(self.names, split(row, self.shapes), strict=True))
        return self.function.with_parameters(held | self.fixed, x)

    def _scalar(self, cost: Any) -> Tensor:
        if not isinstance(cost, Tensor) or cost.numel() != 1:
            raise ValueError(
                f"loss: the function returned {validation.describe(cost)}, expected a tensor of one number"
            )
        return cost.reshape(())
