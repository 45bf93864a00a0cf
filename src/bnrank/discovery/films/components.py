"""Principal components of frames: what networks predict, and by default what they see."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float32]

MAX_FRAMES = 2000  # from which components are computed
MAX_NUMBERS = 1 << 28  # in these frames
MOST = 64  # components
SHARE = 0.9995  # of the variance, that suffices


@dataclass(frozen=True)
class Components:
    """The leading principal components of frames.

    Attributes
    ----------
    mean : ndarray
        The mean frame, (pixels,).
    basis : ndarray
        Orthonormal columns, (pixels, components).
    scale : float
        Standard deviation of a frame about the mean, by which components are divided; 0 if the frames are equal.
    share : float
        Share of the variance in the components.
    """

    mean: Array
    basis: Array
    scale: float
    share: float

    def project(self, film: Array) -> Array:
        """Return the components of frames, (T, ...) -> (T, components)."""
        flat = film.reshape(len(film), -1)
        return np.asarray((flat @ self.basis - self.mean @ self.basis) / (self.scale or 1.0), dtype=np.float32)

    def restore(self, codes: Array) -> Array:
        """Return the frames (N, pixels) of components (N, components)."""
        return np.asarray(self.mean + self.scale * (codes @ self.basis.T), dtype=np.float32)


def components_of(films: Sequence[Array], seed: int) -> Components:
    """Return the components of films (T, H, W, C), from at most 2,000 frames."""
    pixels = films[0][0].size
    rows = [(i, t) for i, film in enumerate(films) for t in range(len(film))]
    most = max(MOST, min(MAX_FRAMES, MAX_NUMBERS // pixels))
    if len(rows) > most:
        chosen = np.random.default_rng(seed).choice(len(rows), most, replace=False)
        rows = [rows[i] for i in np.sort(chosen)]
    table = torch.from_numpy(np.stack([films[i][t].reshape(-1) for i, t in rows]))
    mean = table.mean(0)
    table = table - mean
    total = float(table.square().sum(1).double().mean())
    rank = min(MOST, *table.shape)
    s, basis = _leading(table, min(rank + 16, *table.shape), seed)
    shares = np.cumsum(s.double().numpy() ** 2)[:rank] / max(total * len(rows), 1e-300)
    number = min(rank, int(np.searchsorted(shares, SHARE)) + 1)
    constant = total <= pixels * (1e-6 * float(mean.abs().max())) ** 2
    scale = 0.0 if constant else float(np.sqrt(total))
    return Components(mean.numpy(), basis[:, :number].contiguous().numpy(), scale, float(min(1.0, shares[number - 1])))


def _leading(table: Tensor, number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return singular values and right singular vectors by subspace iteration, as `torch.svd_lowrank` does.

    The random start has an own generator.
    """
    tall = table.T if len(table) < table.shape[1] else table
    draw = torch.randn(tall.shape[1], number, generator=torch.Generator().manual_seed(seed), dtype=table.dtype)
    q = torch.linalg.qr(tall @ draw).Q
    for _ in range(4):
        q = torch.linalg.qr(tall @ torch.linalg.qr(tall.T @ q).Q).Q
    u, s, vh = torch.linalg.svd(q.T @ tall, full_matrices=False)
    return s, q @ u if len(table) < table.shape[1] else vh.T
