"""The fastest escape with one neuron per layer: max over unit v of ||G^T sigma(X v)|| (T38 to T41)."""

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank.measures.one_neuron import Neuron, OneNeuron, fastest
from bnrank.theory.escape import reading

SMALLEST = 1e-290  # smallest product of the largest entries of X and G


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
    (:func:`~bnrank.measures.one_neuron.norm_bound`).

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
