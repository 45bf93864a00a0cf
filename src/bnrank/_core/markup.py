"""The content of a result as HTML for notebooks: no scripts, nothing loaded, at most about 200 kB, any color scheme."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from bnrank._core import text
from bnrank._core.content import STATUS, Curves, Fold, Headline, Part, Table
from bnrank._core.sampling import evenly_spaced

LIMIT = 150_000  # bytes of the parts of a result
MAX_ROWS, FIRST_ROWS = 40, 10  # of a table without a fold, and of a folded one
MAX_LINE, MAX_CELL, LONG_CELL = 4000, 400, 32  # characters
MAX_CURVES, MAX_POINTS = 16, 120
WIDTH, HEIGHT = 240, 48  # of curves, in pixels
DECADE = 10.0  # largest over smallest value above which curves are logarithmic

SIGNS = {"good": "✓", "bad": "✗", "warn": "?", "none": "–"}
STYLE = (
    ".bnrank{color:inherit;font-size:.95em;line-height:1.4;max-width:100%}"
    ".bnrank p.l{margin:.15em 0;overflow-wrap:anywhere}"
    ".bnrank p.h{font-weight:600}"
    ".bnrank div.t{overflow-x:auto;margin:.4em 0}"
    ".bnrank table.t{border-collapse:collapse;margin:0;color:inherit;font-size:.95em;width:auto;display:table}"
    ".bnrank table.t caption{caption-side:top;text-align:left;padding:.1em 0;color:inherit;opacity:.75;"
    "white-space:nowrap}"
    ".bnrank table.t tr{background:none}"
    ".bnrank table.t th,.bnrank table.t td{text-align:left;vertical-align:top;padding:.15em .7em .15em 0;"
    "border:0;color:inherit;background:none;white-space:nowrap;font-weight:400;max-width:none}"
    ".bnrank table.t thead th{font-weight:600;vertical-align:bottom;"
    "border-bottom:1px solid;border-bottom-color:color-mix(in srgb,currentColor 45%,transparent)}"
    ".bnrank table.t thead th.n{white-space:normal;min-width:3.5em}"
    ".bnrank table.t tbody tr+tr>*{border-top:1px solid;"
    "border-top-color:color-mix(in srgb,currentColor 14%,transparent)}"
    ".bnrank table.t .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".bnrank table.t .w{white-space:normal;min-width:14em;max-width:38em;overflow-wrap:anywhere}"
    ".bnrank .m{white-space:nowrap;border:1px solid;border-radius:.7em;padding:0 .5em}"
    ".bnrank .m.good{border-color:color-mix(in srgb,currentColor 35%,transparent)}"
    ".bnrank .m.warn{border-style:dashed}"
    ".bnrank .m.bad{border-width:2px;font-weight:700}"
    ".bnrank .m.none{border-color:transparent;opacity:.75}"
    ".bnrank details{margin:.3em 0}.bnrank summary{cursor:pointer}"
    ".bnrank details.a[open]+div.t{display:none}"
    ".bnrank figure{margin:.4em 0}.bnrank figcaption{opacity:.75}"
    ".bnrank svg{display:block;max-width:100%;background:none}"
)


def page(parts: Iterable[Part]) -> str:
    """Return the parts as one HTML element with its style; the first line is its headline.

    Where the parts exceed the limit of size, rows and lines at the end are left out, and a remark says so.

    Examples
    --------
    >>> page(["rank < 3"]).partition("</style>")[2]
    "<p class='l h'>rank &lt; 3</p></div>"
    """
    inner = _blocks(parts, LIMIT, headline=True)
    start = "<div class='bnrank tex2jax_ignore' style='overflow-x:auto'>"
    return f"{start}<style>{STYLE}</style>{inner}</div>"


def _blocks(parts: Iterable[Part], left: int, headline: bool = False) -> str:
    """Return parts as HTML of at most about ``left`` bytes."""
    each = [line for part in parts for line in (part.split("\n") if isinstance(part, str) else [part])]
    found: list[str] = []
    for i, part in enumerate(each):
        if left <= 0:
            found.append(_line(f"… {len(each) - i:,} more lines or tables are not shown"))
            break
        if isinstance(part, str | Headline):
            piece = _line(part if isinstance(part, str) else part.text, headline and i == 0)
        elif isinstance(part, Table):
            piece = table(part, left)
        elif isinstance(part, Fold):
            inner = _blocks(part.parts or part.plain, left)
            piece = f"<details><summary>{escaped(part.title)}</summary>{inner}</details>"
        else:
            piece = curves(part)
        found.append(piece)
        left -= len(piece.encode())
    return "".join(found)


def _line(line: str, headline: bool = False) -> str:
    indent = len(line) - len(line.lstrip(" "))
    style = f" style='padding-left:{min(indent, 12) / 2:g}em'" if indent else ""
    return f"<p class='l{' h' if headline else ''}'{style}>{escaped(line, MAX_LINE)}</p>"


def escaped(value: str, limit: int = MAX_CELL) -> str:
    """Return text of at most so many characters, escaped; characters that no encoding has are replaced.

    Examples
    --------
    >>> escaped("<b>'&"), escaped("x" * 9, limit=4)
    ('&lt;b&gt;&#x27;&amp;', 'xxxx…')
    """
    value = value.strip(" ")
    cut = value if len(value) <= limit else f"{value[:limit]}…"
    return html.escape(cut.encode("utf-8", "replace").decode().replace("\x00", "�"))


def table(found: Table, left: int = LIMIT) -> str:
    """Return a table; a long one is folded below its first rows, and what exceeds ``left`` bytes is left out."""
    rows = found.rows[: max(left // 20, 1)]  # a row has at least 20 bytes
    if not rows:
        return ""
    headings, cells = text.grid(rows)
    numeric = text.numeric_columns(headings, cells)
    head = "".join(f"<th scope='col'{_class(h, n)}>{escaped(h)}</th>" for h, n in zip(headings, numeric, strict=True))
    lines: list[str] = []
    left -= len(head.encode())
    for line in cells:
        lines.append(_row(headings, line, numeric))
        left -= len(lines[-1].encode()) * (2 if len(lines) <= FIRST_ROWS else 1)  # folded, the first ones occur twice
        if left < 0:
            lines.pop()
            break
    total = len(found.rows)
    cut = f"<p class='l'>… {total - len(lines):,} of {total:,} rows are not shown</p>" if len(lines) < total else ""
    if not lines:
        return f"<p class='l'>{escaped(found.caption)}: a table of {total:,} rows that is too large to show</p>"
    if len(lines) <= MAX_ROWS:
        return _whole(found.caption, head, lines) + cut
    few = _whole(f"{found.caption}, the first {FIRST_ROWS} of {total:,}", head, lines[:FIRST_ROWS])
    count = f"all {total:,}" if len(lines) == total else f"{len(lines):,} of {total:,}"
    folded = f"<details class='a'><summary>{escaped(found.caption)}: {count} rows</summary>"
    return f"{folded}{_whole(found.caption, head, lines)}{cut}</details>{few}"


def _whole(caption: str, head: str, lines: Sequence[str]) -> str:
    inner = f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class='t' style='overflow-x:auto'><table class='t'>{inner}</table></div>"


def _class(entry: str, numeric: bool) -> str:
    return " class='n'" if numeric else " class='w'" if len(entry) > LONG_CELL else ""


def _row(headings: Sequence[str], line: Sequence[str], numeric: Sequence[bool]) -> str:
    cells = []
    for j, (heading, entry) in enumerate(zip(headings, line, strict=True)):
        said = mark(entry) if _is_status(headings, line, heading) else escaped(entry)
        tag = ("th scope='row'", "th") if j == 0 else ("td", "td")
        cells.append(f"<{tag[0]}{_class(entry, numeric[j])}>{said}</{tag[1]}>")
    return f"<tr>{''.join(cells)}</tr>"


def _is_status(headings: Sequence[str], line: Sequence[str], heading: str) -> bool:
    """Return whether an entry is a status: in a column of that name, or the value of an attribute of that name."""
    return heading in ("status", "result", "verdict") or (
        heading == "value" and headings[0] == "attribute" and line[0] == "status"
    )


def mark(word: str) -> str:
    """Return a status word with a sign and a frame that tell it from others without color; other words as they are.

    Examples
    --------
    >>> mark("violated"), mark("not applicable"), mark("finished")
    ("<span class='m bad'>✗ violated</span>", "<span class='m none'>– not applicable</span>", 'finished')
    """
    kind = "none" if word == "not applicable" else STATUS.get(word, "")
    if not kind:
        return escaped(word)
    sign = SIGNS["good" if word.startswith("holds") else kind]
    return f"<span class='m {kind}'>{sign} {escaped(word)}</span>"


def curves(found: Curves) -> str:
    """Return curves as a small picture, SVG; logarithmic if all values are positive and span more than a decade."""
    known = [v for values in found.values for v in values if math.isfinite(v)]
    span = [x for x in found.x if math.isfinite(x)]
    if len(span) < 2 or len(known) < 2:
        return ""
    log = min(known) > 0 and max(known) > DECADE * min(known)
    scaled = [[_height(v, log) for v in values] for values in found.values]
    heights = [v for values in scaled for v in values if math.isfinite(v)]
    low, high, left, right = min(heights), max(heights), min(span), max(span)
    drawn = []
    for k in evenly_spaced(len(scaled), MAX_CURVES).tolist():
        points = []
        for i in evenly_spaced(len(found.x), MAX_POINTS).tolist():
            x, y = found.x[i], scaled[k][i]
            if math.isfinite(x) and math.isfinite(y):
                across = 2 + (WIDTH - 4) * ((x - left) / (right - left) if right > left else 0.5)
                points.append(f"{across:.1f},{2 + (HEIGHT - 4) * (1 - _share(y, low, high)):.1f}")
        drawn.append(f"<polyline points='{' '.join(points)}'/>")
    scale = ", logarithmic" if log else ""
    said = f"{found.caption}: {min(known):.4g} to {max(known):.4g}{scale}"
    style = f"fill='none' stroke='currentColor' stroke-width='1.2' stroke-opacity='{0.9 if len(drawn) == 1 else 0.5}'"
    size = f"width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}'"
    picture = f"<svg role='img' aria-label='{escaped(said)}' {size} {style}>{''.join(drawn)}</svg>"
    return f"<figure>{picture}<figcaption>{escaped(said)}</figcaption></figure>"


def _height(value: float, log: bool) -> float:
    return math.log10(value) if log and math.isfinite(value) else value


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
