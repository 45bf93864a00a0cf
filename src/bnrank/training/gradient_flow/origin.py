"""How long L0 is the whole story: the criterion for the end of the plateau around the origin."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bnrank.training.gradient_flow.costs import Cost
from bnrank.training.gradient_flow.systems import Plateau, norm

__all__ = ["Origin"]

LIPSCHITZ = {"mse": 2.0, "cross_entropy": 0.5, "logistic": 0.25}  # constants of N grad C, as a function of the outputs


class Origin:
    """The neighborhood of the origin, where the gradient at the outputs is nearly G = grad C(0) (T34).

    The criterion is ||grad C(Y) - G||_F / ||G||_F at the outputs Y. For "mse", "cross_entropy" and "logistic" it is at
    most c ||Y||_F / ||G||_F with c = 2/N, 1/(2N) and 1/(4N), the Lipschitz constants of grad C, and
    ||Y||_F <= (r / sqrt L)^L ||X||_F (T35); where this bound suffices no outputs are computed.

    Parameters
    ----------
    cost : Cost
        Of a bias-free network.
    depth : int
        L.
    loss : object
        Its name, or a function.
    theta : Tensor
        Where the flow starts.
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
        """Return the largest power of two at which the outputs vanish beside rounding, whatever the direction."""
        target = 0.1 * torch.finfo(self.cost.theta.dtype).eps
        size = norm(sample.flatten())
        exponent = 0
        while exponent > -300:
            bound = self.bound(exponent * math.log(2), None)
            if math.isfinite(self.lipschitz):
                ratio = self._ratio_bound(exponent * math.log(2), None)
            else:
                ratio = self._ratio(sample * (bound / size) if size > 0 else self.zero + bound, None)
            if ratio <= target:
                return 2.0**exponent
            exponent -= 1
        raise ValueError("loss: its gradient at zero outputs is not continuous, so that there is no plateau to skip")

    def bound(self, log_radius: float, batch: Tensor | None) -> float:
        """Return (r / sqrt L)^L ||X||_F, which bounds ||Y||_F."""
        size = self.size if batch is None else norm(self.cost.x[batch[0]].flatten())
        return math.exp(min(self.depth * (log_radius - 0.5 * math.log(self.depth)), 700)) * size

    def criterion(self, theta: Tensor, log_radius: float, batch: Tensor | None) -> float:
        """Return the criterion at r theta / ||theta||."""
        return self.measured(theta, log_radius, batch)[0]

    def measured(self, theta: Tensor, log_radius: float, batch: Tensor | None) -> tuple[float, float]:
        """Return the criterion and ||Y||_F at r theta / ||theta||."""
        outputs = self.plateau.outputs(theta, log_radius, batch)
        return self._ratio(outputs, batch), norm(outputs.flatten())

    def exceeds(self, theta: Tensor, log_radius: float, batch: Tensor | None, handover_rtol: float) -> bool:
        """Say whether the criterion is not met; by the bound where that is enough."""
        return self._ratio_bound(log_radius, batch) > handover_rtol < self.criterion(theta, log_radius, batch)

    def room(self, theta: Tensor, log_radius: float, batch: Tensor | None, handover_rtol: float) -> float:
        """Return by how much ||theta|| may grow in this direction before the criterion reaches ``handover_rtol``.

        By the bound where it leaves a factor 100, else by the outputs and the homogeneity of degree L.
        """
        ratio = self._ratio_bound(log_radius, batch)
        if not ratio * 100**self.depth <= handover_rtol:
            ratio = self.criterion(theta, log_radius, batch)
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
