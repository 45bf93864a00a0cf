"""Deeper networks of the same function, or with the same speed of escape from the origin."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.mlp import MLP, leaky_relu


def deepen(net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, *, rtol: float = 1e-12) -> MLP:
    """Return a deeper network of the same function, with linear layers inserted where they increase the norm least.

    Without x the function is the same everywhere. Between a ReLU layer of width n and the next, each inserted layer is
    I_n and costs n; the narrowest hidden layer is chosen. Where values may be negative (other slopes, and at the input
    and the output) two neurons per coordinate carry z as max(z, 0) and max(-z, 0), at a cost of 2n per layer and
    once for splitting and joining; such a place is chosen where its total cost is lower.

    With x the function is the same on the samples, and wherever the representation lies in their span:
    each inserted layer is the orthogonal projection on span a_l(X) and costs k, its dimension; where a_l(X) has
    negative entries, two neurons per dimension cost 2k. The place (input, hidden layer or output) with the smallest
    total norm is chosen.

    Inserted layers have bias 0. For a linear network (slope 1) the costs are n and k everywhere.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers with one activation; not changed.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, (N, d_in).
    rtol : float
        Singular values of a_l(X) up to ``rtol`` times the largest do not count for the span. The error on the
        samples is of that relative size: a larger one gives an approximate, cheaper network.

    Returns
    -------
    MLP
        In the network's precision.

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
    depth = validation.integer(depth, "depth", layers.depth)
    rtol = validation.number(rtol, "rtol", 0.0)
    if x is not None:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach().to(layers.device, torch.float64)
    return inserted(layers, depth, x, rtol).network()


def inserted(layers: Chain, depth: int, x: Tensor | None = None, rtol: float = 1e-12) -> Chain:
    """Return the layers with the cheapest insertion that brings them to the depth; x in float64."""
    extra = depth - layers.depth
    if extra == 0:
        return layers
    best, least = layers, float("inf")
    for place, basis, positive in _places(layers, x, rtol):
        if positive:
            candidate, cost = _put(layers, place, [basis @ basis.T] * extra), float(extra * basis.shape[1])
        else:
            candidate = _split(layers, place, two_sided(basis, extra + 1, layers.slope))
            cost = candidate.norm - layers.norm
        if cost < least:
            best, least = candidate, cost
    return best


def _places(layers: Chain, x: Tensor | None, rtol: float) -> Iterator[tuple[int, Tensor, bool]]:
    """Iterate over places l = 0..L, hidden layers first: basis of the values there, and whether sigma keeps them."""
    linear, relu, last = layers.slope == 1, layers.slope == 0, layers.depth
    values = None if x is None else _values(layers, x)
    for place in [*range(1, last), 0, last]:
        width = layers.weights[place].shape[1] if place < last else len(layers.weights[-1])
        if values is None:
            yield (
                place,
                torch.eye(width, dtype=torch.float64, device=layers.device),
                linear or (relu and 0 < place < last),
            )
        else:
            _, s, vh = torch.linalg.svd(values[place], full_matrices=False)
            yield place, vh[s > rtol * s[0]].T, linear or bool((values[place] >= 0).all())


def _values(layers: Chain, x: Tensor) -> list[Tensor]:
    """Return a_0, ..., a_{L-1} and f on the samples."""
    values = [x]
    for i, weight in enumerate(layers.weights):
        z = values[-1] @ weight.T + (layers.biases[i] if layers.biases else 0)
        values.append(z if i == layers.depth - 1 else leaky_relu(z, layers.slope))
    return values


def _put(layers: Chain, place: int, steps: list[Tensor]) -> Chain:
    zeros = [step.new_zeros(len(step)) for step in steps]
    return replace(
        layers,
        weights=[*layers.weights[:place], *steps, *layers.weights[place:]],
        biases=layers.biases and [*layers.biases[:place], *zeros, *layers.biases[place:]],
    )


def _split(layers: Chain, place: int, steps: list[Tensor]) -> Chain:
    """Return a chain with inserted layers, the last (at the output: the first) merged with the next layer."""
    weights, biases = list(layers.weights), list(layers.biases)
    if place < layers.depth:
        weights[place] = weights[place] @ steps[-1]
        return _put(replace(layers, weights=weights), place, steps[:-1])
    weights[-1] = steps[0] @ weights[-1]
    if biases:
        biases[-1] = steps[0] @ biases[-1]
    return _put(replace(layers, weights=weights, biases=biases), place, steps[1:])


def two_sided(basis: Tensor, depth: int, slope: float) -> list[Tensor]:
    """Return layers of the projection U U^T, U (n, k) orthonormal, exact for both signs: 2k neurons z_+, z_- each."""
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


def deepen_escape(
    net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, g: Tensor | np.ndarray | None = None
) -> MLP:
    """Return a deeper network that escapes from the origin at least as fast, rank one from layer L - 1 on.

    L0(theta) = Tr[G^T f_theta(X)] is the loss near the origin to first order, G its gradient at zero output, and
    s = -L0 on the sphere ||theta||^2 = L the escape speed. L0 is a sum over the neurons of the last hidden layer,

        L0 = sum_i |W_L[:, i]| |W_{L-1}[i, :]| c_i,

    c_i the contribution with outgoing column and incoming row normalized. The neuron with the least c_i is kept, both
    its factors get the norm sqrt(sum_i |W_L[:, i]| |W_{L-1}[i, :]|), the other neurons of that layer go, layers of one
    neuron of weight 1 are put after it, and all is scaled to the sphere ||theta||^2 = ``depth``.

    The speed is that of the network, scaled to its sphere, if all c_i agree and the norm does not shrink,
    as at every escape direction; else it is larger. Without ``x`` and ``g`` the neuron with the largest
    |W_L[:, i]| |W_{L-1}[i, :]| is kept: at an escape direction all c_i agree, of another network the speed may fall.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        ReLU, without biases, with at least one hidden layer; of any norm; not changed.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, (N, d_in).
    g : Tensor or ndarray, optional
        G, (N, d_out), with the factors of the loss, such as 1/N; both or neither.

    Returns
    -------
    MLP
        Of widths n_0, ..., n_{L-2}, 1, ..., 1, d_out, in the highest precision of what came.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the network has biases, another slope or no hidden layer, is zero, or its
        speed is not positive; without data the speed is not known and not checked.

    Notes
    -----
    Source: T33, T39 with the pair of E18; Bantzis2025, Proposition 3.2.

    Examples
    --------
    >>> import bnrank, torch
    >>> x, g = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0], [0.5]])
    >>> net = bnrank.networks.from_layers([torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0]])])
    >>> deeper = deepen_escape(net, 5, x, g)
    >>> -float((g * deeper(x.double())).sum().detach())                                        # as it was at depth 2
    1.0
    """
    layers = read_chain(net, "net")
    found = f"biases: {bool(layers.biases)}, slope {layers.slope:g}, depth {layers.depth}"
    fits = not layers.biases and layers.slope == 0 and layers.depth >= 2
    validation.expect(fits, "net", found, "a ReLU network without biases of depth at least 2")
    depth = validation.integer(depth, "depth", layers.depth)
    validation.expect((x is None) == (g is None), "x, g", "one of the two", "both or neither")
    dtype = layers.dtype
    to_sphere = (layers.depth / layers.norm) ** 0.5 if layers.norm else 1.0
    *rest, before, last = [w * to_sphere for w in layers.weights]
    sizes = last.norm(dim=0) * before.norm(dim=1)
    if x is None or g is None:
        kept = int(sizes.argmax())
        validation.expect(float(sizes[kept]) > 0, "net", "a network that is zero", "an escape direction")
    else:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach()
        g = validation.samples(g, "g", features=len(layers.weights[-1])).detach()
        validation.expect(len(g) == len(x), "g", f"{len(g)} samples", f"as many as x has, {len(x)}")
        dtype = torch.promote_types(dtype, torch.promote_types(x.dtype, g.dtype))
        a, g = x.to(layers.device, torch.float64), g.to(layers.device, torch.float64)
        for weight in rest:
            a = torch.relu(a @ weight.T)
        contributions = ((g @ last) * torch.relu(a @ before.T)).sum(0)
        loss = float(contributions.sum())
        validation.expect(loss < 0, "net", f"L0 = {loss:.6g} on x and g", "it below 0")
        normalized = torch.where(sizes > 0, contributions / sizes.clamp(min=torch.finfo(torch.float64).tiny), torch.inf)
        kept = int(normalized.argmin())
    root = sizes.sum().sqrt()
    row, column = before[kept] / before[kept].norm(), last[:, kept] / last[:, kept].norm()
    ones = [torch.ones(1, 1, dtype=torch.float64, device=layers.device)] * (depth - layers.depth)
    deeper = replace(layers, weights=[*rest, root * row[None], *ones, root * column[:, None]], dtype=dtype)
    scale = (depth / deeper.norm) ** 0.5
    return replace(deeper, weights=[w * scale for w in deeper.weights]).network()
