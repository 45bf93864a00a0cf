"""Self-contained HTML pages of profiles, histories, runs, verdicts and discoveries, readable offline."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import xarray as xr

from bnrank._core import files, text, validation
from bnrank._core.content import STATUS
from bnrank._core.sources import as_path
from bnrank._version import __version__
from bnrank.measures import describe
from bnrank.measures.comparing import Comparison
from bnrank.measures.frequencies import label as label_of_frequency
from bnrank.reporting import tables
from bnrank.reporting.blocks import (
    Block,
    Cell,
    Plot,
    Table,
    Text,
    details,
    named_figures,
    paragraphs,
    picture,
    plots_in,
    table,
)
from bnrank.reporting.charts.measured import history_view, profile_view, spectra_budget
from bnrank.reporting.charts.parts import DARK, as_json, is_plotly, ready_made
from bnrank.reporting.compared import compared_blocks
from bnrank.reporting.findings import found_blocks
from bnrank.reporting.packing import packed, plotly_js
from bnrank.reporting.sections import Section, bottleneck, flatten_settings, found_in, sections_from
from bnrank.reporting.stills.frequencies import kept_frequencies
from bnrank.reporting.stills.results import drawable, tightness
from bnrank.reporting.watched import watched_blocks
from bnrank.training.watching import WatchRecord

LABELS = 60  # columns of a table that are labeled on a narrow screen
JSON: dict[str, Any] = {"default": as_json, "separators": (",", ":"), "allow_nan": False}


@dataclass(frozen=True)
class Part:
    """A section of a page: id, title, blocks, and whether its title is omitted."""

    id: str
    title: str
    blocks: Sequence[Block]
    bare: bool = False


def report(
    source: object,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    claims: Sequence[Any] | None = None,
    figures: Any = None,
    notes: str | None = None,
    refresh: int | None = None,
) -> Path:
    """Write a self-contained HTML page with interactive spectra, ranks, curves, settings and claims; return its path.

    The page opens offline; a content security policy forbids every web request. It is about 2 MB, nearly all of it
    plotly.js, compressed (browsers inflate it since 2023). Spectra are thinned to at most 200 steps and 32 members; the
    page lists omissions. An existing file is replaced only when the new page is complete.

    Parameters
    ----------
    source : Dataset, run, Section, or several
        A profile (`bnrank.profile`), a history, a run (`bnrank.train`), a sweep (`bnrank.Sweep`), a watch or a monitor
        of a training, a finished network (`bnrank.finish`), a comparison (`bnrank.compare`), verdicts (`bnrank.check`),
        a fitted estimator
        or its summary, a result of `bnrank.compress`, `bnrank.discovery.symmetries` or
        `bnrank.discovery.dimensionless_groups`, a `Section`, a sequence of these, or a mapping from section titles to
        these.
    path : path
        The file to write; missing folders are created.
    title : str, optional
        The page's title. Default: the title of a single section, or "bnrank report".
    claims : sequence, optional
        Claims with ``name``, ``passed``, ``measured``, ``expected``; shown first.
    figures : figure, sequence or mapping, optional
        matplotlib figures or axes, or plotly figures; a mapping goes from caption to figure.
    notes : str, optional
        Plain text under the title.
    refresh : int, optional
        Seconds after which a browser loads the page again, for pages that are rewritten. Default: never.

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
    path = as_path(path, "path")
    title = validation.optional(validation.text, title, "title")
    notes = validation.optional(validation.text, notes, "notes")
    refresh = validation.optional(validation.integer, refresh, "refresh", 1)
    claims = validation.sequence(() if claims is None else claims, "claims", "a sequence of claims")
    sections = sections_from(source)
    if title is None:
        title = sections[0].title if len(sections) == 1 else "bnrank report"
    if claims or figures is not None:
        first = Section("Claims" if claims else "Figures", claims=claims or (), figures=figures)
        sections = [first, *sections]
    budget = spectra_budget([dataset for section in sections for dataset in section.histories.values()])
    bare = len(sections) == 1 and sections[0].title == title  # the page's title is its heading
    parts = [
        Part(f"section-{i}", section.title, contents(section, f"section-{i}", budget), bare)
        for i, section in enumerate(sections, 1)
    ]
    with_contents = len(parts) > 1
    return write(Path(path), compose(title, paragraphs(notes or ""), parts, with_contents, refresh))


def compose(
    title: str,
    head: Sequence[Block],
    parts: Sequence[Part],
    with_contents: bool = False,
    refresh: int | None = None,
) -> str:
    """Return a page as text: a title, blocks below it, and sections; ``refresh`` as in `report`."""
    views = {plot.id: plot.view for part in parts for plot in plots_in(part.blocks)}
    data = packed(json.dumps({"dark": DARK, "views": views}, **JSON))
    library = plotly_js() if views else ""
    given = {"title": title, "head": head, "parts": parts, "contents": with_contents, "refresh": refresh}
    return _template().render(data=data, plotly=library, **given)


@cache
def _template() -> jinja2.Template:
    """Return the template of a page, with autoescape, the style sheet and the script."""
    loader = jinja2.PackageLoader("bnrank.reporting")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"kind": lambda block: type(block).__name__, "css": _css}
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    given = {"style": style, "script": script, "version": __version__, "labels": LABELS}
    return environment.get_template("page.html.j2", globals=given)


def _css(text: str) -> str:
    r"""Return a text as a string of a style sheet.

    Examples
    --------
    >>> print(_css('the "rank"'))
    "the \22 rank\22 "
    """
    return '"' + "".join(f"\\{ord(c):x} " if c in '"\\\n' else c for c in text) + '"'


def write(target: Path, text: str) -> Path:
    """Write a page atomically, and return its path.

    Raises
    ------
    ValueError
        If the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(target, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise files.StorageError(
            f"path: got {str(target)!r}, expected a file that can be written ({reason})"
        ) from error
    return target


# the blocks of a section ---------------------------------------------------------------------------------------------


def contents(section: Section, key: str, max_steps: int) -> list[Block]:
    """Return the blocks of a section below its title; ``key`` starts the ids of its charts."""
    blocks = [*paragraphs(section.text), *claims_table(section.claims), *_verdicts(section)]
    if (found := found_in(section.found)) is not None:
        chart = f"{key}-found"
        if isinstance(found, Comparison):
            blocks += compared_blocks(found, chart)
        elif isinstance(found, WatchRecord):
            blocks += watched_blocks(found, chart)
        else:
            blocks += found_blocks(found, chart)
    blocks += table(section.rows, "Numbers")
    for i, (caption, figure) in enumerate(named_figures(section.figures).items(), 1):
        ready = Plot(f"{key}-figure-{i}", ready_made(figure, caption)) if is_plotly(figure) else None
        blocks.append(ready or picture(figure, caption))
    for name, whole in section.texts.items():
        blocks += details(name, [Text(whole, "pre")])
    if section.histories:
        blocks += [Plot(f"{key}-history", history_view(section.histories, max_steps)), *_members(section.histories)]
    if section.profiles:
        blocks += [*_facts(section.profiles), Plot(f"{key}-profile", profile_view(section.profiles))]
        blocks += [*_layers(section.profiles), *_measured_with(section.profiles)]
    return [*blocks, *settings(section)]


def claims_table(claims: Sequence[Any]) -> list[Block]:
    """Return claims as a table headed by how many pass."""
    passed = sum(claim.passed is not None and bool(claim.passed) for claim in claims)
    return table(tables.claim_rows(claims), f"Claims: {passed} of {len(claims)} pass", whole=True)


def _verdicts(section: Section) -> list[Block]:
    """Return what applies in a sentence and a table, a picture of the inequalities, and why the others do not apply."""
    found = section.verdicts
    if found is None:
        return []
    rows = tables.verdict_rows(found.applied)
    blocks: list[Block] = [Text(tables.applicability(found))]
    if rows:
        blocks.append(_verdict_table(rows, f"Verdicts: {tables.summary(found)}"))
    if sum(map(drawable, found)) > 1:
        blocks.append(picture(tightness(found), "Left side over right side of every inequality; 1 is equality."))
    if others := tables.unmet_rows(found):
        blocks += table(others, "Not applicable, and why", whole=True)
    return blocks + details("Network and data of the verdicts", table(tables.about_rows(found), "Network and data"))


def _verdict_table(rows: Sequence[Mapping[str, Any]], caption: str) -> Table:
    """Return verdicts as a table of four columns: statement, status, both sides, remarks."""
    typeset = tables.typeset
    lines = []
    for row in rows:
        sides = slack = ""
        if row["relation"]:
            sides = f"{text.cell(row['left'])} {typeset(row['relation'])} {text.cell(row['right'])}"
            slack = f"slack {text.cell(row['slack'])}"
        formula, remarks = typeset(row["formula"]), typeset(row["remarks"])
        stated = Cell(row["statement"], kind="stated", lead=row["id"], formula=formula, note=row["source"])
        status = Cell(row["status"], STATUS.get(row["status"], ""))
        lines.append([stated, status, Cell(sides, kind="num", note=slack), Cell(remarks, kind="remarks")])
    columns = [("statement", False), ("status", False), ("left and right side", True), ("remarks", False)]
    return Table(caption, columns, lines, whole=True)


def _facts(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the bottleneck of each profile in a sentence and a table, norms, medians; of weights, what is covered."""
    weights = {label: describe(dataset) for label, dataset in profiles.items() if "tensors" in dataset.attrs}
    covered: list[Block] = []
    for label, lines in weights.items():
        first = f"{label}: {lines[0]}" if len(profiles) > 1 else lines[0]
        covered += [Text(f"{first[0].upper()}{first[1:]}.", "headline"), *(Text(line) for line in lines[1:])]
    headings = {"rank": "bottleneck rank", "start": "from layer", "end": "to layer", "gap": "gap"}
    per_sample = {"log_pseudo_determinant": "log |Jf|₊ (median)", "ntk_trace": "NTK trace (median)"}
    rows = []
    for label, dataset in profiles.items():
        if label in weights:
            continue
        if said := tables.headline(dataset):
            covered.append(Text(f"{label}: {said}" if len(profiles) > 1 else said, "headline"))
        row: dict[str, object] = {"profile": label, "layers": dataset.sizes["layer"]}
        found = bottleneck(dataset)
        row |= {heading: found[name] for name, heading in headings.items() if found[name] is not None}
        if found["reason"]:
            row["undetermined because"] = found["reason"]
        if kept := kept_frequencies(dataset):
            named = [f"{label_of_frequency(name, times)}: {channels}" for name, times, channels in kept]
            row["kept frequencies: channels"] = "; ".join(named)
        if "parameter_norm" in dataset:
            row["‖θ‖²"] = float(dataset["parameter_norm"].sum())
        for name, heading in per_sample.items():
            if name in dataset and dataset[name].size and np.isfinite(dataset[name].values).any():
                row[heading] = float(np.nanmedian(dataset[name].values))
        rows.append(row)
    return covered + table(rows, "Bottleneck")


def _measured_with(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the tolerances and the other attributes of each profile."""
    rows: dict[str, dict[str, object]] = {}
    for label, dataset in profiles.items():
        for key, value in dataset.attrs.items():
            elsewhere = ("settings", "name", "title", "kept_reason")
            if key not in elsewhere and not str(key).startswith("bottleneck"):
                rows.setdefault(str(key), {"measured with": str(key)})[label] = _plain(value)
    return table(list(rows.values()), "Tolerances and settings of the measurement")


def _layers(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the ranks per layer and the skipped layers of each profile; collapsed if there are several."""
    blocks: list[Block] = []
    for label, dataset in profiles.items():
        own = table(tables.layer_rows(dataset), f"Layers of {label}" if len(profiles) > 1 else "Layers")
        skipped, what = tables.noted_rows(dataset, "skipped"), "tensor" if "tensors" in dataset.attrs else "layer"
        own += table(skipped, f"Skipped {what}s ({len(skipped)})") or [Text(f"No {what} was skipped.", "note")]
        own += table(tables.noted_rows(dataset, "note"), "Notes")
        blocks += details(f"Layers of {label}", own) if len(profiles) > 1 else own
    return blocks


def _members(histories: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return one row per member of each history: settings, status, last values."""
    rows = [
        ({"run": label} if len(histories) > 1 else {}) | row
        for label, dataset in histories.items()
        for row in tables.member_rows(dataset)
    ]
    body = table(rows, f"Members ({len(rows)})")
    return body if len(rows) <= 12 else details(f"Members ({len(rows)})", body)


def settings(section: Section, others: Mapping[str, Mapping[str, object]] | None = None) -> list[Block]:
    """Return the settings of a section, collapsed; ``others`` maps headings to further columns of values."""
    blocks: list[Block] = []
    for label, entries in section.all_settings.items():
        title = "Settings" if len(section.all_settings) == 1 else f"Settings of {label}"
        rows = []
        for key, value in entries.items():
            more = {heading: _plain(values[key]) for heading, values in (others or {}).items() if key in values}
            rows.append({"setting": key, "value": _plain(value), **more})
        blocks += details(title, table(rows, title))
    if len(section.histories) == 1:
        ((label, dataset),) = section.histories.items()
        about = {str(key): value for key, value in dataset.attrs.items() if key not in ("settings", "name")}
        rows = [{"attribute": key, "value": _plain(value)} for key, value in about.items()]
        blocks += details(f"About {label}", table(rows, f"About {label}"))
    return blocks


def _plain(value: object) -> object:
    """Return an attribute in a form suitable for a cell."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {text.cell(entry)}" for key, entry in flatten_settings(value).items())
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return value
