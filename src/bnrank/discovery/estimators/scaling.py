"""Units: from a table to the scale in which networks train, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bnrank.discovery.estimators.checking import constant_columns
from bnrank.networks.mlp import MLP, from_layers

__all__ = ["Scaling", "scaling"]

X_NORM, Y_NORM = 3.0, 2.0  # root mean squares of ||x|| and ||y||, those of the theory's experiments
UNLIKE = 10.0  # ratio of spreads from which outputs are taken to be in different units


@dataclass(frozen=True)
class Scaling:
    """x -> (x - x_mean) x_factor, y -> (y - y_mean) y_factor; the factor of a column that does not vary is 0.

    Attributes
    ----------
    x_mean, x_factor : ndarray
        (d_in,).
    y_mean, y_factor : ndarray
        (d_out,); mean 0 and factor 1 for class logits.
    """

    x_mean: np.ndarray
    x_factor: np.ndarray
    y_mean: np.ndarray
    y_factor: np.ndarray

    def x(self, table: np.ndarray) -> np.ndarray:
        """Return inputs in the scale of training."""
        return (table - self.x_mean) * self.x_factor

    def y(self, table: np.ndarray) -> np.ndarray:
        """Return outputs in the scale of training."""
        return (table - self.y_mean) * self.y_factor

    def unscaled_input(self, net: MLP) -> MLP:
        """Return the network that takes x in original units, float64."""
        weights = [w.detach().double() for w in net.weights]
        biases = [b.detach().double() for b in net.biases]
        factor, mean = torch.from_numpy(self.x_factor), torch.from_numpy(self.x_mean)
        weights[0] = weights[0] * factor
        biases[0] = biases[0] - weights[0] @ mean
        return from_layers(weights, biases, net.slope)

    def unscaled_output(self, net: MLP) -> MLP:
        """Return the network that gives y in original units, float64; a column that does not vary is its mean."""
        weights = [w.detach().double() for w in net.weights]
        biases = [b.detach().double() for b in net.biases]
        inverse = torch.from_numpy(
            np.divide(1.0, self.y_factor, out=np.zeros_like(self.y_factor), where=self.y_factor > 0)
        )
        weights[-1] = weights[-1] * inverse[:, None]
        biases[-1] = biases[-1] * inverse + torch.from_numpy(self.y_mean)
        return from_layers(weights, biases, net.slope)


def scaling(x: np.ndarray, y: np.ndarray | None, outputs: str = "auto", classes: int = 0) -> Scaling:
    """Return the scaling of a table: every input with the same variance; the outputs jointly, or each by itself.

    Inputs are in whatever units, so each is divided by its standard deviation, and all by the same number, for a root
    mean square ||x|| of 3. What an output's spread means is another matter: the loss is the squared error summed over
    outputs, and where they have the same unit (pixels, a spectrum, a field on a grid) an output that hardly varies
    hardly matters, and dividing by its small spread would blow up its noise. So "auto" divides all outputs by one
    number, for a root mean square ||y|| of 2, unless their standard deviations differ by more than a factor of 10, as
    they do between units; then each is divided by its own first.

    Parameters
    ----------
    x : ndarray
        (N, d_in).
    y : ndarray or None
        (N, d_out); None for class logits.
    outputs : {"auto", "jointly", "each"}
        How outputs are scaled.
    classes : int
        Number of logits where ``y`` is None.

    Examples
    --------
    >>> made = scaling(np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([[1.0], [3.0]]))
    >>> made.x_factor.tolist(), made.y_factor.tolist()
    ([3.0, 0.0], [2.0])
    """
    x_factor = _each(x, X_NORM)
    if y is None:
        return Scaling(x.mean(0), x_factor, np.zeros(classes), np.ones(classes))
    varies = ~constant_columns(y)
    spread = y.std(0)
    if outputs == "each" or (outputs == "auto" and varies.any() and np.ptp(np.log(spread[varies])) > np.log(UNLIKE)):
        y_factor = _each(y, Y_NORM)
    else:
        total = np.sqrt(np.square(spread[varies]).sum())
        y_factor = np.where(varies, Y_NORM / total if total > 0 else 0.0, 0.0)
    return Scaling(x.mean(0), x_factor, y.mean(0), y_factor)


def _each(table: np.ndarray, norm: float) -> np.ndarray:
    varies = ~constant_columns(table)
    spread = np.where(varies, table.std(0), 1.0)
    return np.where(varies, norm / (spread * np.sqrt(max(int(varies.sum()), 1))), 0.0)
