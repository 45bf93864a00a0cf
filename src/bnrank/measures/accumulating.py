"""Singular values of tall matrices whose rows come in blocks."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bnrank._core import validation

__all__ = ["Accumulator"]

METHODS = ("qr", "gram")


class Accumulator:
    """Singular values of a tall matrix that is given in blocks and never stored as a whole.

    Parameters
    ----------
    method : "qr" or "gram"
        "qr" keeps the R factor of all rows so far (R <- R factor of [R; piece]): as accurate as the SVD of the whole
        matrix. "gram" adds up piece^T piece: faster for wide layers, but it squares the condition number, so that
        values below about 1e-8 of the largest are noise.

    Examples
    --------
    >>> import torch
    >>> z = torch.randn(100, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> pieces = Accumulator()
    >>> for piece in z.split(30):
    ...     pieces.add(piece)
    >>> torch.allclose(pieces.singular_values(), torch.linalg.svdvals(z))
    True
    """

    def __init__(self, method: str = "qr") -> None:
        self.method = validation.choice(method, "method", METHODS)
        self.rows = 0
        self._state: Tensor | None = None  # the Gram matrix
        self._held: list[Tensor] = []  # the R factor of the first rows, and all later ones

    def add(self, piece: Tensor) -> None:
        """Add rows, (n, features), or to each of several matrices, (..., n, features); complex ones for "qr" only."""
        piece = validation.dense(validation.kind(piece, "piece", Tensor), "piece").detach()
        known = self._state if self._state is not None else self._held[0] if self._held else None
        ndim, features = piece.ndim, None if known is None else known.shape[-1]
        fits = (ndim == 2 if self.method == "gram" else ndim >= 2) and features in (None, piece.shape[-1])
        expected = f"(n, {'features' if features is None else features})"
        validation.expect(fits, "piece", f"shape {tuple(piece.shape)}", expected)
        real = self.method == "qr" or not piece.is_complex()
        validation.expect(real, "piece", "complex numbers", "real ones for the method 'gram'", TypeError)
        self.rows += piece.shape[-2]
        if self.method == "gram":
            piece = piece.to(torch.float64)
            gram = piece.T @ piece
            self._state = gram if self._state is None else self._state.add_(gram)
            return
        self._held.append(piece.clone() if piece.is_complex() else piece.to(torch.float64, copy=True))
        features, first = piece.shape[-1], self._held[0].shape[-2]
        held = sum(part.shape[-2] for part in self._held)
        if held > features and held - first >= features // 2:  # not after every small piece
            self._held = [_scaled(_triangle, self._joined())]

    def _joined(self) -> Tensor:
        """Return all rows that are held, and hold them as one tensor."""
        if len(self._held) > 1:
            self._held = [torch.cat(self._held, -2)]
        return self._held[0]

    def singular_values(self) -> Tensor:
        """Return the min(rows, features) singular values of all rows so far, descending."""
        if self._state is None and not self._held:
            return torch.zeros(0, dtype=torch.float64)
        matrix = self._joined() if self._state is None else self._state
        if not bool(torch.isfinite(matrix).all()):
            raise ValueError("piece: got NaN, infinite or too large entries, expected finite ones")
        if self._state is not None:
            values: Tensor = torch.linalg.eigvalsh(self._state).clamp(min=0).sqrt().flip(0)
        else:
            values = _scaled(_values, matrix)
        return values[..., : min(self.rows, matrix.shape[-1])]


def _triangle(matrix: Tensor) -> Tensor:
    """Return the R factor."""
    return torch.linalg.qr(matrix, mode="r")[1]


def _values(matrix: Tensor) -> Tensor:
    """Return the singular values; of much wider matrices by R factors of blocks of columns, in less memory."""
    rows, columns = matrix.shape[-2:]
    if columns <= 3 * rows:
        values: Tensor = torch.linalg.svdvals(matrix)
        return values
    size, factor = max(2 * rows, 256), matrix[..., :0].mT
    for start in range(0, columns, size):
        factor = _triangle(torch.cat([factor, matrix[..., start : start + size].mT], -2))
    return torch.linalg.svdvals(factor)


def _scaled(decomposition: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """Return a homogeneous decomposition of matrices, by way of 2^600 or 2^-600 times them where squares need it."""
    found = decomposition(matrices)
    largest = found.abs().max() if found.numel() else 1.0
    if 1e-150 < largest < 1e150:  # usual, and quickly seen
        return found
    size = matrices.abs().amax((-2, -1), keepdim=True)
    scale = torch.ones_like(size)
    scale[(size > 0) & (size < 1e-150)] = 2.0**600
    scale[(size > 1e150) & (size < math.inf)] = 2.0**-600
    if bool((scale == 1).all()):
        return found
    found = decomposition(matrices * scale)
    return found / (scale if found.ndim == scale.ndim else scale.squeeze(-1))
