"""Vector fields of the flow: the cost and its gradient, the true flow, the flow of L0 and its range of validity."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.networks import MLP
from bnrank.networks.functional import Functional
from bnrank.networks.mlp import leaky_relu
from bnrank.tasks.losses import LOSSES, cost_and_gradient
from bnrank.training.ensemble import Workers, aligned, norm, split
from bnrank.training.objectives import MLPObjective


class HandCost:
    """C of an MLP with a loss supported by `MLPObjective`, with blocks of samples distributed over threads.

    In all methods ``batch`` holds sample indices, shape (1, B), or None for all samples.

    ``theta`` is the objective's own buffer: a point that is already stored there is evaluated without a copy.
    """

    def __init__(self, net: MLP, x: Tensor, y: Tensor, loss: str, workers: Workers) -> None:
        self.net, self.loss, self.workers = net, loss, workers
        self.x, self.y = aligned(x), y
        self.objective = MLPObjective(net, self.x, y, loss, 1, workers)
        self.theta = self.objective.theta[0]
        self.shapes = self.objective.shapes
        self.evaluations = 0

    def evaluate(self, theta: Tensor, batch: Tensor | None = None) -> tuple[float, Tensor]:
        """Return C and its gradient, shape (size,), in a buffer that the next call overwrites."""
        if theta.data_ptr() != self.theta.data_ptr():
            self.theta.copy_(theta)
        self.evaluations += 1
        return float(self.objective.evaluate(batch)[0]), self.objective.gradient[0]

    def outputs(self, theta: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return f_theta(X), shape (N, d_out), for a network without biases."""
        *inner, last = split(theta, self.shapes)
        a = self.x if batch is None else self.x[batch[0]]
        with self.workers.all_threads(), torch.no_grad():
            for weight in inner:
                a = leaky_relu(a @ weight.mT, self.net.slope)
            return a @ last.mT

    def at_outputs(self, outputs: Tensor, batch: Tensor | None = None) -> Tensor:
        """Return dC/dY at given outputs, shape (N, d_out), float64."""
        y = self.y if batch is None else self.y[batch[0]]
        result = outputs.to(torch.float64, copy=True).unsqueeze(0)
        cost_and_gradient(self.loss, result, y.double() if y.is_floating_point() else y, len(y))
        return result[0]


class AutogradCost:
    """C of any module in eval mode, by automatic differentiation; parameters without a gradient stay fixed."""

    def __init__(
        self, net: nn.Module, x: Tensor, y: Tensor, loss: str | Callable[..., Any], dtype: torch.dtype, workers: Workers
    ) -> None:
        self.x, self.y, self.workers = x, y, workers
        self.loss: Callable[[Tensor, Tensor], Tensor] = LOSSES[loss] if isinstance(loss, str) else loss
        self.function = Functional(net, dtype)
        self.names = [name for name, p in self.function.module.named_parameters() if p.requires_grad]
        self.fixed = {name: p for name, p in self.function.parameters.items() if name not in self.names}
        trained = [self.function.parameters[name] for name in self.names]
        self.shapes = [tuple(p.shape) for p in trained]
        self.theta = torch.cat([p.flatten() for p in trained])
        self.evaluations = 0

    def evaluate(self, theta: Tensor, batch: Tensor | None = None) -> tuple[float, Tensor]:
        """Return C and its gradient, shape (size,)."""
        self.evaluations += 1
        row = theta.detach().requires_grad_()
        x, y = (self.x, self.y) if batch is None else (self.x[batch[0]], self.y[batch[0]])
        with self.workers.all_threads(), torch.enable_grad():
            cost = self._scalar(self.loss(self._run(row, x), y))
            if not cost.requires_grad:
                raise ValueError("net, loss: got a cost without a gradient, expected a function of the parameters")
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


Cost = HandCost | AutogradCost


@dataclass
class Rate:
    """Value of the vector field at a point.

    Attributes
    ----------
    velocity : Tensor
        d theta / d tau.
    clock : float
        dt / d tau, where t is the time of the gradient flow.
    speed : float
        ||d theta / d tau||.
    cosine, slope : float
        On the plateau, the cosine of the angle between theta and -grad L0, and ||grad L0|| on the unit sphere;
        otherwise 0 and 1.
    cost, gradient_norm : float
        C and ||grad C|| at the point.
    """

    velocity: Tensor
    clock: float
    speed: float
    cost: float
    gradient_norm: float
    cosine: float = 0.0
    slope: float = 1.0


class TrueFlow:
    """The flow d theta / dt = -grad C(theta), in time t or in relative arc length u, du = ||d theta|| / ||theta||.

    ``batch`` holds the sample indices of a step, shape (1, B), or None for all samples. ``radial`` states whether the
    error estimate includes the component along theta.
    """

    radial = True
    depth = 0

    def __init__(self, cost: Cost, time: str) -> None:
        self.cost, self.time = cost, time
        self.batch: Tensor | None = None

    def rate(self, theta: Tensor) -> Rate:
        """Return the field at a point."""
        cost, gradient = self.cost.evaluate(theta, self.batch)
        size = norm(gradient)
        if self.time == "t" or not size > 0:
            return Rate(gradient.neg(), 1.0 if self.time == "t" else math.inf, size, cost, size)
        radius = norm(theta)
        return Rate(gradient * (-radius / size), radius / size, radius, cost, size)


class Plateau:
    """The flow of L0 (T35), for a bias-free network of depth L, in the relative arc length u.

    A point is phi with theta = r phi, and ||phi|| = 1 at the start of each step, so direction and log-norm are stored
    separately. With w = ||grad L0(phi)|| on the unit sphere, d phi / du = -||phi|| grad L0 / ||grad L0|| and
    dt/du = (r ||phi||)^{2-L} / w.

    The gradient of L0 on the unit sphere is computed as the gradient of C at ``scale`` times the point, times
    scale^{1-L}. The scale is so small that the outputs change the gradient at the outputs by less than rounding.
    """

    radial = False

    def __init__(self, cost: Cost, depth: int, scale: float) -> None:
        self.cost, self.depth, self.scale = cost, depth, scale
        self.log_radius = 0.0
        self.batch: Tensor | None = None
        self._room = torch.empty_like(cost.theta)

    def rate(self, theta: Tensor) -> Rate:
        """Return the field at phi; ``cost`` is C(0) + L0 and ``gradient_norm`` is ||grad L0||, at theta = r phi."""
        size = norm(theta)
        torch.mul(theta, self.scale / size, out=self._room)
        cost, gradient = self.cost.evaluate(self._room, self.batch)
        length = norm(gradient)
        w = length * self.scale ** (1 - self.depth)
        if not length > 0:
            return Rate(torch.zeros_like(theta), math.inf, 0.0, cost, length)
        cosine = -float(torch.dot(self._room, gradient)) / (self.scale * length)
        log_r = self.log_radius + math.log(size)
        loss = cost - (linalg.exp(self.depth * log_r) - self.scale**self.depth) * w * cosine / self.depth
        clock = linalg.exp((2 - self.depth) * log_r) / w
        gradient_norm = w * linalg.exp((self.depth - 1) * log_r)
        return Rate(gradient * (-size / length), clock, size, loss, gradient_norm, cosine, w)

    def closed_form(self, rho: float) -> float:
        """Return the clock along an escape direction from radius 1 to rho, times r^{1-L} dr/dt."""
        return math.log(rho) if self.depth == 2 else math.expm1((2 - self.depth) * math.log(rho)) / (2 - self.depth)

    def outputs(self, phi: Tensor, log_radius: float, batch: Tensor | None = None) -> Tensor:
        """Return f at theta = r phi / ||phi||, shape (N, d_out), float64."""
        torch.mul(phi, self.scale / norm(phi), out=self._room)
        return self.cost.outputs(self._room, batch).double() * linalg.exp(
            self.depth * (log_radius - math.log(self.scale))
        )


System = TrueFlow | Plateau


LIPSCHITZ = {"mse": 2.0, "cross_entropy": 0.5, "logistic": 0.25}  # Lipschitz constants of N grad C in the outputs


class Origin:
    """The neighborhood of the origin, where the gradient at the outputs is nearly G = grad C(0) (T34).

    The criterion is ||grad C(Y) - G||_F / ||G||_F at the outputs Y. For "mse", "cross_entropy" and "logistic" it is at
    most c ||Y||_F / ||G||_F with c = 2/N, 1/(2N) and 1/(4N), the Lipschitz constants of grad C. In turn,
    ||Y||_F <= (r / sqrt L)^L ||X||_F (T35). If this bound is sufficient, no outputs are computed.

    Parameters
    ----------
    cost : Cost
        Cost of a bias-free network.
    depth : int
        L.
    loss : object
        Name of the loss, or a function.
    theta : Tensor
        Initial parameters of the flow.
    """

    def __init__(self, cost: Cost, depth: int, loss: object, theta: Tensor) -> None:
        self.cost, self.depth = cost, depth
        self.lipschitz = LIPSCHITZ[loss] if isinstance(loss, str) else math.inf
        self.gradient: Tensor | None = None
        self.size = norm(cost.x.flatten())
        if not self.size > 0:
            raise ValueError("x: got zeros only, whose outputs are zero whatever the parameters")
        if not norm(theta) > 0:
            raise ValueError("plateau: got a network of zero parameters, which is the saddle itself")
        whole = None if math.isinf(self.lipschitz) else torch.zeros(1, 1, dtype=torch.int64, device=cost.x.device)
        sample = cost.outputs(theta, whole)
        self.zero = sample.new_zeros(len(cost.x), *sample.shape[1:], dtype=torch.float64)
        if not norm(cost.at_outputs(self.zero).flatten()) > 0:
            raise ValueError("plateau: G, the gradient of the loss at zero outputs, is zero; there is no escape")
        self.plateau = Plateau(cost, depth, self._scale(sample.double()))

    def _scale(self, sample: Tensor) -> float:
        """Return the largest norm of theta, a power of two up to 1, at which the outputs are below rounding.

        They are below rounding if the criterion is at most a tenth of the machine epsilon, for the largest outputs that
        the bound allows.
        """
        target = 0.1 * torch.finfo(self.cost.theta.dtype).eps
        size = norm(sample.flatten())
        for exponent in range(0, -300, -1):
            bound = self.bound(exponent * math.log(2), None)
            if math.isfinite(self.lipschitz):
                ratio = self._ratio_bound(exponent * math.log(2), None)
            else:
                ratio = self._ratio(sample * (bound / size) if size > 0 else self.zero + bound, None)
            if ratio <= target:
                return 2.0**exponent
        raise ValueError("loss: its gradient at zero outputs is not continuous, so that there is no plateau to skip")

    def bound(self, log_radius: float, batch: Tensor | None) -> float:
        """Return (r / sqrt L)^L ||X||_F, an upper bound on ||Y||_F."""
        size = self.size if batch is None else norm(self.cost.x[batch[0]].flatten())
        return math.exp(min(self.depth * (log_radius - 0.5 * math.log(self.depth)), 700)) * size

    def measured(self, theta: Tensor, log_radius: float, batch: Tensor | None) -> tuple[float, float]:
        """Return the criterion and ||Y||_F at r theta / ||theta||."""
        outputs = self.plateau.outputs(theta, log_radius, batch)
        return self._ratio(outputs, batch), norm(outputs.flatten())

    def exceeds(self, theta: Tensor, log_radius: float, batch: Tensor | None, handover_rtol: float) -> bool:
        """Return whether the criterion is violated; the outputs are computed only if the bound is not sufficient."""
        return self._ratio_bound(log_radius, batch) > handover_rtol < self.measured(theta, log_radius, batch)[0]

    def room(self, theta: Tensor, log_radius: float, batch: Tensor | None, handover_rtol: float) -> float:
        """Return the factor by which ||theta|| may grow in this direction before the criterion reaches `handover_rtol`.

        The factor follows from the bound if the bound allows at least 100, otherwise from the outputs and their
        homogeneity of degree L.
        """
        ratio = self._ratio_bound(log_radius, batch)
        if not ratio * 100**self.depth <= handover_rtol:
            ratio = self.measured(theta, log_radius, batch)[0]
        return (handover_rtol / ratio) ** (1 / self.depth) if ratio > 0 else math.inf

    def _ratio_bound(self, log_radius: float, batch: Tensor | None) -> float:
        reference = self._reference(batch)
        return self.lipschitz / len(reference) * self.bound(log_radius, batch) / norm(reference.flatten())

    def _ratio(self, outputs: Tensor, batch: Tensor | None) -> float:
        reference = self._reference(batch)
        return norm((self.cost.at_outputs(outputs, batch) - reference).flatten()) / norm(reference.flatten())

    def _reference(self, batch: Tensor | None) -> Tensor:
        """Return G."""
        if batch is not None:
            return self.cost.at_outputs(self.zero[: batch.shape[1]], batch)
        if self.gradient is None:
            self.gradient = self.cost.at_outputs(self.zero)
        return self.gradient
