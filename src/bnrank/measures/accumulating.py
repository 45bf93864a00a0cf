"""Singular values of tall matrices whose rows come in blocks."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bnrank._core import heap, validation

__all__ = ["Accumulator"]

METHODS = ("qr", "gram")


class Pieces:
    """What :class:`Accumulator` is, without checks of what is given.

    Examples
    --------
    >>> pieces = Pieces()
    >>> pieces.add(torch.diag(torch.tensor([3.0, 4.0])))
    >>> pieces.singular_values()
    tensor([4., 3.], dtype=torch.float64)
    """

    def __init__(self, method: str = "qr") -> None:
        self.method, self.rows = method, 0
        self._held: list[Tensor] = []  # the R factor of the first rows and all later ones, or the Gram matrix

    def add(self, piece: Tensor) -> None:
        """Add rows."""
        rows = piece.clone() if piece.is_complex() else piece.to(torch.float64, copy=True)
        if self.method == "gram":
            gram = rows.mT @ rows
            self._held = [self._held[0].add_(gram) if self._held else gram]
        else:
            self._held.append(rows)
            width, later = rows.shape[-1], sum(part.shape[-2] for part in self._held[1:])
            if self._held[0].shape[-2] + later > width and later >= width // 2:  # not after every small piece
                self._held = [_scaled(_triangle, self._held)]
        self.rows += rows.shape[-2]

    def singular_values(self) -> Tensor:
        """Return the min(rows, features) singular values of all rows so far, descending."""
        if not self._held:
            return torch.zeros(0, dtype=torch.float64)
        sizes = [float(torch.linalg.vector_norm(part, math.inf)) for part in self._held if part.numel()]
        if not all(map(math.isfinite, sizes)):
            raise ValueError("piece: got NaN, infinite or too large entries, expected finite ones")
        if self.method == "gram":
            values: Tensor = torch.linalg.eigvalsh(self._held[0]).clamp(min=0).sqrt().flip(-1)
            return values[..., : self.rows]
        is_usual = 1e-150 < max(sizes, default=1.0) < 1e150
        return _values(self._held) if is_usual else _scaled(_values, self._held)


class Accumulator(Pieces):
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
        super().__init__(validation.choice(method, "method", METHODS))

    def add(self, piece: Tensor) -> None:
        """Add rows, (n, features), or to each of several matrices, (..., n, features); complex ones for "qr" only."""
        piece = validation.dense(validation.kind(piece, "piece", Tensor), "piece").detach()
        features = self._held[0].shape[-1] if self._held else None
        fits = (piece.ndim == 2 if self.method == "gram" else piece.ndim >= 2) and features in (None, piece.shape[-1])
        validation.expect(fits, "piece", f"shape {tuple(piece.shape)}", f"(n, {features or 'features'})")
        if self.method == "gram" and piece.is_complex():
            raise TypeError("piece: got complex numbers, expected real ones for the method 'gram'")
        super().add(piece)


def _triangle(parts: Sequence[Tensor]) -> Tensor:
    """Return the R factor of the rows of all parts."""
    return torch.linalg.qr(_joined(parts), mode="r")[1]


def _values(parts: Sequence[Tensor]) -> Tensor:
    """Return the singular values of the rows of all parts."""
    rows, columns = sum(part.shape[-2] for part in parts), parts[0].shape[-1]
    if columns > 3 * rows:
        return _values_of_wide(parts, max(rows // 2, 256))
    values: Tensor = torch.linalg.svdvals(_joined(parts))
    return values


def _values_of_wide(parts: Sequence[Tensor], size: int) -> Tensor:
    """Return the singular values of few long rows, by so many columns at a time: in little memory beyond theirs."""
    factor: list[Tensor] = []  # the R factor of the columns so far
    for start in range(0, parts[0].shape[-1], size):
        factor = [_triangle([*factor, _joined([part[..., start : start + size] for part in parts]).mT])]
        heap.give_back()  # what a decomposition leaves free between what is in use
    values: Tensor = torch.linalg.svdvals(factor[0])
    return values


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts], -2)


def _scaled(decomposition: Callable[[Sequence[Tensor]], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Return a homogeneous decomposition of matrices, by way of 2^600 or 2^-600 times them where squares need it."""
    found = decomposition(parts)
    largest = found.abs().max() if found.numel() else 1.0
    if 1e-150 < largest < 1e150:  # usual, and quickly seen
        return found
    size = torch.stack([part.abs().amax((-2, -1), keepdim=True) for part in parts]).amax(0)
    scale = torch.ones_like(size)
    scale[(size > 0) & (size < 1e-150)] = 2.0**600
    scale[(size > 1e150) & (size < math.inf)] = 2.0**-600
    if bool((scale == 1).all()):
        return found
    found = decomposition([part * scale for part in parts])
    return found / (scale if found.ndim == scale.ndim else scale.squeeze(-1))
