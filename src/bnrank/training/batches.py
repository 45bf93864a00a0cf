"""The order in which mini-batches come."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

__all__ = ["BatchOrder"]


class BatchOrder:
    """Sample numbers of every member's mini-batch at a given step: epochs in shuffled order, a last short one dropped.

    The order is a function of (member's seed, epoch) alone, so that a member sees the same batches alone and in an
    ensemble, and a resumed run goes on as if it had not been interrupted.

    Parameters
    ----------
    seeds : list of int
        One seed per member.
    n : int
        Number of samples.
    batch_size : int
        Samples per batch, at most n.

    Examples
    --------
    >>> order = BatchOrder([0, 1], n=10, batch_size=5)
    >>> sorted(torch.cat([order.at(0)[0], order.at(1)[0]]).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, seeds: list[int], n: int, batch_size: int) -> None:
        self.seeds, self.n, self.batch_size = seeds, n, batch_size
        self.per_epoch = n // batch_size
        self._epoch = -1
        self._order = torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the sample numbers of step ``step``, shape (members, batch_size)."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = torch.stack([self._permutation(seed, epoch) for seed in self.seeds])
            self._epoch = epoch
        return self._order[:, position * self.batch_size : (position + 1) * self.batch_size]

    def keep(self, members: list[int]) -> BatchOrder:
        """Return the order for some of the members."""
        return BatchOrder([self.seeds[i] for i in members], self.n, self.batch_size)

    def _permutation(self, seed: int, epoch: int) -> Tensor:
        digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        return torch.randperm(self.n, generator=generator)
