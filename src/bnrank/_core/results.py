"""What all results share: how they print and how a notebook shows them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from bnrank._core import content, markup


class Printed:
    """Results that print in a few lines and that a notebook shows as HTML, both made of the same content: a mixin.

    A class whose text is a few lines defines ``__str__``. One with tables defines ``_content``, which returns lines and
    parts of :mod:`bnrank._core.content`. A notebook also shows the attributes of a dataclass, folded if there are
    tables.

    Examples
    --------
    >>> class Ranks(Printed):
    ...     def _content(self):
    ...         rows = [{"layer": "<1>", "rank": 5}, {"layer": "<2>", "rank": 12}]
    ...         return ["two layers", content.Table("Layers", rows)]
    >>> print(Ranks())
    two layers
    layer  rank
    <1>       5
    <2>      12
    >>> "<th scope='row'>&lt;2&gt;</th><td class='n'>12</td>" in Ranks()._repr_html_()
    True
    """

    __slots__ = ()

    def _content(self) -> Iterable[content.Part]:
        """Return what the result says of itself."""
        return [repr(self)] if type(self).__str__ is Printed.__str__ else str(self).splitlines()

    def __str__(self) -> str:
        return content.as_text(self._content())

    def _repr_html_(self) -> str:
        parts = list(self._content())
        return markup.page([*parts, *_attributes(self, any(isinstance(part, content.Table) for part in parts))])


def _attributes(result: object, folded: bool) -> list[content.Part]:
    """Return the public fields of a dataclass as a table."""
    if not dataclasses.is_dataclass(result):
        return []
    names = [field.name for field in dataclasses.fields(result) if not field.name.startswith("_")]
    rows = [{"attribute": name, "value": described(getattr(result, name))} for name in names]
    found = content.Table(f"Attributes of {type(result).__name__}", rows)
    return [content.Fold(found.caption, (), [found])] if folded or len(rows) > MAX_OPEN else [found]


MAX_OPEN = 20  # attributes that are shown without a fold
FEW = 8  # entries of a sequence or mapping that are shown


def described(value: object) -> object:
    """Return what a table of attributes shows of a value: plain ones as they are, others by type and size.

    Examples
    --------
    >>> import numpy as np
    >>> described(0.5), described((1, 2)), described(np.zeros((3, 40))), described({"depth": 3}), described([None] * 99)
    (0.5, (1, 2), 'float64 of shape (3, 40)', 'depth: 3', 'list of 99')
    """
    if _is_plain(value):
        return value
    if isinstance(value, Printed):
        return str(value).split("\n", 1)[0]
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and hasattr(value, "tolist"):
        few = len(shape) <= 1 and all(0 < size <= FEW for size in shape) and not getattr(value, "is_meta", False)
        return value.tolist() if few else f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}"
    sizes = getattr(value, "sizes", None)
    if isinstance(sizes, Mapping):  # of a dataset
        over = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        return f"{type(value).__name__} over {over}" if over else type(value).__name__
    if isinstance(value, Mapping):
        shown = {str(key): described(entry) for key, entry in list(value.items())[:FEW]}
        few = 0 < len(value) <= FEW and all(map(_is_plain, shown.values()))
        return ", ".join(f"{k}: {e}" for k, e in shown.items()) if few else f"{type(value).__name__} of {len(value)}"
    if isinstance(value, tuple | list):
        if 0 < len(value) <= FEW and all(map(_is_plain, value)):
            return value
        kinds = {type(entry).__name__ for entry in value if not _is_plain(entry)}
        return f"{type(value).__name__} of {len(value)}{' ' * bool(kinds)}{' or '.join(sorted(kinds)[:3])}"
    return type(value).__name__


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | bool | int | float)
