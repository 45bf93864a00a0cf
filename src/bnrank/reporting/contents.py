"""The blocks of a section: claims, verdicts, discoveries, numbers, figures, histories, profiles, settings."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from bnrank._core import text
from bnrank.measures.frequencies import label as label_of_frequency
from bnrank.reporting import tables
from bnrank.reporting.blocks import (
    STATUS,
    Block,
    Cell,
    Column,
    Plot,
    Table,
    Text,
    details,
    named_figures,
    paragraphs,
    picture,
    table,
)
from bnrank.reporting.charts import discovery, history, profile
from bnrank.reporting.charts.chart import ready_made
from bnrank.reporting.charts.parts import is_plotly
from bnrank.reporting.findings import headline, rows_below
from bnrank.reporting.sections import Section, bottleneck, flatten_settings, found_in
from bnrank.reporting.stills.frequencies import kept_frequencies
from bnrank.reporting.stills.verdicts import drawable, tightness
from bnrank.theory.verdicts import NOT_APPLICABLE


def contents(section: Section, key: str, max_steps: int) -> list[Block]:
    """Return the blocks of a section below its title; ``key`` starts the ids of its charts."""
    blocks = [*paragraphs(section.text), *claims(section), *_verdicts(section)]
    found = found_in(section.found)
    if found is not None:
        blocks += [*headline(found), Plot(f"{key}-found", discovery.view(found)), *rows_below(found)]
    blocks += table(section.rows, "Numbers")
    for i, (caption, figure) in enumerate(named_figures(section.figures).items(), 1):
        ready = Plot(f"{key}-figure-{i}", ready_made(figure, caption)) if is_plotly(figure) else None
        blocks.append(ready or picture(figure, caption))
    if section.histories:
        blocks += [Plot(f"{key}-history", history.view(section.histories, max_steps)), *_members(section.histories)]
    if section.profiles:
        blocks += [*_facts(section.profiles), Plot(f"{key}-profile", profile.view(section.profiles))]
        blocks += [*_layers(section.profiles), *_measured_with(section.profiles)]
    return [*blocks, *settings(section)]


def claims(section: Section) -> list[Block]:
    """Return the claims of a section as a table headed by how many pass."""
    passed = sum(claim.passed is not None and bool(claim.passed) for claim in section.claims)
    caption = f"Claims: {passed} of {len(section.claims)} pass"
    return table(tables.claim_rows(section.claims), caption, whole=True)


def _verdicts(section: Section) -> list[Block]:
    """Return a table of verdicts, a picture of the inequalities, and, folded away, those that do not apply."""
    found = section.verdicts
    if found is None:
        return []
    rows = tables.verdict_rows(found)
    applied = [row for row in rows if row["status"] != NOT_APPLICABLE]
    others = [row for row in rows if row["status"] == NOT_APPLICABLE]
    blocks: list[Block] = [_verdict_table(applied, f"Verdicts: {tables.summary(found)}")] if applied else []
    if any(map(drawable, found)):
        blocks.append(picture(tightness(found), "Left side over right side of every inequality; 1 is equality."))
    if others:
        folded = [_verdict_table(others, "Not applicable, and why")]
        blocks += details(f"Not applicable ({len(others)})", folded)
    return blocks + details("Network and data of the verdicts", table(tables.about_rows(found), "Network and data"))


def _verdict_table(rows: Sequence[Mapping[str, object]], caption: str) -> Table:
    """Return verdicts as a table of four columns: statement, status, both sides, remarks."""
    typeset = tables.typeset
    lines = []
    for row in rows:
        stated = Cell(
            str(row["statement"]),
            kind="stated",
            lead=str(row["id"]),
            formula=typeset(str(row["formula"])),
            note=str(row["source"]),
        )
        numbers = Cell("", kind="num")
        if row["relation"]:
            sides = f"{text.cell(row['left'])} {typeset(str(row['relation']))} {text.cell(row['right'])}"
            numbers = Cell(sides, kind="num", note=f"slack {text.cell(row['slack'])}")
        status = str(row["status"])
        remarks = Cell(typeset(str(row["remarks"])), kind="remarks")
        lines.append([stated, Cell(status, STATUS.get(status, "")), numbers, remarks])
    columns = [Column("statement"), Column("status"), Column("left and right side", numeric=True), Column("remarks")]
    return Table(caption, columns, lines, whole=True)


BOTTLENECK = {"rank": "bottleneck rank", "start": "from layer", "end": "to layer", "gap": "gap"}
PER_SAMPLE = {"log_pseudo_determinant": "log |Jf|₊ (median)", "ntk_trace": "NTK trace (median)"}
SHOWN_ELSEWHERE = ("settings", "name", "title", "kept_reason")


def _facts(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the bottleneck of each profile, its norm, and medians over the sample."""
    rows = []
    for label, dataset in profiles.items():
        row: dict[str, object] = {"profile": label, "layers": dataset.sizes["layer"]}
        found = bottleneck(dataset)
        row |= {heading: found[name] for name, heading in BOTTLENECK.items() if found[name] is not None}
        if found["reason"]:
            row["undetermined because"] = found["reason"]
        kept = kept_frequencies(dataset)["frequencies"]
        if kept:
            names = [label_of_frequency(entry["frequency"], entry["multiplicity"]) for entry in kept]
            pairs = zip(names, kept, strict=True)
            row["kept frequencies: channels"] = "; ".join(f"{name}: {entry['channels']}" for name, entry in pairs)
        if "parameter_norm" in dataset:
            row["‖θ‖²"] = float(dataset["parameter_norm"].sum())
        for name, heading in PER_SAMPLE.items():
            if name in dataset and dataset[name].size and np.isfinite(dataset[name].values).any():
                row[heading] = float(np.nanmedian(dataset[name].values))
        rows.append(row)
    return table(rows, "Bottleneck")


def _measured_with(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the tolerances and the other attributes of each profile."""
    rows: dict[str, dict[str, object]] = {}
    for label, dataset in profiles.items():
        for key, value in dataset.attrs.items():
            if key not in SHOWN_ELSEWHERE and not str(key).startswith("bottleneck"):
                rows.setdefault(str(key), {"measured with": str(key)})[label] = _plain(value)
    return table(list(rows.values()), "Tolerances and settings of the measurement")


def _layers(profiles: Mapping[str, xr.Dataset]) -> list[Block]:
    """Return the ranks per layer and the skipped layers of each profile; folded away if there are several."""
    blocks: list[Block] = []
    for label, dataset in profiles.items():
        own = table(tables.layer_rows(dataset), f"Layers of {label}" if len(profiles) > 1 else "Layers")
        skipped = tables.noted_rows(dataset, "skipped")
        own += table(skipped, f"Skipped layers ({len(skipped)})") or [Text("No layer was skipped.", "note")]
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
    """Return the settings of a section, folded away; ``others`` has more columns of values by heading."""
    blocks: list[Block] = []
    for label, entries in section.all_settings.items():
        title = "Settings" if len(section.all_settings) == 1 else f"Settings of {label}"
        rows: list[dict[str, object]] = [{"setting": key, "value": _plain(value)} for key, value in entries.items()]
        for heading, values in (others or {}).items():
            for row in rows:
                if row["setting"] in values:
                    row[heading] = _plain(values[str(row["setting"])])
        blocks += details(title, table(rows, title))
    for label, dataset in section.histories.items():
        attributes = {k: v for k, v in dataset.attrs.items() if k not in ("settings", "name")}
        if attributes and len(section.histories) == 1:
            rows = [{"attribute": str(k), "value": _plain(v)} for k, v in attributes.items()]
            blocks += details(f"About {label}", table(rows, f"About {label}"))
    return blocks


def _plain(value: object) -> object:
    """Return an attribute in a form that a cell can show."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {text.cell(entry)}" for key, entry in flatten_settings(value).items())
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return value
