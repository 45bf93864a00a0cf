"""The parts of the page that need no script: text, tables, claims, settings, pictures. All text is escaped."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from bnrank._core import text, validation
from bnrank.measures.frequencies import label as label_of_frequency
from bnrank.reporting import tables
from bnrank.reporting.frequency_plots import kept_frequencies
from bnrank.reporting.sections import Section, bottleneck, flatten_settings
from bnrank.reporting.verdicts import about_rows, drawable, summary, tightness, typeset, verdict_rows
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED

__all__ = [
    "claims",
    "details",
    "drawn",
    "facts",
    "named_figures",
    "paragraphs",
    "picture",
    "settings",
    "table",
    "verdicts",
]

_STATUS = {"pass": "good", "converged": "good", "fail": "bad", "diverged": "bad", "interrupted": "warn"}
_STATUS |= {HOLDS: "good", f"{HOLDS} (vacuous)": "warn", VIOLATED: "bad", INCONCLUSIVE: "warn"}
_STATUS |= {"exact": "good", "approximate": "good", "off the data": "warn", "undetermined": "warn"}


def paragraphs(text: str) -> str:
    """Return plain text as paragraphs; an empty line starts a new one."""
    parts = [part.strip() for part in text.replace("\r\n", "\n").split("\n\n")]
    return "".join(f"<p>{escape(part)}</p>" for part in parts if part)


def table(rows: Sequence[Mapping[str, object]], caption: str, whole: bool = False) -> str:
    """Return rows as a table in a box; numbers are right-aligned, statuses carry a mark.

    A box of many rows scrolls by itself, unless all are to be seen at once (``whole``).
    """
    if not rows:
        return ""
    headings, cells = text.grid(rows)
    classes = [" class=num" if numeric else "" for numeric in text.numeric_columns(headings, cells)]
    head = "".join(f"<th scope=col{kind}>{escape(text)}</th>" for text, kind in zip(headings, classes, strict=True))
    body = ""
    for line in cells:
        marked = [_mark(heading, entry) for heading, entry in zip(headings, line, strict=True)]
        kinds = [kind or (" class=long" if len(entry) > 24 else "") for kind, entry in zip(classes, line, strict=True)]
        body += "<tr>" + "".join(f"<td{k}>{entry}</td>" for k, entry in zip(kinds, marked, strict=True)) + "</tr>"
    return (
        f'<div class="scroll{" whole" if whole else ""}" tabindex=0 role=region aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}"
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def details(title: str, body: str) -> str:
    """Return markup folded away under a title."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def claims(section: Section) -> str:
    """Return the claims of a section as a table headed by how many of them pass."""
    if not section.claims:
        return ""
    passed = sum(claim.passed is not None and bool(claim.passed) for claim in section.claims)
    return table(tables.claim_rows(section.claims), f"Claims: {passed} of {len(section.claims)} pass", whole=True)


def verdicts(section: Section) -> str:
    """Return the verdicts of a section: a table, those that do not apply folded away, a picture of the inequalities."""
    found = section.verdicts
    if found is None:
        return ""
    applied = [row for row in verdict_rows(found) if row["status"] != NOT_APPLICABLE]
    others = [row for row in verdict_rows(found) if row["status"] == NOT_APPLICABLE]
    body = _verdict_table(applied, f"Verdicts: {summary(found)}") if applied else ""
    if any(map(drawable, found)):
        body += picture(tightness(found), "Left side over right side of every inequality; 1 is equality.")
    if others:
        body += details(f"Not applicable ({len(others)})", _verdict_table(others, "Not applicable, and why"))
    return body + details("What the verdicts are about", table(about_rows(found), "Network and data"))


def _verdict_table(rows: Sequence[Mapping[str, object]], caption: str) -> str:
    """Return verdicts as a table of four columns: what is stated, its status, the numbers, what to know of them."""
    body = ""
    for row in rows:
        about = f"<b>{escape(str(row['id']))}</b> {escape(str(row['statement']))}"
        formula = f"<div class=formula>{escape(typeset(str(row['formula'])))}</div>"
        source = f"<div class=note>{escape(str(row['source']))}</div>"
        numbers = ""
        if row["relation"]:
            sides = f"{text.cell(row['left'])} {typeset(str(row['relation']))} {text.cell(row['right'])}"
            numbers = f"{sides}<div class=note>slack {text.cell(row['slack'])}</div>"
        remarks = escape(typeset(str(row["remarks"])))
        body += f"<tr><td class=stated>{about}{formula}{source}</td><td>{_mark('status', str(row['status']))}</td>"
        body += f"<td class=num>{numbers}</td><td class=remarks>{remarks}</td></tr>"
    head = "".join(f"<th scope=col{kind}>{name}</th>" for name, kind in _VERDICT_COLUMNS.items())
    return (
        f'<div class="scroll whole" tabindex=0 role=region aria-label="{escape(caption)}"><table><caption>'
        f"{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(profiles: Mapping[str, xr.Dataset]) -> str:
    """Return the bottleneck summary of each profile, what the sample says, and how it was measured."""
    rows = []
    for label, profile in profiles.items():
        row: dict[str, object] = {"profile": label, "layers": profile.sizes["layer"]}
        found = bottleneck(profile)
        row |= {heading: found[name] for name, heading in _BOTTLENECK.items() if found[name] is not None}
        if found["reason"]:
            row["undetermined because"] = found["reason"]
        kept = kept_frequencies(profile)["frequencies"]
        if kept:
            names = [label_of_frequency(entry["frequency"], entry["multiplicity"]) for entry in kept]
            pairs = zip(names, kept, strict=True)
            row["kept frequencies: channels"] = "; ".join(f"{name}: {entry['channels']}" for name, entry in pairs)
        if "parameter_norm" in profile:
            row["‖θ‖²"] = float(profile["parameter_norm"].sum())
        for name, heading in _PER_SAMPLE.items():
            if name in profile and profile[name].size and np.isfinite(profile[name].values).any():
                row[heading] = float(np.nanmedian(profile[name].values))
        rows.append(row)
    return table(rows, "Bottleneck")


def measured_with(profiles: Mapping[str, xr.Dataset]) -> str:
    """Return the tolerances and the other attributes that say how each profile was measured."""
    rows: dict[str, dict[str, object]] = {}
    for label, profile in profiles.items():
        for key, value in profile.attrs.items():
            if key in _SHOWN_ELSEWHERE or str(key).startswith("bottleneck"):
                continue
            rows.setdefault(str(key), {"measured with": str(key)})[label] = _plain(value)
    return table(list(rows.values()), "Tolerances and how it was measured")


def layers(profiles: Mapping[str, xr.Dataset]) -> str:
    """Return the ranks per layer and the skipped layers of each profile; folded away if there are several."""
    parts = []
    for label, profile in profiles.items():
        body = table(tables.layer_rows(profile), f"Layers of {label}" if len(profiles) > 1 else "Layers")
        skipped = tables.noted_rows(profile, "skipped")
        body += (
            table(skipped, f"Skipped layers ({len(skipped)})") if skipped else "<p class=note>No layer was skipped.</p>"
        )
        body += table(tables.noted_rows(profile, "notes"), "Notes")
        parts.append(details(f"Layers of {label}", body) if len(profiles) > 1 else body)
    return "".join(parts)


def members(histories: Mapping[str, xr.Dataset]) -> str:
    """Return one row per member of each history: how it was trained, how it ended, its last values."""
    rows = [
        ({"run": label} if len(histories) > 1 else {}) | row
        for label, history in histories.items()
        for row in tables.member_rows(history)
    ]
    body = table(rows, f"Members ({len(rows)})")
    return body if len(rows) <= 12 else details(f"Members ({len(rows)})", body)


def settings(section: Section, beside: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """Return the settings that made what is shown, folded away; ``beside`` gives more columns of values."""
    parts = []
    for label, entries in section.all_settings.items():
        title = "Settings" if len(section.all_settings) == 1 else f"Settings of {label}"
        rows: list[dict[str, object]] = [{"setting": key, "value": _plain(value)} for key, value in entries.items()]
        for heading, values in (beside or {}).items():
            for row in rows:
                if row["setting"] in values:
                    row[heading] = _plain(values[str(row["setting"])])
        parts.append(details(title, table(rows, title)))
    for label, history in section.histories.items():
        attributes = {k: v for k, v in history.attrs.items() if k not in ("settings", "name")}
        if attributes and len(section.histories) == 1:
            rows = [{"attribute": str(k), "value": _plain(v)} for k, v in attributes.items()]
            parts.append(details(f"About {label}", table(rows, f"About {label}")))
    return "".join(parts)


def named_figures(figures: Any) -> dict[str, Any]:
    """Return figures by caption, from one figure, a sequence, or a mapping from caption to figure.

    An array of axes, as the functions in `bnrank.reporting.plots` return it, stands for its figure.
    """
    if figures is None:
        return {}
    if isinstance(figures, Mapping) and "data" not in figures:
        return {str(caption): entry for caption, entry in figures.items()}
    if isinstance(figures, list | tuple):
        return {f"Figure {i}": entry for i, entry in enumerate(figures, 1)}
    return {"Figure": figures}


def picture(value: Any, caption: str, alt: str = "") -> str:
    """Return a matplotlib figure (or axes of it) as an inline SVG picture, or the picture of a PNG or SVG file.

    Raises
    ------
    TypeError
        If it is neither a matplotlib figure nor axes, nor the path of such a file.
    """
    size = ""
    if isinstance(value, Path) and value.suffix in _MIME:
        kind, content = _MIME[value.suffix], value.read_bytes()
        if kind == "image/png":
            size = f" width={_css_width(content)}"
    else:
        kind, content = "image/svg+xml", drawn(value, caption)
    data = base64.b64encode(content).decode()
    return (
        f'<figure class="card picture"><div tabindex=0><img{size} src="data:{kind};base64,{data}" '
        f'alt="{escape(alt or caption)}"></div><figcaption>{escape(caption)}</figcaption></figure>'
    )


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
    figure = value.figure if isinstance(value, Artist) else value
    if not isinstance(figure, Figure):
        raise TypeError(
            f"figures[{caption!r}]: got {validation.describe(value)}, expected a matplotlib figure or axes, "
            "or a plotly figure"
        )
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    with mpl.rc_context({"svg.hashsalt": "bnrank", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=kind, metadata=metadata, facecolor="white", **options)
    return buffer.getvalue()


_MIME = {".png": "image/png", ".svg": "image/svg+xml"}


def _css_width(png: bytes) -> int:
    """Return the width in CSS pixels that a PNG asks for by its density, as many as it has where it asks for none."""
    pixels, at = int.from_bytes(png[16:20], "big"), png.find(b"pHYs", 0, 4096)
    per_meter = int.from_bytes(png[at + 4 : at + 8], "big") if at > 0 else 0
    return round(pixels * 96 / (per_meter * 0.0254)) if per_meter else pixels


_VERDICT_COLUMNS = {"statement": "", "status": "", "left and right side": " class=num", "remarks": ""}
_BOTTLENECK = {"rank": "bottleneck rank", "start": "from layer", "end": "to layer", "gap": "gap"}
_SHOWN_ELSEWHERE = ("skipped", "notes", "settings", "name", "title", "kept_frequencies")
_PER_SAMPLE = {"log_pseudo_determinant": "log |Jf|₊ (median)", "ntk_trace": "NTK trace (median)"}


def _mark(heading: str, text: str) -> str:
    """Escape a cell; results and statuses get a mark, so that color is not all that tells them apart."""
    kind = _STATUS.get(text) if heading in ("result", "status") else None
    return f'<span class="mark {kind}">{escape(text)}</span>' if kind else escape(text)


def _plain(value: object) -> object:
    """Return an attribute in a form a table cell can show."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {text.cell(entry)}" for key, entry in flatten_settings(value).items())
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return value
