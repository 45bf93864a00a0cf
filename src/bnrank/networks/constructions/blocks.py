"""Identity blocks, composition, parallel sums and the network of a factorization through a bottleneck."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.constructions.deepening import inserted, two_sided
from bnrank.networks.mlp import MLP


def identity(k: int, depth: int, slope: float = 0.0, signed: bool = False) -> MLP:
    """Return the network of identity matrices, the identity on vectors without negative entries.

    W_1 = ... = W_L = I_k without biases: f(x) = x for x in R^k_+, at norm ||theta||^2 = k L, the minimum (T9:
    R1 = 0). Elsewhere sigma_s changes negative entries: with ReLU and L >= 2, f(x) = max(x, 0).

    With ``signed``, f(x) = x on all of R^k, by neurons for both signs of every coordinate: z = sigma(z) - sigma(-z)
    for ReLU, z = (sigma_s(z) - sigma_s(-z)) / (1 + s) in general. Hidden layers have width 2k and the norm is 2 k L
    for ReLU and L >= 2. For slope s it is 2k + 2k / (1 + s)^2 at L = 2 and
    2k (L - 1) + 2k (1 + s^2) / (1 - s^2)^2 from L = 3 on: layer 2 turns (sigma_s(z), sigma_s(-z)) into
    (max(z, 0), max(-z, 0)), which further layers keep.

    Parameters
    ----------
    k : int
        Dimension.
    depth : int
        L, the number of weight layers.
    slope : float
        s in (-1, 1), or 1 for a linear network, which is the identity everywhere.
    signed : bool
        Whether to be exact on all of R^k.

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
    slope, eye = validation.slope(slope, linear=True), torch.eye(k, dtype=torch.float64)
    return Chain(two_sided(eye, depth, slope) if signed else [eye] * depth, [], slope).network()


def compose(h: nn.Module, g: nn.Module) -> MLP:
    """Return the network of x -> h(g(x)), exact everywhere, of depth L_h + L_g - 1.

    The last layer of g and the first of h, both without an activation between them, become one layer with weight
    W_h1 W_gL and bias W_h1 b_gL + b_h1. The norm is ||theta_h||^2 + ||theta_g||^2 with the squares of those two layers
    replaced by the squares of the one. :func:`bottleneck` keeps the two apart.

    Parameters
    ----------
    h, g : MLP or torch.nn.Sequential
        Networks of the same slope (one of depth 1 fits any); g's outputs are h's inputs.

    Returns
    -------
    MLP
        With biases if either has some; in the higher of both precisions.

    Raises
    ------
    TypeError, ValueError
        If they are not chains of linear layers, or their dimensions or slopes do not fit.

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
    return _composed(*_fitting(h, g)).network()


def _fitting(h: nn.Module, g: nn.Module) -> tuple[Chain, Chain]:
    """Return the chains of two networks that can be composed."""
    after, before = _together(h, g, ("h", "g"))
    k, width = len(before.weights[-1]), after.weights[0].shape[1]
    validation.expect(k == width, "h", f"{width} inputs", f"as many as g has outputs, {k}")
    return after, before


def _together(first: nn.Module, second: nn.Module, names: tuple[str, str]) -> tuple[Chain, Chain]:
    """Return the chains of two networks with one slope, precision and device, and with biases in both or in neither."""
    f, g = read_chain(first, names[0]), read_chain(second, names[1])
    deep = [chain.slope for chain in (f, g) if chain.depth > 1]  # without activations the slope is arbitrary
    expected = "the same; convert one with with_slope"
    validation.expect(len(set(deep)) < 2, names[0], f"slope {f.slope:g} where {names[1]} has {g.slope:g}", expected)
    slope, dtype = (deep or [f.slope])[0], torch.promote_types(f.dtype, g.dtype)
    if f.biases or g.biases:
        f, g = f.biased(), g.biased()
    weights, biases = [w.to(f.device) for w in g.weights], [b.to(f.device) for b in g.biases]
    return replace(f, slope=slope, dtype=dtype), Chain(weights, biases, slope, dtype, f.device)


def _composed(h: Chain, g: Chain) -> Chain:
    weights = [*g.weights[:-1], h.weights[0] @ g.weights[-1], *h.weights[1:]]
    biases = h.biases and [*g.biases[:-1], h.weights[0] @ g.biases[-1] + h.biases[0], *h.biases[1:]]
    return replace(h, weights=weights, biases=biases)


def add(f: nn.Module, g: nn.Module) -> MLP:
    """Return the network of x -> f(x) + g(x), exact everywhere: both side by side.

    First layers are stacked, middle layers block diagonal, last layers side by side, and the last biases add up. Of two
    depths the larger is kept and the other network made deeper (:func:`deepen` without data). At equal depth L >= 2 the
    norm is ||theta_f||^2 + ||theta_g||^2 + 2 b_fL . b_gL, the plain sum where a last bias is 0; at depth 1 the weights
    add up.

    Parameters
    ----------
    f, g : MLP or torch.nn.Sequential
        Networks of the same slope (one of depth 1 fits any), with the same numbers of inputs and of outputs.

    Returns
    -------
    MLP
        With biases if either has some; in the higher of both precisions.

    Raises
    ------
    TypeError, ValueError
        If they are not chains of linear layers, or their dimensions or slopes do not fit.

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


def bottleneck(h: nn.Module, g: nn.Module, depth: int, lower: Tensor | float | None = None) -> MLP:
    """Return a network of x -> h(g(x)) of any large depth: g, then identities on the inner dimension k, then h.

    With ``lower``, the construction of the upper bound R0(h o g) <= k: g's output is moved by
    c = max(0, -lower) into R^k_+ (a bias), depth - L_g - L_h identity layers I_k follow, and h takes c away again
    (another bias). It is exact wherever g(x) >= lower, and
    ||theta||^2 = ||theta_g'||^2 + k (depth - L_g - L_h) + ||theta_h'||^2 with the moved biases: k per layer.

    Without, it is exact everywhere, through :func:`identity` with ``signed``: 2k per layer.

    Parameters
    ----------
    h, g : MLP or torch.nn.Sequential
        Networks of the same slope; g's k outputs are h's inputs.
    depth : int
        At least L_g + L_h with ``lower``, L_g + L_h - 1 without.
    lower : Tensor or float, optional
        Lower bounds on the outputs of g, (k,) or one for all, e.g. ``g(x).amin(0)``.

    Returns
    -------
    MLP
        In the higher of both precisions; with biases if either network has some or an output is moved.

    Raises
    ------
    TypeError, ValueError
        If the networks are not chains of linear layers or do not fit, or the depth is too small.

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
    least = before.depth + after.depth - (lower is None)
    depth = validation.integer(depth, "depth", least)
    eye = torch.eye(k, dtype=torch.float64, device=after.device)
    if lower is None:
        middle = replace(after, weights=two_sided(eye, depth - least + 1, after.slope), biases=[])
        return _composed(after, _composed(middle.biased() if after.biases else middle, before)).network()
    shift = _bounds(lower, k).to(after.device).neg().clamp(min=0)
    if after.slope != 1 and bool((shift > 0).any()):
        after, before = after.biased(), before.biased()
        moved, back = before.biases[-1] + shift, after.biases[0] - after.weights[0] @ shift
        before = replace(before, biases=[*before.biases[:-1], moved])
        after = replace(after, biases=[back, *after.biases[1:]])
    between = [eye] * (depth - least)
    weights = [*before.weights, *between, *after.weights]
    biases = after.biases and [*before.biases, *[eye.new_zeros(k)] * len(between), *after.biases]
    return replace(after, weights=weights, biases=biases).network()


def _bounds(lower: Tensor | float, k: int) -> Tensor:
    if isinstance(lower, int | float):
        return torch.full((k,), validation.number(lower, "lower"), dtype=torch.float64)
    bounds = validation.array(lower, "lower", f"({k},)", 1).to(torch.float64)
    validation.expect(len(bounds) == k, "lower", f"shape {tuple(bounds.shape)}", f"({k},), one per output of g")
    return bounds
