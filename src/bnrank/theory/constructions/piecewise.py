"""Networks of piecewise linear functions: the cross, a diverging geodesic, maxima of affine maps, other slopes."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.mlp import MLP

Arrays = Tensor | np.ndarray | Sequence[Tensor | np.ndarray]


def cross() -> MLP:
    """Return the network of f(x0, x1) = m (sign x0, sign x1), m = min(|x0|, |x1|): Jacobian rank 1, bottleneck rank 2.

    f is continuous and piecewise linear, and the identity where |x0| = |x1|. Jf has rank 1 inside every linear region,
    so Rank_J(f) = 1. The cross |x0| = |x1|, which f maps to itself, does not embed in a line, so Rank_BN(f) = 2.

    Layer 1 computes the positive and negative parts of x0 - x1 and x0 + x1. Layer 2 has one neuron per quadrant, e.g.
    max(0, min(x0, x1)) = max(0, ((x0 + x1)_+ - |x0 - x1|) / 2). Layer 3 applies the signs of each quadrant.
    ||theta||^2 = 19.

    Returns
    -------
    MLP
        A ReLU network with widths 2, 4, 4, 2, without biases, in float64. Depth 3 is minimal, as f is odd and not
        linear.

    Notes
    -----
    Source: T19 (E9); Jacot2023a, Example 1, with the smaller coordinate kept.

    Examples
    --------
    >>> import torch
    >>> cross()(torch.tensor([[2.0, -2.0], [3.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)).tolist()
    [[2.0, -2.0], [1.0, -1.0], [0.0, 0.0]]
    """
    first = torch.tensor([[1, -1], [-1, 1], [1, 1], [-1, -1]], dtype=torch.float64)
    # rows: quadrants ++, --, +-, -+; columns: the parts (x0 - x1)_+, (x0 - x1)_-, (x0 + x1)_+, (x0 + x1)_-
    second = torch.tensor([[-1, -1, 1, 0], [-1, -1, 0, 1], [1, 0, -1, -1], [0, 1, -1, -1]], dtype=torch.float64) / 2
    third = torch.tensor([[1, -1, 1, -1], [1, -1, -1, 1]], dtype=torch.float64)
    return Chain([first, second, third], [], 0.0).network()


def diverging_geodesic(depth: int, gamma: float = 0.75, a: float = 1.0) -> MLP:
    """Return a network of f(x, y, z) = (x, y, z + a max(0, x - y)) on R^3_+ whose representations diverge with depth.

    Let eps = L^-gamma and u = (L - 2) eps. For even L, layers 1 to L/2 - 1 are diag(e^eps, e^eps, e^(-2 eps)). Layer
    L/2 adds a fourth neuron with row sqrt(a) e^(-u/2) (1, -1, 0), and layer L/2 + 1 adds this neuron to z with weight
    sqrt(a) e^(-u). The remaining layers are diag(e^-eps, e^-eps, e^(2 eps)). The norm is

        ||theta||^2 = 6 + a (2 e^(-u) + e^(-2u)) + (L - 2) (2 cosh 2 eps + cosh 4 eps) = 3 L + 12 L^(1 - 2 gamma) + ...

    so R0 = 3 and R1 = 0, while values in the middle layers reach e^(u/2) times the inputs, u = L^(1 - gamma) - ... For
    odd L one more layer follows the middle than precedes it, and the layers after the middle invert those before it in
    equal steps.

    Parameters
    ----------
    depth : int
        L >= 2.
    gamma : float
        Exponent in (1/2, 1). Above 1/2 the norm approaches 3L; below 1 the representations diverge.
    a : float
        Strength of the nonlinear term, a >= 0.

    Returns
    -------
    MLP
        A ReLU network without biases, in float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T31, with the norm of E10; Jacot2023b, Example 20.

    Examples
    --------
    >>> import torch
    >>> net = diverging_geodesic(1000)
    >>> f = net(torch.tensor([[1.0, 0.25, 0.5]], dtype=torch.float64)).detach()
    >>> [round(v, 12) for v in f[0].tolist()]
    [1.0, 0.25, 1.25]
    >>> round(sum(float((p * p).sum().detach()) for p in net.parameters()) - 3000, 2)         # 12 / sqrt(1000) = 0.38
    0.39
    """
    depth, a, gamma = validation.depth(depth, 2), validation.number(a, "a", 0.0), validation.number(gamma, "gamma")
    validation.expect(0.5 < gamma < 1, "gamma", f"{gamma:g}", "a number in the open interval (1/2, 1)")
    before, after = (depth - 2) // 2, depth - 2 - (depth - 2) // 2
    eps = depth**-gamma
    total = 2 * before * eps  # u
    back = total / (2 * after) if after else 0.0
    direction = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)
    eye, root = torch.eye(3, dtype=torch.float64), math.sqrt(a)
    row = root * math.exp(-total / 2) * torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    column = root * math.exp(-total) * torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    weights = [
        *[torch.diag(torch.exp(eps * direction))] * before,
        torch.cat([eye, row]),
        torch.cat([eye, column], 1),
        *[torch.diag(torch.exp(-back * direction))] * after,
    ]
    return Chain(weights, [], 0.0).network()


def wavering(t: float) -> MLP:
    """Return the network at time t of a curve whose direction converges while a neuron turns on and off forever.

    W_1 = [[t + sin t, t], [2t, t]] and W_2 = [t, t], ReLU, without biases. The direction theta / ||theta|| converges to
    (1, 1, 2, 1, 1, 1) / 3, at the rate 1/t. No entry of the limit is 0, and all weights are positive for t > 0: the
    signs are stable (T43). At x = (1, -1), however, the preactivations are sin t and t, so that the first neuron is
    active for t in (0, pi), inactive in (pi, 2 pi), and so on. The limit is on the boundary of an activation pattern.
    Hence convergence in direction does not imply stable activations, and pairs of neurons need not be conserved from
    some time on (T44), as the rate of T47 does not vanish where the patterns differ.

    Parameters
    ----------
    t : float
        Time, positive, at most 1e12, beyond which rounding hides sin t.

    Returns
    -------
    MLP
        The network, in float64.

    Raises
    ------
    TypeError, ValueError
        If t is not a number in this range.

    Notes
    -----
    Source: T43, T44; LeJegelka2022, claim 2, on a network instead of a set of points. The curve is a function of time,
    as in the source; it is not claimed to be the gradient flow of a loss.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> [bool(wavering(t).weights[0][0] @ x > 0) for t in (1.0, 4.0, 7.0, 10.0)]
    [True, False, True, False]
    """
    t = validation.number(t, "t", 0.0, strict=True)
    validation.expect(t <= 1e12, "t", f"{t:g}", "at most 1e12")
    first = torch.tensor([[t + math.sin(t), t], [2 * t, t]], dtype=torch.float64)
    return Chain([first, torch.tensor([[t, t]], dtype=torch.float64)], [], 0.0).network()


def max_of_affine(a: Arrays, b: Arrays | None = None, signs: Tensor | np.ndarray | None = None) -> MLP:
    """Return the ReLU network of a maximum of m affine maps, or of a signed sum of such maxima.

    f(x) = max_i (a_i . x + b_i) for one group of maps, and f(x) = sum_g signs_g max_i (a_gi . x + b_gi) for several
    groups. Every finite piecewise linear function on R^d is such a sum with at most d + 1 maps per group.

    The maximum is computed by pairwise comparison, max(u, v) = v + max(u - v, 0). The value v, and an unpaired value,
    are represented by max(v, 0) and max(-v, 0). If m is the largest number of maps in a group, the depth is
    ceil(log2 m) + 1; for m = d + 1 this is ceil(log2(d + 1)) + 1, as in the theory. For m >= 2 a power of 2 and G
    groups, the norm is

        sum over pairs (u, v) of the maps (|u - v|^2 + 2 |v|^2)  +  12 G (m/4 + m/8 + ... + 1)  +  3 sum signs^2

    where |.| includes the weights and the bias of a map.

    Parameters
    ----------
    a : Tensor, ndarray or sequence of them
        Shape (m, d) for one group, and (G, m, d) or a sequence of (m_g, d) for several.
    b : Tensor, ndarray or sequence of them, optional
        Shape (m,), (G, m) or a sequence of (m_g,). Default: zero.
    signs : Tensor or ndarray, optional
        Coefficients of the maxima, shape (G,) for one output or (d_out, G); integers count as float64. Default: ones.

    Returns
    -------
    MLP
        A ReLU network in the highest precision of the arguments, with biases if ``b`` is given. Use :func:`with_slope`
        for other slopes.

    Raises
    ------
    TypeError, ValueError
        If an argument is not such an array, or if shapes do not match.

    Notes
    -----
    Source: T20; Jacot2023a, Appendix E.1.

    Examples
    --------
    >>> import torch
    >>> net = max_of_affine(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))          # max(x0, x1, 0)
    >>> net.depth, net(torch.tensor([[2.0, 3.0], [-1.0, -2.0]])).flatten().tolist()
    (3, [3.0, 0.0])
    >>> absolute = max_of_affine(torch.tensor([[[1.0], [-1.0]], [[1.0], [0.0]]]), signs=torch.tensor([1.0, -2.0]))
    >>> absolute(torch.tensor([[2.0], [-2.0]])).flatten().tolist()                       # |x| - 2 max(x, 0)
    [-2.0, 2.0]
    """
    slopes = _groups(a, "a", "(m, d), (G, m, d) or a sequence of (m_g, d)", 2)
    shapes, dtype, device, d = [tuple(s.shape) for s in slopes], slopes[0].dtype, slopes[0].device, slopes[0].shape[1]
    same = all(columns == d for _, columns in shapes)
    validation.expect(same, "a", f"groups of shapes {shapes}", "the same number of columns")
    offsets = [] if b is None else _groups(b, "b", "(m,), (G, m) or a sequence of (m_g,)", 1)
    fits = b is None or [len(o) for o in offsets] == [rows for rows, _ in shapes]
    validation.expect(fits, "b", f"shapes {[tuple(o.shape) for o in offsets]}", f"one number per row of a, {shapes}")
    count = len(slopes)
    coefficients = torch.ones(1, count, dtype=dtype)
    if signs is not None:
        expected = f"({count},) or (d_out, {count})"
        coefficients = torch.atleast_2d(validation.real(signs, "signs", f"numbers of shape {expected}"))
        fits = coefficients.ndim == 2 and coefficients.shape[1] == count and len(coefficients) > 0
        validation.expect(fits, "signs", f"shape {tuple(coefficients.shape)}", expected)
    for tensor in [coefficients, *slopes, *offsets]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    coefficients = coefficients.to(device, torch.float64)
    maps = [s.to(device, torch.float64) for s in slopes]
    if offsets:  # biases as a last column
        maps = [torch.cat([s, o.to(s)[:, None]], 1) for s, o in zip(maps, offsets, strict=True)]
    most = max(rows for rows, _ in shapes)
    maps = [torch.cat([s, s[-1:].expand(most - len(s), -1)]) for s in maps]  # repeated maps do not change the maximum
    rest: list[Tensor] = []
    if most == 1:
        first = coefficients @ torch.cat(maps)
    else:
        match, winners = (m.to(device) for m in _round(most))
        first = torch.cat([match @ group for group in maps])
        while len(winners) > 1:
            match, following = (m.to(device) for m in _round(len(winners)))
            rest.append(torch.block_diag(*[match @ winners] * count))
            winners = following
        rest.append(torch.kron(coefficients, winners))
    biases = [first[:, d], *[w.new_zeros(len(w)) for w in rest]] if offsets else []
    return Chain([first[:, :d], *rest], biases, 0.0, dtype, device).network()


def _round(m: int) -> tuple[Tensor, Tensor]:
    """Return T and C with C relu(T v) = (max(v_1, v_2), max(v_3, v_4), ...); an unpaired last entry is unchanged."""
    matches = [[{i: 1.0, i + 1: -1.0}, {i + 1: 1.0}, {i + 1: -1.0}] for i in range(0, m - 1, 2)]
    if m % 2:
        matches.append([{m - 1: 1.0}, {m - 1: -1.0}])
    rows = [row for match in matches for row in match]
    match = torch.tensor([[row.get(i, 0.0) for i in range(m)] for row in rows], dtype=torch.float64)
    signs = [torch.tensor([[1.0, 1.0, -1.0][-len(match) :]], dtype=torch.float64) for match in matches]
    return match, torch.block_diag(*signs)


def _groups(value: Arrays, name: str, shape: str, ndim: int) -> list[Tensor]:
    if isinstance(value, list | tuple) and value:
        return [validation.array(v, f"{name}[{i}]", shape, ndim) for i, v in enumerate(value)]
    tensor = validation.array(value, name, shape, ndim, ndim + 1)
    return [tensor] if tensor.ndim == ndim else list(tensor)


def with_slope(net: nn.Module, slope: float) -> MLP:
    """Return the network of the same function with another slope s and twice as many neurons.

    If the network has slope r, sigma_r(z) = (1 - r s) / (1 - s^2) sigma_s(z) + (s - r) / (1 - s^2) sigma_s(-z). Every
    hidden layer W is therefore replaced by the stacked W and -W. For ReLU (r = 0) this is
    max(0, z) = (sigma_s(z) + s sigma_s(-z)) / (1 - s^2), and for linear networks (r = 1)
    z = (sigma_s(z) - sigma_s(-z)) / (1 + s).

    The squared norms are multiplied by 2 for layer 1 and the hidden biases, by
    q = ((1 - r s)^2 + (s - r)^2) / (1 - s^2)^2 for the last weight, and by 2q for the weights in between.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; it is not modified.
    slope : float
        s in (-1, 1). If it is the slope of the network, a copy is returned.

    Returns
    -------
    MLP
        In the precision of ``net``.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain or the slope is out of range.

    Notes
    -----
    Source: T20 with the sign of E1; Jacot2023a, Corollary 1.

    Examples
    --------
    >>> import bnrank, torch
    >>> net, x = bnrank.MLP([3, 8, 8, 2], seed=0), torch.ones(1, 3)
    >>> leaky = with_slope(net, 0.3)
    >>> leaky.slope, leaky.widths, torch.allclose(leaky(x), net(x), atol=1e-6)
    (0.3, [3, 16, 16, 2], True)
    """
    layers, s = read_chain(net, "net"), validation.slope(slope)
    r = layers.slope
    if r == s:
        return layers.network()
    same, other = (1 - r * s) / (1 - s**2), (s - r) / (1 - s**2)
    weights, biases = list(layers.weights), list(layers.biases)
    for i in range(layers.depth - 1):
        weights[i] = torch.cat([weights[i], -weights[i]])
        weights[i + 1] = torch.cat([same * weights[i + 1], other * weights[i + 1]], 1)
        if biases:
            biases[i] = torch.cat([biases[i], -biases[i]])
    return replace(layers, weights=weights, biases=biases, slope=s).network()
