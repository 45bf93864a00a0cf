"""A table with a known count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """Rows in the order in which they were measured, and the number of latent variables that carry x to y.

    Attributes
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out).
    truth : int
        The count; 0 if x and y are independent.
    groups : ndarray or None
        The group of every row, (N,), where the table says so.
    latents : ndarray or None
        What y is a function of, apart from noise, (N, truth); None if x and y are independent.
    """

    x: np.ndarray
    y: np.ndarray
    truth: int
    groups: np.ndarray | None = None
    latents: np.ndarray | None = None
