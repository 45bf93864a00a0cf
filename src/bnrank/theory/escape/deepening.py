"""Deeper networks that leave the origin as fast."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.chain import as_mlp
from bnrank.networks.constructions import deepen_escape
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.escape.direction import EscapeDirection

__all__ = ["deepen"]


def deepen(
    net: EscapeDirection | nn.Module,
    depth: int,
    x: Tensor | np.ndarray | None = None,
    g: Tensor | np.ndarray | None = None,
) -> MLP:
    """Return a deeper ReLU network with the speed of an escape direction, rank one from layer L - 1 on (T39).

    It has one neuron in the last hidden layer, W_L and W_{L-1} having norm sqrt(sum_i |W_L[:, i]| |W_{L-1}[i, :]|),
    then layers of one neuron of weight 1, and ||theta||^2 = ``depth``. Which neuron of the last hidden layer stays:

    - with data, from an :class:`EscapeDirection` or as ``x`` and ``g``: the one whose contribution to L0, with its
      weights normalized, is least. The speed of any network is then that before, at least
      (:func:`bnrank.networks.constructions.deepen_escape`);
    - without: the one with the largest |W_L[:, i]| |W_{L-1}[i, :]|. At an escape direction all normalized
      contributions agree, so that no data are needed; of another network the speed may fall.

    Parameters
    ----------
    net : EscapeDirection, MLP or torch.nn.Sequential
        ReLU, without biases, of depth 2 at least.
    depth : int
        New depth, at least that of the network.
    x, g : Tensor or ndarray, optional
        X, (N, d_in), and G, (N, d_out); both or neither.

    Returns
    -------
    MLP
        float64, widths n_0, ..., n_{L-2}, 1, ..., 1, d_out.

    Raises
    ------
    TypeError, ValueError
        If the network has biases, another activation or no hidden layer, is zero, or the depth is less than it has;
        with data, also if its speed is not positive. Without data the speed is not known and not checked.

    Notes
    -----
    Source: T39 with the pair of E18; Bantzis2025, Proposition 3.2. Not for leaky activations: a layer of weight 1
    would change negative values again.

    Examples
    --------
    >>> import bnrank, torch
    >>> task = bnrank.tasks.circle(dtype=torch.float64)
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    >>> signs = torch.tensor([[1.0, -1.0, 1.0, -1.0]]) / 2
    >>> deep = deepen(bnrank.networks.from_layers([rows, signs, -torch.ones(1, 1)]), 6)
    >>> deep.widths, round(-float((-task.y * deep(task.x)).sum().detach()), 12)
    ([2, 4, 1, 1, 1, 1, 1], 0.5)
    """
    if isinstance(net, EscapeDirection):
        x, g, net = net.x if x is None else x, net.g if g is None else g, net.network
    if (x is None) != (g is None):
        raise ValueError("x, g: got one of the two, expected both or neither")
    if x is not None and g is not None:
        return deepen_escape(as_mlp(net), depth, x, g)
    mlp = as_mlp(net)
    if mlp.biases or mlp.slope != 0 or mlp.depth < 2:
        found = f"biases: {bool(mlp.biases)}, slope {mlp.slope:g}, depth {mlp.depth}"
        raise ValueError(f"net: got {found}, expected a ReLU network without biases of depth at least 2")
    depth = validation.integer(depth, "depth", mlp.depth)
    *rest, before, last = [w.detach() for w in mlp.weights]
    sizes = last.norm(dim=0) * before.norm(dim=1)
    if not float(sizes.max()) > 0:
        raise ValueError("net: got a network that is zero, expected an escape direction")
    scale = math.sqrt(mlp.depth / sum(float(w.detach().square().sum()) for w in mlp.weights))
    kept = int(sizes.argmax())
    root = scale * math.sqrt(float(sizes.sum()))
    row, column = before[kept] / before[kept].norm(), last[:, kept] / last[:, kept].norm()
    ones = [torch.ones(1, 1, dtype=torch.float64)] * (depth - mlp.depth)
    weights = [*(scale * w for w in rest), root * row[None], *ones, root * column[:, None]]
    grown = math.sqrt(depth / sum(float(w.square().sum()) for w in weights))
    return from_layers([w.cpu() * grown for w in weights])
