"""On how many linear combinations of the inputs the outputs depend: the dimension before the bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators.cutting import changes
from bnrank.measures.jacobian import jacobians
from bnrank.networks.mlp import MLP

__all__ = ["InputDirections", "input_directions"]

ROWS = 500  # that derivatives are averaged over


@dataclass(frozen=True)
class InputDirections:
    """The subspace of inputs that f depends on.

    Attributes
    ----------
    number : int
        Least j for which f, with x projected on the first j directions, changes by no more than the tolerance.
    spectrum : ndarray
        Root mean square of the derivative of f along each principal direction, descending, (d_in,).
    """

    number: int
    spectrum: np.ndarray


def input_directions(net: MLP, x: Tensor, tolerance: float, classes: int = 0) -> InputDirections:
    """Find the directions of input space along which f varies, those of mean_i Jf(x_i)^T Jf(x_i).

    A function of one output has a bottleneck of dimension 1 whatever it is; this number still tells functions apart. It
    is that of the central mean subspace of sufficient dimension reduction, estimated by the outer product of gradients
    (Xia et al. 2002) of the network.

    Parameters
    ----------
    net : MLP
        f, in the scale of training.
    x : Tensor
        Rows, (N, d_in).
    tolerance : float
        In units of the loss.
    classes : int
        Number of classes, 0 for the squared error.

    Examples
    --------
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3)[:2], torch.ones(1, 2)], [torch.zeros(2), torch.zeros(1)])
    >>> input_directions(net, torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), 1e-6).number
    2
    """
    net, x = net.double(), x.double()[:: max(1, len(x) // ROWS)]
    gram = sum((j.mT @ j).sum(0) for j in jacobians(net, x, kink_rtol=None)) / len(x)
    values, directions = torch.linalg.eigh(gram)
    spectrum, directions = values.flip(0).clamp_min(0).sqrt().numpy(), directions.flip(1)
    with torch.no_grad():
        full, centre = net(x), x.mean(0)
        for j in range(len(spectrum)):
            kept = directions[:, :j]
            changed = changes(full, net(centre + (x - centre) @ kept @ kept.T), classes)
            if float(changed.mean()) <= max(tolerance, 1e-12):
                return InputDirections(j, spectrum)
    return InputDirections(len(spectrum), spectrum)
