"""Deeper networks with the same function, or with the same escape speed from the origin."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank.networks.chain import Chain, read_chain
from bnrank.networks.mlp import MLP, leaky_relu


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
    depth = validation.integer(depth, "depth", layers.depth)
    validation.allocation(256 * depth, "depth", depth)
    rtol = validation.number(rtol, "rtol", 0.0)
    if x is not None:
        x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach().to(layers.device, torch.float64)
    return inserted(layers, depth, x, rtol).network()


def inserted(layers: Chain, depth: int, x: Tensor | None = None, rtol: float = 1e-12) -> Chain:
    """Return the layers with the insertion of lowest cost that reaches ``depth``; ``x`` is in float64."""
    extra = depth - layers.depth
    if extra == 0:
        return layers
    best, lowest = layers, float("inf")
    for place, basis, positive in _places(layers, x, rtol):
        if positive:
            candidate = _put(layers, place, [basis @ basis.T] * extra)
            cost = float(extra * basis.shape[1])
        else:
            candidate = _split(layers, place, two_sided(basis, extra + 1, layers.slope))
            cost = candidate.norm - layers.norm
        if cost < lowest:
            best, lowest = candidate, cost
    return best


def _places(layers: Chain, x: Tensor | None, rtol: float) -> Iterator[tuple[int, Tensor, bool]]:
    """Yield each position l = 0..L, hidden layers first, a basis of its values, and whether sigma preserves them."""
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
            yield place, vh[: int(linalg.rank(s, rtol))].T, linear or bool((values[place] >= 0).all())


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
    """Return a chain with inserted layers.

    The last inserted layer is merged into the next layer; at the output, the first is merged into the last layer.
    """
    weights, biases = list(layers.weights), list(layers.biases)
    if place < layers.depth:
        weights[place] = weights[place] @ steps[-1]
        return _put(replace(layers, weights=weights), place, steps[:-1])
    weights[-1] = steps[0] @ weights[-1]
    if biases:
        biases[-1] = steps[0] @ biases[-1]
    return _put(replace(layers, weights=weights, biases=biases), place, steps[1:])


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


def deepen_escape(
    net: nn.Module, depth: int, x: Tensor | np.ndarray | None = None, g: Tensor | np.ndarray | None = None
) -> MLP:
    """Return a deeper network that escapes from the origin at least as fast, with rank one from layer L - 1 on.

    L0(theta) = Tr[G^T f_theta(X)] is the leading-order loss near the origin, where G is the gradient of the loss at
    zero output. The escape speed is s = -L0 on the sphere ||theta||^2 = L. L0 is a sum over the neurons of the last
    hidden layer,

        L0 = sum_i |W_L[:, i]| |W_{L-1}[i, :]| c_i,

    where c_i is the contribution of neuron i with its outgoing column and incoming row normalized. The construction
    keeps the neuron with the smallest c_i and removes the others of its layer. It sets the norms of this neuron's row
    and column to sqrt(sum_i |W_L[:, i]| |W_{L-1}[i, :]|), inserts layers of one neuron with weight 1 after it, and
    scales the result to the sphere ||theta||^2 = ``depth``.

    The speed equals that of the network scaled to its own sphere if all c_i are equal and the norm does not decrease,
    as for every escape direction; otherwise it is larger. Without ``x`` and ``g``, the neuron with the largest
    |W_L[:, i]| |W_{L-1}[i, :]| is kept. For an escape direction all c_i are equal; for other networks the speed can
    then decrease.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A ReLU network of any norm, without biases and with at least one hidden layer; it is not modified.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray, optional
        Samples, shape (N, d_in). Give both ``x`` and ``g`` or neither.
    g : Tensor or ndarray, optional
        G, shape (N, d_out), including factors of the loss such as 1/N.

    Returns
    -------
    MLP
        With widths n_0, ..., n_{L-2}, 1, ..., 1, d_out, in the highest precision of the arguments.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or if the network has biases, another slope or no hidden layer, is zero, or has
        an escape speed that is not positive. Without data the speed is not checked.

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
    validation.allocation(256 * depth, "depth", depth)
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
