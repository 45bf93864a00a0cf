"""Forward and backward pass of a bias-free network: loss gradients at preactivations, one-sided where these are 0."""

import math

import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.chain import Chain
from bnrank.networks.mlp import leaky_relu
from bnrank.theory.escape.reading import Loss, gradient_at


class Pass:
    """Activations and loss gradients of a bias-free network on some samples.

    A preactivation whose absolute value is at most ``kink_rtol`` times the largest in its layer counts as 0. There the
    first-order change of the loss depends on the sign of the change of the preactivation.

    Attributes
    ----------
    weights : list of Tensor
        W_1, ..., W_L.
    activations : list of Tensor
        a_0, ..., a_{L-1}.
    outputs, at_outputs : Tensor
        f(X) and dC/df, (N, d_out).
    """

    def __init__(self, chain: Chain, loss: Loss, x: Tensor, y: object, kink_rtol: float) -> None:
        self.slope, self.loss, self.y = chain.slope, loss, y
        self.weights = [w.cpu() for w in chain.weights]
        self.activations: list[Tensor] = [x]
        self._derivatives: list[Tensor] = []  # of sigma after layers 1, ..., L - 1
        self._kinks: list[Tensor] = []
        for weight in self.weights[:-1]:
            z = self.activations[-1] @ weight.T
            self.activations.append(leaky_relu(z, self.slope))
            self._derivatives.append(self._side(z))
            self._kinks.append(z.abs() <= kink_rtol * z.abs().max())
        self.outputs = self.activations[-1] @ self.weights[-1].T
        finite = bool(torch.isfinite(self.outputs).all())
        got = "samples at which the outputs of net overflow"
        validation.expect(finite, "x", got, "samples of another scale", validation.RangeError)
        self.at_outputs = gradient_at(loss, self.outputs, y)

    def delta(self, layer: int, open_kinks: bool = False) -> Tensor:
        """Return dC/d(preactivation of a layer), (N, n_l), with sigma'(0) = slope, or 1 with ``open_kinks``."""
        if not open_kinks:
            return self._back(layer, self._derivatives)
        pairs = zip(self._kinks, self._derivatives, strict=True)
        return self._back(layer, [torch.where(kinks, 1.0, derivative) for kinks, derivative in pairs])

    def delta_range(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return center and radius, (N, n_l), of intervals that contain dC/d(preactivation) for any sides of kinks.

        The sides are chosen independently for every neuron and sample; dependencies between kinks are ignored.
        """
        low = high = self.at_outputs
        for number in range(len(self.weights) - 1, layer - 1, -1):
            weight, derivative, kinks = self.weights[number], self._derivatives[number - 1], self._kinks[number - 1]
            up, down = weight.clamp(min=0), weight.clamp(max=0)
            low, high = low @ up + high @ down, high @ up + low @ down
            sides = torch.where(kinks, 1.0, derivative), torch.where(kinks, self.slope, derivative)
            ends = torch.stack([end * side for end in (low, high) for side in sides])
            low, high = ends.amin(0), ends.amax(0)
        return (low + high) / 2, (high - low) / 2

    def respond(self, layer: int, change: Tensor, side: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output change due to a small change of a layer's preactivations, and dC/d(preactivation).

        Both are one-sided: at a kink sigma' is 1 if the propagated change is positive, and slope otherwise. The output
        change is positively homogeneous in the change of each sample. With ``side``, the signs of ``side`` determine
        the sides at the layer itself in the second result.
        """
        derivatives = list(self._derivatives)
        for number in range(layer, len(self.weights)):
            derivatives[number - 1] = self._at_kinks(number, change)
            change = (change * derivatives[number - 1]) @ self.weights[number].T
        if side is not None and layer < len(self.weights):
            derivatives[layer - 1] = self._at_kinks(layer, side)
        return change, self._back(layer, derivatives)

    def gradient_norm(self) -> float:
        """Return ||grad C||_F over all weights."""
        parts = [(self.delta(layer).T @ inputs).flatten() for layer, inputs in enumerate(self.activations, 1)]
        largest = max(float(part.abs().max()) for part in parts)  # so that no square overflows
        return largest * math.sqrt(sum(float((part / largest).square().sum()) for part in parts)) if largest else 0.0

    def _at_kinks(self, layer: int, change: Tensor) -> Tensor:
        """Return the derivatives of sigma after a layer, one-sided at kinks for a change of its preactivations."""
        return torch.where(self._kinks[layer - 1], self._side(change), self._derivatives[layer - 1])

    def _side(self, change: Tensor) -> Tensor:
        return torch.where(change > 0, 1.0, torch.full_like(change, self.slope))  # two scalars would be float32

    def _back(self, layer: int, derivatives: list[Tensor]) -> Tensor:
        delta = self.at_outputs
        for number in range(len(self.weights) - 1, layer - 1, -1):
            delta = (delta @ self.weights[number]) * derivatives[number - 1]
        return delta
