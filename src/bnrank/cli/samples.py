"""Samples of a file, as the network that is measured on them takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bnrank.cli.terminal import say

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bnrank.tasks.tables import Table


@dataclass(frozen=True)
class Samples:
    """Samples x of a network, and y where there is one.

    Attributes
    ----------
    name : str
        The name of the data.
    x : ndarray
        Real numbers; integers where the network fails on real numbers, as on tokens.
    y : ndarray or None
        Real numbers, or class indices as int64, which texts are replaced by.
    """

    name: str
    x: np.ndarray
    y: np.ndarray | None

    @classmethod
    def of(cls, table: Table, net: nn.Module) -> Samples:
        """Return the samples of a table, in the precision in which :func:`bnrank.tasks.load_table` returns them."""
        from bnrank.tasks.tables import float32

        x = taken(table.x, net)
        x = float32(x) if x.dtype.kind == "f" else x
        y = table.with_class_indices().y
        if y is not None and table.class_names is None:
            y = _targets(y, net, x)
        return cls(table.name, x, y)

    def say_missing(self, consequence: str) -> None:
        """Say what is left out where there is no y."""
        if self.y is None:
            say(f"{self.name} has no y (in a .csv: --targets): {consequence}")


def taken(x: np.ndarray, net: nn.Module) -> np.ndarray:
    """Return x as real numbers; as integers where it has whole numbers and the network, such as one of tokens, fails.

    Examples
    --------
    >>> from torch import nn
    >>> [taken(np.array([[0, 2]]), net).dtype.kind for net in (nn.Linear(2, 1), nn.Embedding(3, 1))]
    ['f', 'i']
    """
    real = x if x.dtype.kind == "f" else x.astype(np.float64)
    real = real[:, None] if real.ndim == 1 else real
    if _outputs(net, real) is not None or not _is_whole(x):
        return real
    whole = x.astype(np.int64)
    return whole if _outputs(net, whole) is not None or _embeds(net) else real


def _is_whole(x: np.ndarray) -> bool:
    """Return whether x has whole numbers that int64 holds."""
    return bool(np.isfinite(x).all() and (np.floor(x) == x).all() and (np.abs(x) < 2.0**63).all())


def _embeds(net: nn.Module) -> bool:
    """Return whether a network that fails on x is one of integers, which the error is to be about."""
    from torch import nn

    return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in net.modules())


def _outputs(net: nn.Module, x: np.ndarray) -> torch.Size | None:
    """Return the shape of the outputs of a network at the first samples; None if it fails on them."""
    import torch

    from bnrank.networks.functional import Functional, PrecisionError, example

    try:
        samples = example(net, x[:2])
        with torch.no_grad():
            try:
                return Functional(net)(samples).shape
            except PrecisionError as error:
                return Functional(net, error.dtype or torch.float32)(samples).shape
    except (TypeError, ValueError):
        return None


def _targets(y: np.ndarray, net: nn.Module, x: np.ndarray) -> np.ndarray:
    """Return y as class indices if it has integers, one for each sample or position of the outputs, else as float32.

    Integers beside a single output per sample are real numbers, such as counts.
    """
    from bnrank.tasks.tables import float32

    outputs = _outputs(net, x) if y.dtype.kind in "iu" else None
    if y.dtype.kind not in "iu" or (outputs is not None and outputs[1:].numel() == 1):
        return float32(y)
    classes = y.ndim == 1 or (outputs is not None and len(outputs) > 2 and y.shape[1:] == outputs[1:-1])
    return y.astype(np.int64) if classes else float32(y)
