"""Blocks of a page: text, tables, pictures, charts. Templates render them as HTML."""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from bnrank._core import text as tables
from bnrank._core import validation
from bnrank._core.content import STATUS
from bnrank.reporting.charts.parts import View


@dataclass(frozen=True)
class Text:
    """A paragraph, followed by a command where there is one; a "note", "headline", "heading" or "pre" (lines kept)."""

    text: str
    style: str = ""
    code: str = ""


@dataclass(frozen=True)
class Said:
    """Marked text (good, bad, warn or neutral), and lines after it."""

    text: str
    mark: str
    lines: Sequence[str] = ()
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """A table cell: text, a mark or a link, with small print below."""

    text: str
    mark: str = ""
    kind: str = ""
    lead: str = ""
    formula: str = ""
    note: str = ""
    href: str = ""


@dataclass(frozen=True)
class Table:
    """A table, scrolling or shown in full; ``columns`` are pairs of a heading and whether the column is numeric."""

    caption: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[Cell]]
    whole: bool = False
    show_caption: bool = True


@dataclass(frozen=True)
class Picture:
    """An image in the page."""

    caption: str
    mime: str
    data: str
    alt: str
    width: int | None = None


@dataclass(frozen=True)
class Plot:
    """Charts in a box of this id."""

    id: str
    view: View


@dataclass(frozen=True)
class Details:
    """Collapsed blocks under a title."""

    title: str
    blocks: Sequence[Block]
    heading: bool = False


Block = Text | Said | Table | Picture | Plot | Details


def paragraphs(text: str) -> list[Block]:
    """Return plain text as paragraphs; an empty line starts a new one."""
    parts = [part.strip() for part in text.replace("\r\n", "\n").split("\n\n")]
    return [Text(part) for part in parts if part]


def table(rows: Sequence[Mapping[str, object]], caption: str, whole: bool = False) -> list[Block]:
    """Return rows as a table, or nothing without rows; numbers are right-aligned, statuses carry a mark.

    A long table scrolls in its box unless ``whole``.
    """
    if not rows:
        return []
    headings, cells = tables.grid(rows)
    columns = list(zip(headings, tables.numeric_columns(headings, cells), strict=True))
    lines = [[_cell(*column, entry) for column, entry in zip(columns, line, strict=True)] for line in cells]
    return [Table(caption, columns, lines, whole)]


def _cell(heading: str, numeric: bool, entry: str) -> Cell:
    mark = STATUS.get(entry, "") if heading in ("result", "status") else ""
    return Cell(entry, mark, "num" if numeric else "long" if len(entry) > 24 else "")


def details(title: str, blocks: Sequence[Block], heading: bool = False) -> list[Block]:
    """Return blocks collapsed under a title, or nothing without blocks."""
    return [Details(title, blocks, heading)] if blocks else []


def plots_in(blocks: Iterable[Block]) -> Iterator[Plot]:
    """Return all charts among blocks, collapsed ones included."""
    for block in blocks:
        if isinstance(block, Plot):
            yield block
        elif isinstance(block, Details):
            yield from plots_in(block.blocks)


# pictures ------------------------------------------------------------------------------------------------------------

_SALTED = re.compile(rb'(?<=["#])(?:C[0-9a-f]+_[0-9a-f]+_|[A-Za-z]+)[0-9a-f]{10}(?=[")])')  # random names in SVG files
MIME = {".png": "image/png", ".svg": "image/svg+xml"}


def named_figures(figures: Any) -> dict[str, Any]:
    """Return figures by caption, from one figure, a sequence, or a mapping from caption to figure.

    An array of axes, as returned by the functions in `bnrank.plots`, represents its figure.
    """
    if figures is None:
        return {}
    if isinstance(figures, Mapping) and "data" not in figures:
        return {str(caption): entry for caption, entry in figures.items()}
    if isinstance(figures, list | tuple):
        return {f"Figure {i}": entry for i, entry in enumerate(figures, 1)}
    return {"Figure": figures}


def picture(value: Any, caption: str, alt: str = "") -> Picture:
    """Return a matplotlib figure (or axes of it) as an SVG picture, or the picture in a PNG or SVG file.

    Raises
    ------
    TypeError
        If it is neither a matplotlib figure nor axes, nor the path of such a file.
    """
    width = None
    if isinstance(value, Path) and value.suffix in MIME:
        mime, content = MIME[value.suffix], value.read_bytes()
        if mime == "image/png":
            with contextlib.suppress(OSError), PIL.Image.open(value) as image:  # a corrupted image is shown as such
                width = round(image.width * 96 / (image.info.get("dpi", (96, 96))[0] or 96))
    else:
        mime, content = "image/svg+xml", drawn(value, caption)
    return Picture(caption, mime, base64.b64encode(content).decode(), alt or caption, width)


def drawn(value: Any, caption: str, kind: str = "svg", **options: Any) -> bytes:
    """Return a matplotlib figure (or axes of it) as the content of an SVG or PNG file, the same for the same figure.

    ``options`` go to ``savefig``.

    Raises
    ------
    TypeError
        If it is neither a matplotlib figure nor axes; the message names ``caption``.
    """
    if isinstance(value, np.ndarray) and value.size:
        value = value.flat[0]
    figure: Any = value.figure if isinstance(value, Artist) else value
    if not isinstance(figure, Figure):
        expected = "a matplotlib figure or axes, or a plotly figure"
        raise TypeError(f"figures[{caption!r}]: got {validation.describe(value)}, expected {expected}")
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(buffer, format=kind, metadata=metadata, facecolor="white", **options)
    if kind != "svg":
        return buffer.getvalue()
    names: dict[bytes, bytes] = {}
    return _SALTED.sub(lambda name: names.setdefault(name.group(), b"part%d" % len(names)), buffer.getvalue())
