"""Tangent spaces of the hidden domains of a network: what their change from point to point costs (T9, T11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bnrank.theory.facts import Facts


@dataclass(frozen=True)
class TangentChange:
    """The least cost of the change of the tangent spaces between pairs of points, layer by layer.

    Let M_l(x) be the image of k directions at x after layer l, A and B the images M_{l-1}(x), M_{l-1}(y) of two points
    with principal angles t_i, and t'_i the angles between W_l A and W_l B. Then

    ||W_l||_F^2 - k - log |W_l P_A|_+ - log |W_l P_B|_+ >= max(sum_i log(2 / (1 + cos t_i)), sum_i log(1 + sin t'_i)).

    The left side is Tr C - k minus log-determinants of restrictions of C = W_l^T W_l, a convex function of C; by
    symmetry its minimum has an equal share of both spaces. The second bound is that of W_l^+ on the images, as in the
    proof of Jacot2023b proposition 5, where it is the bound on R1(id; Omega) of T17b. Summed over the layers, the
    logarithms are at least log |Jf(x)|_+ + log |Jf(y)|_+, of the k directions.

    Attributes
    ----------
    pairs : Tensor
        Positions of both points in the given rows, (P, 2).
    costs : Tensor
        The right side for every pair and layer, (P, L).
    angles : Tensor
        The largest t'_i in radians, (P, L); at the last layer, between the images of Jf.
    """

    pairs: Tensor
    costs: Tensor
    angles: Tensor


def tangent_change_at(facts: Facts, rows: Sequence[int], k: int) -> TangentChange:
    """Return the costs of the change of tangent spaces between all pairs of rows, for the k largest directions.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), torch.eye(2)])
    >>> facts = bnrank.theory.Facts(net, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> found = bnrank.theory.tangents.tangent_change_at(facts, rows=[0, 1], k=1)     # along e1 and e2
    >>> torch.allclose(found.costs[0].exp(), torch.tensor([2.0, 2.0]).double())
    True
    """
    narrow = [facts.paths[row].narrow(k) for row in rows]
    i, j = torch.triu_indices(len(rows), len(rows), 1)
    costs, angles = [], []
    for layer in range(facts.depth):
        before = torch.stack([at.bases[layer] for at in narrow])
        after = torch.stack([at.left[layer] for at in narrow])
        cosines = torch.linalg.svdvals(before[i].mT @ before[j]).clamp(max=1.0)
        sines = torch.linalg.svdvals(after[j] - after[i] @ (after[i].mT @ after[j])).clamp(max=1.0)
        costs.append(torch.maximum((2 / (1 + cosines)).log().sum(1), torch.log1p(sines).sum(1)))
        angles.append(sines[:, 0].asin())
    return TangentChange(torch.stack([i, j], 1), torch.stack(costs, 1), torch.stack(angles, 1))
