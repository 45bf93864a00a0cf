"""Vectors, points and fields in words, in names of columns."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bnrank.discovery.symmetry_search.fields import in_units

SMALL = 1e-3  # entries below this, relative to the largest, are omitted from texts
MAX_TERMS = 6


def combination(vector: Tensor, names: Sequence[str], units: Tensor | None = None, small: float = SMALL) -> str:
    """Return a vector in words, a combination of columns without terms below ``small`` of the largest in ``units``.

    Examples
    --------
    >>> combination(torch.tensor([0.6, 0.0, -0.8]), ["a", "b", "c"]), combination(torch.tensor([0.0, 1.0]), ["a", "b"])
    ('0.6 a - 0.8 c', 'b')
    """
    sizes = (vector if units is None else vector / units).abs()
    return _terms(torch.where(sizes > small * sizes.max(), vector, 0.0), names)


def _terms(vector: Tensor, names: Sequence[str]) -> str:
    """Return the largest entries that are not 0, in words."""
    kept = torch.nonzero(vector).flatten().tolist()
    if not kept:
        return "0"
    shown = sorted(sorted(kept, key=lambda i: -abs(float(vector[i])))[:MAX_TERMS])
    text = ""
    for i in shown:
        value = float(vector[i])
        size = f"{abs(value):.3g}"
        size = "" if size == "1" else size
        sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
        text += sign + (f"{size} {names[i]}".strip() or "1")
    more = len(kept) - len(shown)
    return text + (f" + {more} more" if more else "")


def field_text(field: Tensor, names: Sequence[str], units: Tensor | None = None, small: float = SMALL) -> str:
    """Return a field [A b], (d, d + 1), in words, the change of every column.

    Entries below ``small``, relative to the largest, are omitted; columns are in ``units`` (d,).

    Examples
    --------
    >>> field_text(torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), ["a", "b"])
    'da = 1, db = a'
    """
    units = field.new_ones(len(field)) if units is None else units
    sizes = in_units(field, units).abs()
    kept = torch.where(sizes > small * sizes.max(), field, 0.0)
    parts = [f"d{name} = {_terms(row, [*names, ''])}" for row, name in zip(kept, names, strict=True) if bool(row.any())]
    shown = parts[:MAX_TERMS]
    return ", ".join(shown) + (f" and {len(parts) - MAX_TERMS} more" if len(parts) > MAX_TERMS else "")


def point_text(
    point: Tensor, names: Sequence[str], units: Tensor | None = None, columns: Sequence[int] | None = None
) -> str:
    """Return a point in words, by its columns or some of them; zero is relative to ``units`` (d,).

    Examples
    --------
    >>> point_text(torch.tensor([1.0, 0.0]), ["a", "b"]), point_text(torch.zeros(2), ["a", "b"])
    ('a = 1, b = 0', '0')
    """
    columns = range(len(point)) if columns is None else columns
    zero = (point / (1.0 if units is None else units)).abs() < 1e-6
    if all(bool(zero[i]) for i in columns):
        return "0"
    shown = [f"{names[i]} = {0.0 if bool(zero[i]) else float(point[i]):.3g}" for i in columns]
    return ", ".join(shown[:MAX_TERMS]) + (", ..." if len(shown) > MAX_TERMS else "")
