"""The arguments of this package: data, loss gradients at zero output, bias-free networks."""

import math

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain

Array = np.ndarray


def data(x: Tensor | Array, g: Tensor | Array, *, zeros: bool = False) -> tuple[Array, Array]:
    """Return X, (N, d_in), and G, (N, d_out), in float64; neither may be zero unless ``zeros``."""
    x_, g_ = (validation.samples(v, name).detach().cpu().double().numpy() for name, v in (("x", x), ("g", g)))
    validation.expect(len(g_) == len(x_), "g", f"{len(g_)} samples", f"as many as x has, {len(x_)}")
    for name, value, why in (
        ("x", x_, "all outputs are 0"),
        ("g", g_, "the loss is flat at the origin to first order"),
    ):
        if not (zeros or value.any()):
            raise ValueError(f"{name}: got zeros only, expected a direction of escape to exist; with {name} = 0 {why}")
    return x_, g_


def check_depth(depth: object) -> int:
    """Return a depth of at least 2."""
    depth = validation.integer(depth, "depth")
    if depth == 1:
        raise ValueError(
            "depth: got 1, expected at least 2. At depth 1 the outputs are linear in the weights, the gradient at the "
            "origin is not 0, and there is no saddle to escape from"
        )
    return depth


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


def bias_free(net: nn.Module) -> Chain:
    """Return the layers of a network without biases."""
    chain = read_chain(net)
    if chain.biases:
        raise ValueError(
            "net: got a network with biases, expected none. The outputs of networks with biases are not homogeneous in "
            "the parameters, and the theory of escape from the origin (T34 to T41) is about those without; make the "
            "layers with bias=False"
        )
    return chain


def network(net: nn.Module, inputs: int, outputs: int) -> tuple[list[Array], float]:
    """Return W_1, ..., W_L on the sphere ||theta||^2 = L, in float64, and the slope of a bias-free network."""
    chain = bias_free(net)
    weights, _ = chain.arrays()
    if weights[0].shape[1] != inputs or len(weights[-1]) != outputs:
        shape = f"{weights[0].shape[1]} inputs and {len(weights[-1])} outputs"
        raise ValueError(f"net: got {shape}, expected {inputs} and {outputs}, as x and g have")
    largest = max(float(np.abs(w).max()) for w in weights)
    validation.expect(largest, "net", "parameters that are all zero", "a direction in parameter space")
    weights = [w / largest for w in weights]
    norm = math.sqrt(sum(float((w * w).sum()) for w in weights))
    return [w * (math.sqrt(len(weights)) / norm) for w in weights], chain.slope
