"""Piecewise linear functions as networks: maxima of affine maps, the cross, and ReLU networks at other slopes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.constructions._arguments import DOUBLE, array
from bnrank.networks.mlp import MLP

Arrays = Tensor | np.ndarray | Sequence[Tensor | np.ndarray]


def cross() -> MLP:
    """Return the network of f(x0, x1) = m (sign x0, sign x1), m = min(|x0|, |x1|): Jacobian rank 1, bottleneck rank 2.

    Continuous and piecewise linear, the identity where |x0| = |x1|. Jf has rank 1 inside every linear region, so
    Rank_J(f) = 1, but the cross |x0| = |x1|, which f maps to itself, does not embed in a line, so Rank_BN(f) = 2.

    Layer 1 takes the positive and negative parts of x0 - x1 and x0 + x1, layer 2 has one neuron per quadrant, e.g.
    max(0, min(x0, x1)) = max(0, ((x0 + x1)_+ - |x0 - x1|) / 2), layer 3 gives each its signs. ||theta||^2 = 19.

    Returns
    -------
    MLP
        Widths 2, 4, 4, 2, ReLU, without biases, in float64. Depth 3 is the least, as f is odd and not linear.

    Notes
    -----
    Source: T19 (E9); Jacot2023a, Example 1, with the smaller coordinate kept.

    Examples
    --------
    >>> import torch
    >>> cross()(torch.tensor([[2.0, -2.0], [3.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)).tolist()
    [[2.0, -2.0], [1.0, -1.0], [0.0, 0.0]]
    """
    first = torch.tensor([[1, -1], [-1, 1], [1, 1], [-1, -1]], dtype=DOUBLE)
    # rows: quadrants ++, --, +-, -+; columns: the parts (x0 - x1)_+, (x0 - x1)_-, (x0 + x1)_+, (x0 + x1)_-
    second = torch.tensor([[-1, -1, 1, 0], [-1, -1, 0, 1], [1, 0, -1, -1], [0, 1, -1, -1]], dtype=DOUBLE) / 2
    third = torch.tensor([[1, -1, 1, -1], [1, -1, -1, 1]], dtype=DOUBLE)
    return Chain([first, second, third], [], 0.0).network()


def max_of_affine(a: Arrays, b: Arrays | None = None, signs: Tensor | np.ndarray | None = None) -> MLP:
    """Return the ReLU network of a maximum of m affine maps, or of signed sums of such maxima.

    f(x) = max_i (a_i . x + b_i) for one group of maps, f(x) = sum_g signs_g max_i (a_gi . x + b_gi) for several. Every
    finite piecewise linear function on R^d is such a sum with at most d + 1 maps in each group.

    A knock-out tournament: max(u, v) = v + max(u - v, 0), where values without an opponent and v itself are carried as
    max(v, 0) and max(-v, 0). The depth is ceil(log2 m) + 1, m the largest number of maps in a group: for m = d + 1 the
    ceil(log2(d + 1)) + 1 of the theory. For m a power of 2 from 2 on and G groups, the norm is

        sum over pairs (u, v) of the maps (|u - v|^2 + 2 |v|^2)  +  12 G (m/4 + m/8 + ... + 1)  +  3 sum signs^2

    with |.| over weights and bias of a map.

    Parameters
    ----------
    a : Tensor, ndarray or sequence of them
        (m, d) for one group, (G, m, d) or a sequence of (m_g, d) for several.
    b : Tensor, ndarray or sequence of them, optional
        (m,), (G, m) or a sequence of (m_g,); zero by default.
    signs : Tensor or ndarray, optional
        Coefficients of the maxima, (G,) for one output or (d_out, G); ones by default.

    Returns
    -------
    MLP
        ReLU, with biases if there is a ``b``, in the higher precision of what came. See :func:`with_slope` for others.

    Raises
    ------
    TypeError, ValueError
        If an argument is not such an array, or shapes do not match.

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
    offsets = None if b is None else _groups(b, "b", "(m,), (G, m) or a sequence of (m_g,)", 1)
    shapes = [tuple(s.shape) for s in slopes]
    if len({columns for _, columns in shapes}) > 1:
        raise ValueError(f"a: got groups of shapes {shapes}, expected the same number of columns")
    if offsets is not None and [len(o) for o in offsets] != [rows for rows, _ in shapes]:
        raise ValueError(
            f"b: got shapes {[tuple(o.shape) for o in offsets]}, expected one number per row of a, {shapes}"
        )
    count = len(slopes)
    coefficients = torch.ones(1, count, dtype=slopes[0].dtype)
    if signs is not None:
        coefficients = array(signs, "signs", f"({count},) or (d_out, {count})", (1, 2))
        coefficients = coefficients[None] if coefficients.ndim == 1 else coefficients
        if coefficients.shape[1] != count:
            raise ValueError(f"signs: got shape {tuple(coefficients.shape)}, expected ({count},) or (d_out, {count})")
    dtype = coefficients.dtype
    for tensor in [*slopes, *(offsets or [])]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    most, device = max(rows for rows, _ in shapes), slopes[0].device
    maps = [_padded(s, most).to(DOUBLE) for s in slopes]
    shifts = [_padded(o, most).to(device, DOUBLE) for o in offsets or []]
    last = [c[:, None] for c in coefficients.to(device, DOUBLE).T]
    if most == 1:
        weight = torch.cat(last, 1) @ torch.cat(maps)
        return Chain([weight], [torch.cat(last, 1) @ torch.cat(shifts)] if shifts else [], 0.0, dtype, device).network()
    match, winners = _round(most)
    weights = [torch.cat([match.to(device) @ m for m in maps])]
    while len(winners) > 1:
        match, before = _round(len(winners))[0], winners
        winners = _round(len(winners))[1]
        weights.append(torch.block_diag(*[(match @ before).to(device)] * count))
    weights.append(torch.cat([c @ winners.to(device) for c in last], 1))
    biases = []
    if shifts:
        biases = [
            torch.cat([_round(most)[0].to(device) @ s for s in shifts]),
            *[w.new_zeros(len(w)) for w in weights[1:]],
        ]
    return Chain(weights, biases, 0.0, dtype, device).network()


def _round(m: int) -> tuple[Tensor, Tensor]:
    """Return T and C with C relu(T v) = (max(v_1, v_2), max(v_3, v_4), ...), an odd last one carried."""
    matches = [[{i: 1.0, i + 1: -1.0}, {i + 1: 1.0}, {i + 1: -1.0}] for i in range(0, m - 1, 2)]
    if m % 2:
        matches.append([{m - 1: 1.0}, {m - 1: -1.0}])
    rows = [row for match in matches for row in match]
    match = torch.tensor([[row.get(i, 0.0) for i in range(m)] for row in rows], dtype=DOUBLE)
    signs = [torch.tensor([[1.0, 1.0, -1.0][-len(match) :]], dtype=DOUBLE) for match in matches]
    return match, torch.block_diag(*signs)


def _groups(value: Arrays, name: str, shape: str, ndim: int) -> list[Tensor]:
    if isinstance(value, list | tuple) and value:
        return [array(v, f"{name}[{i}]", shape, ndim) for i, v in enumerate(value)]
    tensor = array(value, name, shape, (ndim, ndim + 1))
    return [tensor] if tensor.ndim == ndim else list(tensor)


def _padded(group: Tensor, m: int) -> Tensor:
    """Repeat the last map, which does not change the maximum."""
    return torch.cat([group, group[-1:].expand(m - len(group), *group.shape[1:])])


def with_slope(net: nn.Module, slope: float) -> MLP:
    """Return the network of the same function with another slope s and twice the neurons.

    sigma_r(z) = (1 - r s) / (1 - s^2) sigma_s(z) + (s - r) / (1 - s^2) sigma_s(-z), for r the slope the network has, so
    that every hidden layer is doubled to W, -W. For ReLU, r = 0, it is max(0, z) = (sigma_s(z) + s sigma_s(-z)) /
    (1 - s^2); for linear networks, r = 1, it is z = (sigma_s(z) - sigma_s(-z)) / (1 + s).

    The norm is multiplied by 2 for layer 1 and the hidden biases, by q = ((1 - r s)^2 + (s - r)^2) / (1 - s^2)^2 for
    the last weight, by 2q for the weights in between.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; not changed.
    slope : float
        s in (-1, 1). Of the slope it has: a copy is returned.

    Returns
    -------
    MLP
        In the network's precision.

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
