"""Deeper networks that leave the origin as fast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.constructions._layers import DOUBLE, read
from bnrank.networks.mlp import MLP

__all__ = ["deepen_escape"]


def deepen_escape(net: nn.Module, depth: int, x: Tensor | np.ndarray, g: Tensor | np.ndarray) -> MLP:
    """Return a deeper network that escapes from the origin at least as fast, rank one from layer L - 1 on.

    L0(theta) = Tr[G^T f_theta(X)] is the loss near the origin to first order, G its gradient at zero output, and
    s = -L0 on the sphere ||theta||^2 = L the escape speed. L0 is a sum over the neurons of the last hidden layer,

        L0 = sum_i |W_L[:, i]| |W_{L-1}[i, :]| c_i,

    c_i the contribution with outgoing column and incoming row normalized. The neuron with the least c_i is kept, both
    its factors get the norm sqrt(sum_i |W_L[:, i]| |W_{L-1}[i, :]|), the other neurons of that layer go, layers of one
    neuron of weight 1 are put after it, and all is scaled to the sphere ||theta||^2 = ``depth``.

    The speed is that of the network, scaled to its sphere, if all c_i agree and the norm does not shrink,
    as at every escape direction; else it is larger.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        ReLU, without biases, with a hidden layer at least; of any norm; left as it is.
    depth : int
        New depth, at least that of the network.
    x : Tensor or ndarray
        Samples, (N, d_in).
    g : Tensor or ndarray
        G, (N, d_out), with the factors of the loss, such as 1/N.

    Returns
    -------
    MLP
        Of widths n_0, ..., n_{L-2}, 1, ..., 1, d_out, in the highest precision of what came.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, the network has biases, another slope or no hidden layer, or its speed is not
        positive.

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
    layers = read(net, "net")
    if layers.biases or layers.slope != 0 or layers.depth < 2:
        found = f"biases: {bool(layers.biases)}, slope {layers.slope:g}, depth {layers.depth}"
        raise ValueError(f"net: got {found}, expected a ReLU network without biases of depth at least 2")
    depth = validation.integer(depth, "depth", layers.depth)
    x = validation.samples(x, "x", features=layers.weights[0].shape[1]).detach()
    g = validation.samples(g, "g", features=len(layers.weights[-1])).detach()
    if len(g) != len(x):
        raise ValueError(f"g: got {len(g)} samples, expected as many as x has, {len(x)}")
    dtype = torch.promote_types(layers.dtype, torch.promote_types(x.dtype, g.dtype))
    a, g = x.to(layers.device, DOUBLE), g.to(layers.device, DOUBLE)
    to_sphere = (layers.depth / layers.norm) ** 0.5 if layers.norm else 1.0
    *rest, before, last = [w * to_sphere for w in layers.weights]
    for weight in rest:
        a = torch.relu(a @ weight.T)
    contributions = ((g @ last) * torch.relu(a @ before.T)).sum(0)
    if not float(contributions.sum()) < 0:
        raise ValueError(f"net: got L0 = {float(contributions.sum()):.6g} on x and g, expected it below 0")
    sizes = last.norm(dim=0) * before.norm(dim=1)
    normalized = torch.where(sizes > 0, contributions / sizes.clamp(min=torch.finfo(DOUBLE).tiny), torch.inf)
    kept = int(normalized.argmin())
    root = sizes.sum().sqrt()
    row, column = before[kept] / before[kept].norm(), last[:, kept] / last[:, kept].norm()
    ones = [torch.ones(1, 1, dtype=DOUBLE, device=layers.device)] * (depth - layers.depth)
    deeper = replace(layers, weights=[*rest, root * row[None], *ones, root * column[:, None]], dtype=dtype)
    scale = (depth / deeper.norm) ** 0.5
    return replace(deeper, weights=[w * scale for w in deeper.weights]).network()
