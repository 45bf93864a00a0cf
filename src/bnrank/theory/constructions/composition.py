"""Identity networks, compositions, sums, bottlenecks, and deeper networks with the same function (T29)."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.mlp import MLP, leaky_relu


def identity(k: int, depth: int, slope: float = 0.0, signed: bool = False) -> MLP:
    """Return a network of identity matrices, which is the identity on non-negative vectors.

    W_1 = ... = W_L = I_k without biases. For x in R^k_+, f(x) = x, with the minimum norm ||theta||^2 = k L (T9:
    R1 = 0). Negative entries are changed by sigma_s: with ReLU and L >= 2, f(x) = max(x, 0).

    With ``signed``, f(x) = x on all of R^k, with two neurons per coordinate: z = sigma(z) - sigma(-z) for ReLU and
    z = (sigma_s(z) - sigma_s(-z)) / (1 + s) in general. Hidden layers have width 2k. For L >= 2 the norm is 2 k L with
    ReLU. With slope s it is 2k + 2k / (1 + s)^2 for L = 2 and 2k (L - 1) + 2k (1 + s^2) / (1 - s^2)^2 for L >= 3, where
    layer 2 maps (sigma_s(z), sigma_s(-z)) to (max(z, 0), max(-z, 0)), which the following layers preserve.

    Parameters
    ----------
    k : int
        Dimension.
    depth : int
        L, the number of weight layers.
    slope : float
        s in (-1, 1), or 1 for a linear network, which is the identity everywhere.
    signed : bool
        Whether the network is exact on all of R^k.

    Returns
    -------
    MLP
        Without biases, in float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T29; Jacot2023a, proof of Theorem 1; Jacot2023b, Proposition 5.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    >>> identity(2, 5)(x).tolist(), identity(2, 5, signed=True)(x).tolist()
    ([[2.0, 0.0]], [[2.0, -1.0]])
    """
    k, depth = validation.integer(k, "k"), validation.integer(depth, "depth")
    validation.largest_fits(depth * (256 + 2 * k * k), {"k": k, "depth": depth})
    slope, eye = validation.slope(slope, linear=True), torch.eye(k, dtype=torch.float64)
    signed = validation.flag(signed, "signed")
    return Chain(two_sided(eye, depth, slope) if signed else [eye] * depth, [], slope).network()


def compose(h: nn.Module, g: nn.Module) -> MLP:
    """Return the network of x -> h(g(x)), exact everywhere, of depth L_h + L_g - 1.

    There is no activation between the last layer of g and the first layer of h, so they are merged into one layer with
    weight W_h1 W_gL and bias W_h1 b_gL + b_h1. In the norm ||theta_h||^2 + ||theta_g||^2, the squared norms of the two
    layers are replaced by that of the merged layer. :func:`bottleneck` keeps the two layers separate.

    Parameters
    ----------
    h, g : MLP or torch.nn.Sequential
        Networks of the same slope (a network of depth 1 matches any slope). The outputs of g are the inputs of h.

    Returns
    -------
    MLP
        With biases if either network has biases, in the higher of the two precisions.

    Raises
    ------
    TypeError, ValueError
        If a network is not a chain of linear layers, or if dimensions or slopes do not match.

    Notes
    -----
    Source: T29, T6.

    Examples
    --------
    >>> import bnrank, torch
    >>> g, h = bnrank.MLP([3, 8, 2], seed=0), bnrank.MLP([2, 8, 8, 1], seed=1)
    >>> net, x = compose(h, g), torch.ones(1, 3)
    >>> net.depth, torch.allclose(net(x), h(g(x)))
    (4, True)
    """
    after, before = _fitting(h, g)
    first = after.weights[0]
    weights = [*before.weights[:-1], first @ before.weights[-1], *after.weights[1:]]
    biases = after.biases and [*before.biases[:-1], first @ before.biases[-1] + after.biases[0], *after.biases[1:]]
    return replace(after, weights=weights, biases=biases).network()


def _fitting(h: nn.Module, g: nn.Module) -> tuple[Chain, Chain]:
    """Return the chains of two networks that can be composed."""
    after, before = _together(h, g, ("h", "g"))
    k, width = len(before.weights[-1]), after.weights[0].shape[1]
    validation.expect(k == width, "h", f"{width} inputs", f"as many as g has outputs, {k}")
    return after, before


def _together(first: nn.Module, second: nn.Module, names: tuple[str, str]) -> tuple[Chain, Chain]:
    """Return the chains of two networks in a common slope, precision and device, with biases in both or neither."""
    f, g = read_chain(first, names[0]), read_chain(second, names[1])
    deep = [chain.slope for chain in (f, g) if chain.depth > 1]  # without activations the slope is arbitrary
    expected = "the same; convert one with with_slope"
    validation.expect(len(set(deep)) < 2, names[0], f"slope {f.slope:g} where {names[1]} has {g.slope:g}", expected)
    slope, dtype = (deep or [f.slope])[0], torch.promote_types(f.dtype, g.dtype)
    if f.biases or g.biases:
        f, g = f.biased(), g.biased()
    weights, biases = [w.to(f.device) for w in g.weights], [b.to(f.device) for b in g.biases]
    return replace(f, slope=slope, dtype=dtype), Chain(weights, biases, slope, dtype, f.device)


def add(f: nn.Module, g: nn.Module) -> MLP:
    """Return the network of x -> f(x) + g(x), exact everywhere, with f and g in parallel.

    First layers are stacked, middle layers are block diagonal, last layers are concatenated, and last biases are added.
    If the depths differ, the shallower network is deepened (:func:`deepen` without data). At equal depth L >= 2 the
    norm is ||theta_f||^2 + ||theta_g||^2 + 2 b_fL . b_gL, the sum of both norms if a last bias is 0. At depth 1 the
    weights are added.

    Parameters
    ----------
    f, g : MLP or torch.nn.Sequential
        Networks of the same slope (a network of depth 1 matches any slope), with the same numbers of inputs and
        outputs.

    Returns
    -------
    MLP
        With biases if either network has biases, in the higher of the two precisions.

    Raises
    ------
    TypeError, ValueError
        If a network is not a chain of linear layers, or if dimensions or slopes do not match.

    Notes
    -----
    Source: T29, T6; Jacot2023a, proof of Theorem 4.

    Examples
    --------
    >>> import bnrank, torch
    >>> f, g = bnrank.MLP([3, 8, 2], seed=0), bnrank.MLP([3, 5, 2], seed=1)
    >>> net, x = add(f, g), torch.ones(1, 3)
    >>> net.widths, torch.allclose(net(x), f(x) + g(x))
    ([3, 13, 2], True)
    """
    left, right = _together(f, g, ("f", "g"))
    for what, end, axis in (("inputs", 0, 1), ("outputs", -1, 0)):
        a, b = left.weights[end].shape[axis], right.weights[end].shape[axis]
        validation.expect(a == b, "g", f"{b} {what}", f"as many as f has, {a}")
    depth = max(left.depth, right.depth)
    left, right = inserted(left, depth), inserted(right, depth)
    if depth == 1:
        shifts = [v + w for v, w in zip(left.biases, right.biases, strict=True)]
        return replace(left, weights=[left.weights[0] + right.weights[0]], biases=shifts).network()
    middle = [torch.block_diag(v, w) for v, w in zip(left.weights[1:-1], right.weights[1:-1], strict=True)]
    first = torch.cat([left.weights[0], right.weights[0]])
    last = torch.cat([left.weights[-1], right.weights[-1]], 1)
    biases = [torch.cat([v, w]) for v, w in zip(left.biases, right.biases, strict=True)]
    if biases:
        biases[-1] = left.biases[-1] + right.biases[-1]
    return replace(left, weights=[first, *middle, last], biases=biases).network()


def bottleneck(h: nn.Module, g: nn.Module, depth: int, lower: Tensor | float) -> MLP:
    """Return a network of x -> h(g(x)) of arbitrarily large depth: g, then identities of dimension k, then h.

    This is the construction behind the upper bound R0(h o g) <= k. A bias shifts the output of g by c = max(0, -lower)
    into R^k_+, depth - L_g - L_h identity layers I_k follow, and a bias of h subtracts c. The result is exact wherever
    g(x) >= lower. With g' and h' the networks with shifted biases, its norm is
    ||theta||^2 = ||theta_g'||^2 + k (depth - L_g - L_h) + ||theta_h'||^2, that is, k per inserted layer.

    For a network that is exact everywhere, at 2k per layer, compose h, ``identity(k, depth, signed=True)`` and g.

    Parameters
    ----------
    h, g : MLP or torch.nn.Sequential
        Networks of the same slope. The k outputs of g are the inputs of h.
    depth : int
        L, at least L_g + L_h.
    lower : Tensor or float
        Lower bounds on the outputs of g, shape (k,) or one for all, e.g. ``g(x).amin(0)``.

    Returns
    -------
    MLP
        In the higher of the two precisions, with biases if either network has biases or an output is shifted.

    Raises
    ------
    TypeError, ValueError
        If a network is not a chain of linear layers, if dimensions or slopes do not match, or if the depth is too
        small.

    Notes
    -----
    Source: T29, T5; Jacot2023a, Theorem 1.

    Examples
    --------
    >>> import bnrank, torch
    >>> g, h, x = bnrank.MLP([5, 20, 2], seed=0), bnrank.MLP([2, 20, 5], seed=1), torch.randn(50, 5)
    >>> net = bottleneck(h, g, 30, lower=g(x).amin(0))
    >>> net.depth, torch.allclose(net(x), h(g(x)), atol=1e-5), net.widths[2:30] == [2] * 27 + [20]
    (30, True, True)
    """
    after, before = _fitting(h, g)
    k = len(before.weights[-1])
    depth = validation.depth(depth, before.depth + after.depth)
    bounds = validation.real(lower, "lower").to(after.device, torch.float64)
    validation.expect(bounds.shape in ((), (k,)), "lower", f"shape {tuple(bounds.shape)}", f"a number or ({k},)")
    shift = bounds.neg().clamp(min=0).expand(k)
    if after.slope != 1 and bool((shift > 0).any()):
        after, before = after.biased(), before.biased()
        before = replace(before, biases=[*before.biases[:-1], before.biases[-1] + shift])
        after = replace(after, biases=[after.biases[0] - after.weights[0] @ shift, *after.biases[1:]])
    between = [torch.eye(k, dtype=torch.float64, device=after.device)] * (depth - before.depth - after.depth)
    weights = [*before.weights, *between, *after.weights]
    biases = after.biases and [*before.biases, *[torch.zeros_like(shift)] * len(between), *after.biases]
    return replace(after, weights=weights, biases=biases).network()


def deepen(net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, *, rtol: float = 1e-12) -> MLP:
    """Return a deeper network with the same function, with linear layers inserted where they increase the norm least.

    Without x the function is preserved everywhere. After a ReLU layer of width n, each inserted layer is I_n and adds n
    to the norm; among these, the narrowest hidden layer is best. Where values can be negative (other slopes, the input,
    the output), two neurons per coordinate represent z as max(z, 0) and max(-z, 0). This adds 2n per layer, plus the
    cost of splitting and joining once. The position with the lowest total cost is chosen.

    With x the function is preserved on the samples, and wherever the representation lies in their span. Each inserted
    layer is the orthogonal projection onto span a_l(X) and adds its dimension k to the norm, or 2k with two neurons per
    dimension if a_l(X) has negative entries. The position (input, hidden layer or output) with the lowest total norm is
    chosen.

    Inserted layers have zero bias. For a linear network (slope 1) the costs are n and k at every position.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; it is not modified.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, shape (N, d_in).
    rtol : float
        Singular values of a_l(X) up to ``rtol`` times the largest are excluded from the span. The relative error on the
        samples is of this size; a larger ``rtol`` gives an approximate network of lower norm.

    Returns
    -------
    MLP
        In the precision of ``net``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the network is not such a chain.

    Notes
    -----
    Source: T29.

    Examples
    --------
    >>> import bnrank, torch
    >>> net, x = bnrank.MLP([5, 20, 3, 20, 2], seed=0), torch.randn(50, 5)
    >>> deeper = deepen(net, 9)
    >>> deeper.widths, torch.allclose(deeper(x), net(x), atol=1e-5)
    ([5, 20, 3, 3, 3, 3, 3, 3, 20, 2], True)
    """
    layers = read_chain(net, "net")
    depth = validation.depth(depth, layers.depth)
    rtol = validation.number(rtol, "rtol", 0.0)
    if x is not None:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach().to(layers.device, torch.float64)
    return inserted(layers, depth, x, rtol).network()


def inserted(layers: Chain, depth: int, x: Tensor | None = None, rtol: float = 1e-12) -> Chain:
    """Return the layers with the insertion of lowest cost that reaches ``depth``; ``x`` is in float64."""
    extra = depth - layers.depth
    if extra == 0:
        return layers
    candidates = []
    for place, basis, positive in _places(layers, x, rtol):
        steps = [basis @ basis.T] * extra if positive else two_sided(basis, extra + 1, layers.slope)
        candidate = _put(layers, place, steps, merged=not positive)
        candidates.append((float(extra * basis.shape[1]) if positive else candidate.norm - layers.norm, candidate))
    return min(candidates, key=lambda pair: pair[0])[1]


def _places(layers: Chain, x: Tensor | None, rtol: float) -> Iterator[tuple[int, Tensor, bool]]:
    """Yield each position l = 0..L, hidden layers first, a basis of its values, and whether sigma preserves them."""
    linear, relu, last = layers.slope == 1, layers.slope == 0, layers.depth
    values = None if x is None else _values(layers, x)
    for place in [*range(1, last), 0, last]:
        width = layers.weights[place].shape[1] if place < last else len(layers.weights[-1])
        if values is None:
            basis, positive = torch.eye(width, dtype=torch.float64, device=layers.device), relu and 0 < place < last
        else:
            _, s, vh = torch.linalg.svd(values[place], full_matrices=False)
            basis, positive = vh[: int(linalg.rank(s, rtol))].T, bool((values[place] >= 0).all())
        yield place, basis, linear or positive


def _values(layers: Chain, x: Tensor) -> list[Tensor]:
    """Return a_0, ..., a_{L-1} and f on the samples."""
    values = [x]
    for i, weight in enumerate(layers.weights):
        z = values[-1] @ weight.T + (layers.biases[i] if layers.biases else 0)
        values.append(z if i == layers.depth - 1 else leaky_relu(z, layers.slope))
    return values


def _put(layers: Chain, place: int, steps: list[Tensor], *, merged: bool) -> Chain:
    """Return a chain with inserted layers.

    If ``merged``, the last inserted layer is multiplied into the next layer; at the output, the first one into the last
    layer.
    """
    weights, biases = list(layers.weights), list(layers.biases)
    if merged and place < layers.depth:
        *steps, last = steps
        weights[place] = weights[place] @ last
    elif merged:
        first, *steps = steps
        weights[-1], biases[-1:] = first @ weights[-1], [first @ bias for bias in biases[-1:]]
    weights[place:place] = steps
    biases[place:place] = [step.new_zeros(len(step)) for step in steps if layers.biases]
    return replace(layers, weights=weights, biases=biases)


def two_sided(basis: Tensor, depth: int, slope: float) -> list[Tensor]:
    """Return layers of the projection U U^T, exact for both signs, for an orthonormal basis U, shape (n, k).

    Each hidden layer has 2k neurons, z_+ and z_-; with slope 1 it has k.
    """
    k = basis.shape[1]
    if depth == 1:
        return [basis @ basis.T]
    eye = torch.eye(k, dtype=basis.dtype, device=basis.device)
    if slope == 1:
        return [basis.T, *[eye] * (depth - 2), basis]
    into, out = torch.cat([basis.T, -basis.T]), torch.cat([basis, -basis], 1)
    if depth == 2:
        return [into, out / (1 + slope)]
    parts = torch.cat([torch.cat([eye, slope * eye], 1), torch.cat([slope * eye, eye], 1)]) / (1 - slope**2)
    both = torch.eye(2 * k, dtype=basis.dtype, device=basis.device)
    return [into, parts, *[both] * (depth - 3), out]
