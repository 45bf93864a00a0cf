"""One self-contained HTML page of profiles, histories and runs: opens offline, asks the network for nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.offline

from bnrank._core import files, validation
from bnrank._version import __version__
from bnrank.reporting import discovery_markup, discovery_payload, markup, payload
from bnrank.reporting.sections import Section, found_in, sections_from

__all__ = ["compose", "contents_of", "render", "report", "write"]

_SCRIPTS = ("drawing.js", "discovery.js", "views.js")
_SCRIPT = '(() => {{\n"use strict";\n{}}})();'


def report(
    source: object,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    claims: Sequence[Any] | None = None,
    figures: Any = None,
    notes: str | None = None,
) -> Path:
    """Write one self-contained HTML page: interactive spectra, ranks, curves, settings, claims.

    The page is about 5 MB, nearly all of it plotly.js, which stands inside it so that it opens offline; a
    content security policy in the page forbids every request. Spectra are thinned out to at most 200 steps and
    32 members; the page says what was left out. It is written to a temporary file that then replaces ``path``,
    so a page is there whole or not at all.

    Parameters
    ----------
    source : Dataset, run, Section, or several
        A profile (`bnrank.profile`), a history, a run (`bnrank.train`), verdicts (`bnrank.check`), a fitted estimator
        or its summary, what `bnrank.discovery.compress` or `bnrank.discovery.symmetries` returned, a `Section`, a
        sequence of these, or a mapping from section titles to these.
    path : path
        The file to write; folders that lack are made.
    title : str, optional
        The page's title; default: that of the only section, or "bnrank report".
    claims : sequence, optional
        What must be seen, with ``name``, ``passed``, ``measured``, ``expected``; shown first.
    figures : figure, sequence or mapping, optional
        matplotlib figures or axes, or plotly figures; a mapping goes from caption to figure.
    notes : str, optional
        Plain text under the title.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    TypeError
        If the source, a claim or a figure is not one of the above.
    ValueError
        If a Dataset is neither a profile nor a history, an estimator is not fitted, or the file cannot be written;
        the message names it.

    Examples
    --------
    >>> import tempfile
    >>> from bnrank.reporting import Section, report
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report(Section("Ranks", rows=[{"layer": 1, "rank": 5}]), folder + "/ranks.html").name
    'ranks.html'
    """
    target = _target(path)
    sections = sections_from(source)
    if title is None:
        title = sections[0].title if len(sections) == 1 else "bnrank report"
    if claims or figures is not None:
        sections = [
            Section("What must be seen" if claims else "Figures", claims=claims or (), figures=figures),
            *sections,
        ]
    return write(target, render(sections, title, notes or ""))


def render(sections: Sequence[Section], title: str, notes: str = "") -> str:
    """Return the page as text; see `report`."""
    budget = payload.spectra_budget([dataset for section in sections for dataset in section.histories.values()])
    data: dict[str, Any] = {}
    alone = len(sections) == 1 and sections[0].title == title  # the page's title is its heading
    bodies = [_section(section, f"section-{i}", data, budget, alone) for i, section in enumerate(sections, 1)]
    links = "".join(f'<li><a href="#section-{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections, 1))
    contents = f"<nav aria-label=Contents><ul>{links}</ul></nav>" if len(sections) > 1 else ""
    return compose(title, markup.paragraphs(notes) + contents, "".join(bodies), data)


def compose(title: str, head: str, main: str, data: dict[str, Any]) -> str:
    """Return a page of markup that stands under its title and markup of its sections, with the data of their plots."""
    slots = {
        "title": escape(title),
        "style": _asset("page.css"),
        "head": head,
        "sections": main,
        "version": escape(__version__),
        "data": payload.dump(data),
        "plotly": plotly.offline.get_plotlyjs() if data else "",
        "script": _SCRIPT.format("".join(map(_asset, _SCRIPTS))) if data else "",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: slots[match[1]], _asset("page.html"))


def _section(section: Section, key: str, data: dict[str, Any], budget: int, alone: bool) -> str:
    if alone:
        head = f'<section id={key} aria-label="{escape(section.title)}">'
    else:
        head = f"<section id={key} aria-labeledby={key}-title><h2 id={key}-title>{escape(section.title)}</h2>"
    return f"{head}{contents_of(section, key, data, budget)}</section>"


def contents_of(section: Section, key: str, data: dict[str, Any], budget: int) -> str:
    """Return a section's markup but for its title; what its plots show is added to ``data`` by the id of their box."""
    parts = [markup.paragraphs(section.text), markup.claims(section), markup.verdicts(section)]
    found = found_in(section.found)
    if found is not None:
        data[f"{key}-found"] = discovery_payload.view(found)
        box = _box(f"{key}-found", data[f"{key}-found"]["kind"])
        parts += [discovery_markup.headline(found), box, discovery_markup.tables(found)]
    parts += [markup.table(section.rows, "Numbers")]
    for i, (caption, figure) in enumerate(markup.named_figures(section.figures).items(), 1):
        if payload.is_plotly(figure):
            data[f"{key}-figure-{i}"] = {"kind": "figure", "figure": payload.figure(figure), "caption": caption}
            parts.append(_box(f"{key}-figure-{i}", "figure"))
        else:
            parts.append(markup.picture(figure, caption))
    if section.histories:
        shown = [payload.history(dataset, label, budget) for label, dataset in section.histories.items()]
        data[f"{key}-history"] = {"kind": "history", "sets": shown}
        parts += [_box(f"{key}-history", "history"), markup.members(section.histories)]
    if section.profiles:
        profiles = [payload.profile(dataset, label) for label, dataset in section.profiles.items()]
        data[f"{key}-profile"] = {"kind": "profile", "sets": profiles, "titles": payload.SPECTRA}
        parts += [markup.facts(section.profiles), _box(f"{key}-profile", "profile"), markup.layers(section.profiles)]
        parts.append(markup.measured_with(section.profiles))
    return "".join([*parts, markup.settings(section)])


def _box(key: str, kind: str) -> str:
    return f'<div class="view {kind}" id={key}><noscript><p class=note>The plots need JavaScript.</p></noscript></div>'


def _asset(name: str) -> str:
    return resources.files("bnrank.reporting").joinpath(name).read_text(encoding="utf-8")


def _target(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: got {validation.describe(path)}, expected the name of a file to write")
    return Path(path)


def write(target: Path, text: str) -> Path:
    """Write to a temporary file beside ``target``, then put it in place; a ValueError names a file that cannot be."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(target, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"path: got {str(target)!r}, expected a file that can be written ({reason})") from error
    return target
