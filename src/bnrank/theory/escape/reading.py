"""Arguments of this room: data, the loss gradient at zero output, bias-free networks."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp

__all__ = ["data", "network", "scaled"]

Array = np.ndarray


def data(x: Tensor | Array, g: Tensor | Array) -> tuple[Array, Array]:
    """Return X, (N, d_in), and G, (N, d_out), in float64; neither may be zero."""
    x = validation.samples(x, "x")
    g = validation.samples(g, "g")
    if len(g) != len(x):
        raise ValueError(f"g: got {len(g)} samples, expected as many as x has, {len(x)}")
    result = []
    for name, value in (("x", x), ("g", g)):
        array = value.detach().to("cpu", torch.float64).numpy()
        if not array.any():
            why = "all outputs are 0" if name == "x" else "the loss does not change to first order"
            raise ValueError(f"{name}: got zeros only, expected a direction of escape to exist; with {name} = 0 {why}")
        result.append(array)
    return result[0], result[1]


def scaled(x: Array, g: Array) -> tuple[Array, Array, float]:
    """Return X and G of Frobenius norm 1, and the product of their norms; RangeError if that is no normal float."""
    x_largest, g_largest = float(np.abs(x).max()), float(np.abs(g).max())
    x, g = x / x_largest, g / g_largest
    x_norm, g_norm = float(np.linalg.norm(x)), float(np.linalg.norm(g))
    units = x_largest * g_largest * (x_norm * g_norm)
    if not np.finfo(float).tiny <= units < math.inf:
        raise validation.RangeError(
            f"x, g: got largest entries {x_largest:.3g} and {g_largest:.3g}, expected ||X|| ||G||, the unit of the "
            "speed, between 2.2e-308 and 1.8e308; multiply x or g by a number, and the speed is multiplied by it"
        )
    return x / x_norm, g / g_norm, units


def network(net: nn.Module, inputs: int, outputs: int) -> tuple[list[Array], float]:
    """Return W_1, ..., W_L on the sphere ||theta||^2 = L, in float64, and the slope of a bias-free network."""
    mlp = as_mlp(net)
    if mlp.biases:
        raise ValueError(
            "net: got a network with biases, expected none. The outputs of networks with biases are not homogeneous in "
            "the parameters, and the theory of escape from the origin (T34 to T41) is about those without; make the "
            "layers with bias=False"
        )
    if mlp.widths[0] != inputs or mlp.widths[-1] != outputs:
        shape = f"{mlp.widths[0]} inputs and {mlp.widths[-1]} outputs"
        raise ValueError(f"net: got {shape}, expected {inputs} and {outputs}, as x and g have")
    weights = [w.detach().to("cpu", torch.float64).numpy() for w in mlp.weights]
    largest = max(float(np.abs(w).max()) for w in weights)
    if not 0 < largest < math.inf:
        raise ValueError("net: got parameters that are all zero or not finite, expected a direction in parameter space")
    weights = [w / largest for w in weights]
    norm = math.sqrt(sum(float((w * w).sum()) for w in weights))
    return [w * (math.sqrt(len(weights)) / norm) for w in weights], mlp.slope
