"""What else counts state variables: intrinsic-dimension formulas, principal components, encoder-decoder sweeps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

__all__ = ["LATENT", "Autoencoders", "formula", "principal_components", "train_autoencoders"]

LATENT = 64  # width of the latent space in which Chen et al. (2022) apply a formula
SWEEP = 8  # latent widths 1 to this
HIDDEN = 64
STEPS, BATCH, RATE = 800, 128, 3e-3
TOLERANCE = 0.01  # share of what is explained, as in bnrank


def principal_components(x: np.ndarray, share: float = 0.99) -> int:
    """Return how many principal components of x have a share of the variance.

    Examples
    --------
    >>> principal_components(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.01]]))
    1
    """
    variances = np.square(np.linalg.svd(x - x.mean(0), compute_uv=False))
    return int(np.searchsorted(np.cumsum(variances) / variances.sum(), share) + 1)


def formula(name: str, x: np.ndarray) -> float:
    """Return the intrinsic dimension of a cloud of points by a formula: "MLE" (Levina and Bickel 2004) or "TwoNN"."""
    import skdim

    estimator = {"MLE": skdim.id.MLE, "TwoNN": skdim.id.TwoNN}[name]()
    return float(estimator.fit(x).dimension_)


class Autoencoders:
    """Networks x -> 64 -> 64 -> latent -> 64 -> 64 -> y, one for each latent width 1, ..., 8 and one of width 64.

    All are trained side by side as one stack; a narrower one has the rest of its latent space set to zero.
    """

    def __init__(self, d_in: int, d_out: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.widths = [*range(1, SWEEP + 1), LATENT]
        sizes = [d_in, HIDDEN, HIDDEN, LATENT, HIDDEN, HIDDEN, d_out]
        self.parameters: list[Tensor] = []
        for fan_in, fan_out in pairwise(sizes):
            weight = torch.randn(len(self.widths), fan_in, fan_out, generator=generator) * (2 / fan_in) ** 0.5
            if fan_in == LATENT and len(self.parameters) == 6:  # only so many of the latent values arrive
                weight = weight * (fan_in / torch.tensor(self.widths)).sqrt()[:, None, None]
            self.parameters += [weight.requires_grad_(), torch.zeros(len(self.widths), 1, fan_out, requires_grad=True)]
        self.mask = (torch.arange(LATENT) < torch.tensor(self.widths)[:, None]).float()[:, None]

    def encode(self, x: Tensor) -> Tensor:
        """Return the latent values, (member, N, 64)."""
        values = x.expand(len(self.widths), *x.shape)
        for layer in range(3):
            values = torch.baddbmm(self.parameters[2 * layer + 1], values, self.parameters[2 * layer])
            values = values.relu() if layer < 2 else values * self.mask
        return values

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs, (member, N, d_out)."""
        values = self.encode(x)
        for layer in range(3, 6):
            values = torch.baddbmm(self.parameters[2 * layer + 1], values, self.parameters[2 * layer])
            values = values.relu() if layer < 5 else values
        return values


def train_autoencoders(x: np.ndarray, y: np.ndarray, seed: int, steps: int = STEPS) -> tuple[int, np.ndarray]:
    """Train the networks on three quarters of the rows; return the sweep's count and the wide one's latent values.

    The count is the least latent width whose held-out loss is within one standard error, or 1 percent of what is
    explained, of the least: the rule of bnrank, with one split into training and held-out rows.

    Returns
    -------
    tuple of int and ndarray
        The count, and the latent values (N, 64) of all rows.
    """
    scale = np.sqrt(y.var(axis=0).mean())
    inputs = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
    outputs = torch.from_numpy((y - y.mean(0)) / scale).float()
    generator = torch.Generator().manual_seed(seed + 1)
    order = torch.randperm(len(x), generator=generator)
    held_out, rows = order[: len(x) // 4], order[len(x) // 4 :]
    networks = Autoencoders(x.shape[1], y.shape[1], seed)
    optimizer = torch.optim.Adam(networks.parameters, lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = rows[torch.randint(len(rows), (min(BATCH, len(rows)),), generator=generator)]
        optimizer.zero_grad()
        (networks(inputs[batch]) - outputs[batch]).square().mean((1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        errors = (networks(inputs[held_out]) - outputs[held_out]).square().sum(2)[:SWEEP].double().numpy()
        latent = networks.encode(inputs)[-1].double().numpy()
    mean = (outputs[held_out] - outputs[rows].mean(0)).square().sum(1).double().numpy()
    return least_width(errors, mean), latent


def least_width(errors: np.ndarray, mean: np.ndarray) -> int:
    """Return the least width, from 1, whose held-out loss (width, row) is near enough to the least.

    Examples
    --------
    >>> least_width(np.array([[2.0, 2.2], [0.1, 0.3], [0.1, 0.2]]), np.array([4.0, 4.0]))
    2
    """
    losses = errors.mean(axis=1)
    best = int(losses.argmin())
    error = errors[best].std() / np.sqrt(errors.shape[1])
    allowed = losses[best] + max(error, TOLERANCE * max(mean.mean() - losses[best], 0.0))
    return int(np.argmax(losses <= allowed)) + 1
