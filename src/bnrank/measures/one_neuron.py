"""The neuron of largest effect: max over unit v of ||G^T sigma(X v)||_2, found or bracketed."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank.measures.one_neuron_search import Neuron, ascend, best_on_circle, branch_and_bound, norm_bound

BRANCHING_RANK = 5  # largest rank of the inputs for branch and bound over cones
ZERO = 1e-14  # speeds up to this times ||X||_op ||G||_op count as 0


@dataclass(frozen=True)
class OneNeuron:
    """The speed of the fastest chain of single neurons, or a bracket of it; ``float()`` returns the lower end.

    Attributes
    ----------
    lower : float
        Speed of the chain found, evaluated on the data.
    upper : float
        Upper bound on the speed of every chain.
    exact : bool
        Whether both ends are the closed-form optimum, up to rounding.
    direction : Tensor
        v, the weights of the first neuron, (d_in,), ||v|| = 1.
    output : Tensor
        u, the outgoing weights of the last neuron, (d_out,), ||u|| = 1: u = -G^T sigma(X v) / s, so that L0 = -s. Zeros
        if the speed is 0.
    method : str
        Origin of the upper end: "closed form", "cones" or "norms"; "sides" if
        every sample may choose its side of a kink.
    note : str
        Remark, or empty.
    """

    lower: float
    upper: float
    exact: bool
    direction: Tensor
    output: Tensor
    method: str
    note: str = ""

    def __float__(self) -> float:
        return self.lower


def fastest(
    x: np.ndarray,
    g: np.ndarray,
    slope: float,
    *,
    signed: bool = False,
    starts: int = 64,
    steps: int = 150,
    rtol: float = 1e-6,
    max_cones: int = 20_000,
    seed: int = 0,
    rank_rtol: float = 0.0,
) -> OneNeuron:
    """Return the largest ||G^T sigma(X v)|| over unit v, of float64 arrays; zeros are allowed and give 0.

    The method and the arguments are those of `bnrank.escape.rank_one_speed`. With one output and ``signed``, it is the
    maximum of G^T sigma(X v) itself, or 0 if that is negative. Directions of X and of G with singular values up to
    ``rank_rtol`` times the largest are left out of the search. The lower end is evaluated on all of X and G, and the
    upper end accounts for the omitted directions.
    """
    starts, steps = validation.integer(starts, "starts"), validation.integer(steps, "steps")
    max_cones, seed = validation.integer(max_cones, "max_cones", 0), validation.seed(seed, bits=128)
    rtol = validation.number(rtol, "rtol", 0.0, strict=True)
    if not x.size or not g.size:
        none = "no single neuron changes the loss to first order: it has no inputs or no outputs"
        zeros = [torch.zeros(matrix.shape[1], dtype=torch.float64) for matrix in (x, g)]
        return OneNeuron(0.0, 0.0, True, zeros[0], zeros[1], "closed form", none)
    (x, x_exponent), (g, g_exponent) = linalg.scaled(x), linalg.scaled(g)
    used = x.any(1) & g.any(1)
    rows, x_left = _rows_of(x[used], rank_rtol)
    columns, g_left = _rows_of(g[used], rank_rtol)
    neuron, rank = Neuron(x, g, slope, signed), len(rows)
    v, upper, scale, exact, method = np.eye(1, x.shape[1])[0], 0.0, 0.0, True, "closed form"
    if rows.size and columns.size:
        if signed:
            columns = np.ones((1, 1))  # not its negative
        inner = Neuron(x[used] @ rows.T, g[used] @ columns.T, slope, signed)  # the data in their row spaces
        x_size, g_size = (float(np.linalg.norm(matrix, 2)) for matrix in (inner.x, inner.g))
        scale = x_size * g_size
        left_out = (x_size * g_left + g_size * x_left) * (rank_rtol > 0)  # without it, only rounding is left out
        exact = left_out == 0
        if slope == 1:
            product = inner.g.T @ inner.x
            v = product[0] if signed else np.linalg.svd(product)[2][0]
            v = v if v.any() else np.eye(rank)[0]
        elif rank == 1:
            v = np.array([1.0 if inner.size(np.ones(1)) >= inner.size(-np.ones(1)) else -1.0])
        elif rank == 2:
            angle = best_on_circle(inner)
            v = np.array([math.cos(angle), math.sin(angle)])
        else:
            exact, method, upper = False, "norms", norm_bound(inner)
            v = ascend(inner, starts, steps, np.random.default_rng(seed))
        if method == "closed form":
            upper = max(inner.size(v / np.linalg.norm(v)), 0.0)
        elif rank <= BRANCHING_RANK and max_cones:
            bound, v = branch_and_bound(inner, v, rtol=rtol, max_cones=max_cones)
            if bound <= upper:
                upper, method = bound, "cones"
        v, upper = v @ rows, upper + left_out
    v = v / np.linalg.norm(v)
    output = neuron.outputs(v[:, None])[:, 0]
    speed = float(neuron.sizes(output[:, None])[0])
    u, note = np.zeros_like(output), ""
    if speed > ZERO * scale:
        u = -output / speed
    else:
        speed, note = 0.0, "no neuron was found that changes the loss to first order"
        if exact or upper <= ZERO * scale:
            note = "no single neuron changes the loss to first order: sigma(X v) is orthogonal to G for every v"
            upper = 0.0
    upper = speed if exact else max(upper, speed)
    with np.errstate(over="ignore"):
        lower, upper = np.ldexp([speed, upper], x_exponent + g_exponent).tolist()
    if not math.isfinite(upper):
        raise validation.RangeError(f"x, g: the speed is too large for float64: {speed:g} 2^{x_exponent + g_exponent}")
    return OneNeuron(lower, upper, exact, torch.from_numpy(v), torch.from_numpy(u), method, note)


def _rows_of(matrix: np.ndarray, rtol: float = 0.0) -> tuple[np.ndarray, float]:
    """Return an orthonormal basis of the row space, (rank, columns), and the largest omitted singular value."""
    if not matrix.size:
        return matrix[:0], 0.0
    tall = matrix.shape[0] > matrix.shape[1]
    _, s, vt = np.linalg.svd(np.linalg.qr(matrix, mode="r") if tall else matrix, full_matrices=False)
    rank = int((s > max(rtol, max(matrix.shape) * np.finfo(float).eps) * s[0]).sum())
    return vt[:rank], float(s[rank]) if rank < len(s) else 0.0
