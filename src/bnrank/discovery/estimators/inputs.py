"""On how many linear combinations of the inputs the outputs depend: the dimension before the bottleneck."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bnrank.discovery.estimators.counting import by_group, least_within_error
from bnrank.discovery.estimators.linear import sample_losses
from bnrank.discovery.estimators.path import Path, apart
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.mlp import MLP

__all__ = ["InputDirections", "number_of_directions"]

ROWS = 500  # that derivatives are averaged over
DEAD = 1e-9  # spread, relative to the largest, below which a combination of inputs does not vary


class InputDirections:
    """The combinations of inputs that f depends on, most important first.

    With x = center + S u, u of covariance 1 on the rows given, they are the principal directions of the derivative in
    u, those of mean_i S^T Jf(x_i)^T Jf(x_i) S: their number does not change with the coordinates of x, and combinations
    that hardly vary on the rows come last, whatever f does along them. A function of one output has a bottleneck of
    dimension 1 whatever it is; the number of directions still tells functions apart. It is that of the central mean
    subspace of sufficient dimension reduction, estimated by the outer product of gradients (Xia et al. 2002) of the
    network.

    Parameters
    ----------
    net : MLP
        f, in the scale of training.
    x : Tensor
        Rows, (N, d_in).

    Attributes
    ----------
    spectrum : ndarray
        Root mean square of the derivative of f along each direction, descending, (d_in,).

    Examples
    --------
    >>> from bnrank.networks.mlp import from_layers
    >>> net = from_layers([torch.eye(3)[:2], torch.ones(1, 2)], [torch.zeros(2), torch.zeros(1)])
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> found = InputDirections(net, x)
    >>> torch.allclose(net.double()(found.project(x, 2)), net(x))
    True
    """

    def __init__(self, net: MLP, x: Tensor) -> None:
        net, x = net.double(), x.double()
        self.center = x.mean(0)
        _, s, vt = torch.linalg.svd((x - self.center) / len(x) ** 0.5, full_matrices=False)
        varies = s > DEAD * max(float(s[0]), 1e-300)
        up = vt[varies] * s[varies, None]
        some = x[:: max(1, len(x) // ROWS)]
        gram = torch.as_tensor(sum((j.mT @ j).sum(0) for j in Jacobian(net, some, kink_rtol=None).chunks())) / len(some)
        values, directions = torch.linalg.eigh(up @ gram @ up.T)
        directions = directions.flip(1)
        self.down = (vt[varies].T / s[varies]) @ directions
        self.up = directions.T @ up
        self.spectrum = np.zeros(x.shape[1])
        self.spectrum[: len(values)] = values.flip(0).clamp_min(0).sqrt().numpy()

    def project(self, x: Tensor, number: int) -> Tensor:
        """Return x with all combinations but the first so many at their means."""
        return self.center + (x - self.center) @ self.down[:, :number] @ self.up[:number]


def number_of_directions(path: Path, ridge: float) -> int:
    """Return the least number of directions from which the networks of a ridge predict held-out rows as well.

    As the count: on every fold the network sees only its first j directions, and j is the least whose held-out loss is
    within one standard error of the best. At least 1.
    """
    data = path.data
    errors = np.zeros((data.x.shape[1] + 1, len(data.x)))
    for fit in path.fits:
        if fit.fold is None or fit.ridge != ridge:
            continue
        out = path.folds == fit.fold
        known, held_out = apart(data, out)
        net, x = fit.network.double(), torch.from_numpy(held_out.x).double()
        found = InputDirections(net, torch.from_numpy(known.x))
        for j in range(len(errors)):
            with torch.no_grad():
                values = net(found.project(x, j)).numpy()
            errors[j, out] = sample_losses(values, held_out.y, data.classes)
    return max(least_within_error(by_group(errors, path.groups), paired=False, tolerance=path.tolerance), 1)
