"""The fastest escape with one neuron per layer: max over unit v of ||G^T sigma(X v)|| (T38 to T41)."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank.theory.escape import reading
from bnrank.theory.escape.one_neuron_search import Neuron, ascend, best_on_circle, branch_and_bound, norm_bound

BRANCHING_RANK = 5  # largest rank of the inputs for branch and bound over cones
ZERO = 1e-14  # speeds up to this times ||X||_op ||G||_op count as 0
SMALLEST = 1e-290  # smallest product of the largest entries of X and G


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
        :func:`~bnrank.theory.escape.joins.join_rate` lets every sample choose its side of a kink.
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


def rank_one_speed(
    x: Tensor | np.ndarray,
    g: Tensor | np.ndarray,
    *,
    slope: float = 0.0,
    starts: int = 64,
    steps: int = 150,
    rtol: float = 1e-6,
    max_cones: int = 20_000,
    seed: int = 0,
) -> OneNeuron:
    """Return the largest speed at which a chain of single neurons leaves the origin.

    Layers v^T, 1, ..., 1, u with unit vectors v and u lie on the sphere ||theta||^2 = L, and L0 there is
    u^T G^T sigma(X v). With the best u the speed s = -L0 is

        s = max_{||v|| = 1} ||G^T sigma(X v)||_2,

    the same at every depth of at least 2 for ReLU. For a leaky ReLU, ``slope`` is the slope of all hidden layers
    combined, slope^{L-1}.

    The result is exact (up to rounding) if the inputs span one or two dimensions: then G^T sigma(X v) = M v on the arcs
    between the kinks, and ||M v|| is largest at a stationary angle of the quadratic form or at an end of an arc. It is
    also exact for slope 1, where s = ||G^T X||_op. Otherwise it is a bracket. The lower end is the best of many
    projected ascents with decaying steps and exact searches over great circles. The upper end is the smaller of two
    bounds: one from branch and bound, stopped at ``max_cones`` cones, for inputs of rank 5 or less, and one from norms
    (:func:`~bnrank.theory.escape.one_neuron_search.norm_bound`).

    Parameters
    ----------
    x : Tensor or ndarray
        Samples, (N, d_in).
    g : Tensor or ndarray
        G, the gradient of the loss at zero output, (N, d_out), including factors of the loss such as 1/N.
    slope : float
        s in (-1, 1]; 0 is ReLU, 1 the identity.
    starts, steps : int
        Number of ascents, and steps of each. A step costs 4 N (d_in + d_out) operations per start.
    rtol : float
        Branch and bound stops at upper - lower <= rtol lower.
    max_cones : int
        Branch and bound also stops once it has bounded this many cones; 0 skips it.
    seed : int
        Random seed of the starts.

    Returns
    -------
    OneNeuron
        If sigma(X v) is orthogonal to G for every v, no chain changes the loss; then the speed is 0, with a note.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or X or G is zero (the loss is then flat at the origin to first order).
        RangeError, a ValueError, if max |x| max |g|, the order of magnitude of the speed, is not between 1e-290 and
        1e290.

    Notes
    -----
    Source: T40 and T41; Bantzis2025, Example 1 and Figure 5.

    Examples
    --------
    >>> angle = 2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8
    >>> x, g = torch.stack([angle.sin(), angle.cos()], 1), torch.tensor([[1.0], [-1.0]] * 4)
    >>> speed = rank_one_speed(x, g)
    >>> speed.exact, abs(speed.lower - (2**0.5 - 1)) < 1e-12
    (True, True)
    """
    (samples, gradient), slope = reading.data(x, g), validation.slope(slope, linear=True)
    size = float(np.abs(samples).max()) * float(np.abs(gradient).max())
    got = f"largest entries of product {size:g}"
    expected = f"{SMALLEST:g} to {1 / SMALLEST:g}; bring x or g to another scale, the speed is proportional to both"
    validation.expect(SMALLEST <= size <= 1 / SMALLEST, "x, g", got, expected, validation.RangeError)
    return fastest(samples, gradient, slope, starts=starts, steps=steps, rtol=rtol, max_cones=max_cones, seed=seed)


def one_neuron_speed(
    x: Tensor | np.ndarray, g: Tensor | np.ndarray, directions: Tensor | np.ndarray, *, slope: float = 0.0
) -> Tensor:
    """Return ||G^T sigma(X v)||, the speed of a chain of single neurons with the best output weights, for given v.

    Parameters
    ----------
    x, g, slope
        As in :func:`rank_one_speed`; zeros are allowed.
    directions : Tensor or ndarray
        (K, d_in); each row is normalized.

    Returns
    -------
    Tensor
        (K,), float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or a direction is zero.

    Examples
    --------
    >>> one_neuron_speed(torch.eye(2), torch.tensor([[1.0], [-1.0]]), torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    (samples, gradient), slope = reading.data(x, g, zeros=True), validation.slope(slope, linear=True)
    directions = validation.samples(directions, "directions", features=samples.shape[1])
    v = directions.detach().cpu().double().numpy()
    largest = np.abs(v).max(1, keepdims=True)
    validation.expect(largest.all(), "directions", f"zeros in row {int(largest.argmin())}", "non-zero vectors")
    v = v / largest
    norms = np.linalg.norm(v, axis=1, keepdims=True)
    (samples, x_exponent), (gradient, g_exponent) = linalg.scaled(samples), linalg.scaled(gradient)
    neuron = Neuron(samples, gradient, slope)
    return torch.from_numpy(np.ldexp(neuron.sizes(neuron.outputs((v / norms).T)), x_exponent + g_exponent))


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
    """Return the same as :func:`rank_one_speed`, for float64 arrays; zeros are allowed and give speed 0.

    With one output and ``signed``, it is the maximum of G^T sigma(X v) itself, or 0 if that is negative. Directions of
    X and of G with singular values up to ``rank_rtol`` times the largest are left out of the search. The lower end is
    evaluated on all of X and G, and the upper end accounts for the omitted directions.
    """
    starts, steps = validation.integer(starts, "starts"), validation.integer(steps, "steps")
    max_cones, seed = validation.integer(max_cones, "max_cones", 0), validation.seed(seed, bits=128)
    rtol = validation.number(rtol, "rtol", 0.0, strict=True)
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
