"""The page of all figures in a folder: an overview, then pictures, claims and the command for each figure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bnrank._core import validation
from bnrank.figures.harness import store
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.requirements import unscaled
from bnrank.reporting import Section, page
from bnrank.reporting.blocks import Block, Cell, Said, Table, Text, details, picture
from bnrank.reporting.charts.measured import spectra_budget
from bnrank.reporting.page import Part, claims_table, contents, settings
from bnrank.reporting.sections import flatten_settings
from bnrank.reporting.tables import typeset

PAGE = "index.html"
OUT = "reproduction"  # the default folder
SIZES = {"quick": "Small networks and data, minutes on two cores.", "paper": "Networks and data of the sources' sizes."}


@dataclass(frozen=True)
class Entry:
    """A figure on the page.

    Attributes
    ----------
    figure : Figure
        Which one.
    outcome : Outcome or None
        The stored outcome.
    begun : bool
        Whether its folder exists.
    damaged : str
        Why its outcome cannot be opened, if there is one.
    refused : str
        Why it was not run.
    other : list of str
        Differences between the settings and version of the stored outcome and the current ones.
    """

    figure: Figure
    outcome: Outcome | None
    begun: bool = False
    damaged: str = ""
    refused: str = ""
    other: Sequence[str] = ()

    @property
    def ran(self) -> bool:
        """Whether there is an outcome without an error."""
        return self.outcome is not None and not self.outcome.error

    @property
    def kind(self) -> str:
        """The style of the mark on the page: "good", "bad" or "warn"."""
        if self.outcome is None or self.other:
            return "bad" if self.refused or self.damaged else "warn"
        if self.ran and not self.outcome.claims:
            return "warn"
        return "good" if self.outcome.passed else "bad"

    @property
    def result(self) -> str:
        """The result in a few words."""
        if self.outcome is None:
            stored = "damaged" if self.damaged else "interrupted" if self.begun else "not run yet"
            return "not run: see below" if self.refused else stored
        if not self.ran:
            return "failed"
        undecided = sum(claim.passed is None for claim in self.outcome.claims)
        failed = sum(not claim.passed for claim in self.outcome.claims) - undecided
        results = [f"{failed} fail{'s' if failed == 1 else ''}"] if failed else []
        results += [f"{undecided} not decided"] if undecided else []
        result = ", ".join(results) or ("all pass" if self.outcome.claims else "no claims")
        return f"{result} (other settings)" if self.other else result

    @property
    def claims(self) -> str:
        """How many claims were reproduced."""
        found = self.outcome.claims if self.outcome is not None and self.ran else ()
        return f"{sum(bool(claim.passed) for claim in found)} of {len(found)}" if found else "–"

    @property
    def time(self) -> str:
        """How long it took."""
        return "–" if self.outcome is None else duration(self.outcome.seconds)


def entries(
    folder: Path, scale: str, figures: Sequence[Figure], refused: Mapping[str, str], failed: Mapping[str, Outcome]
) -> list[Entry]:
    """Return the entries of figures from the contents of a folder.

    ``refused`` maps names of figures that were not run to reasons; ``failed`` outcomes replace stored ones.
    """
    found = []
    for figure in figures:
        own, damaged = folder / figure.name, ""
        outcome = failed.get(figure.name)
        try:
            outcome = outcome or Outcome.open(own)
        except ValueError as error:
            damaged = str(error) if store.is_there(own / store.CLAIMS) else ""
        why = unscaled(figure, scale)
        other = [] if why else store.differences(own, figure.stamp(scale))
        found.append(Entry(figure, outcome, own.is_dir(), damaged, why or refused.get(figure.name, ""), other))
    return found


def write(folder: Path, scale: str, found: Sequence[Entry]) -> Path:
    """Write the page of all figures of a scale into the parent of their folders.

    Raises
    ------
    ValueError
        If it cannot be written.
    """
    histories = [h for e in found if e.outcome for s in e.outcome.sections for h in s.histories.values()]
    budget = spectra_budget(histories)
    parts = [_overview(found), *(_figure(entry, folder.parent, scale, budget) for entry in found)]
    text = page.compose(f"Figures of the theory, {scale} scale", [_head(found, scale)], parts)
    return page.write(folder / PAGE, text)


def duration(seconds: float) -> str:
    """Return a duration in words.

    Examples
    --------
    >>> duration(0.02), duration(35.6), duration(125), duration(7260)
    ('under 1 s', '36 s', '2 min 5 s', '2 h 1 min')
    """
    seconds = validation.number(seconds, "seconds", 0.0)
    if seconds < 1:
        return "under 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _head(found: Sequence[Entry], scale: str) -> Text:
    ran = [entry for entry in found if entry.ran]
    done = [entry.outcome for entry in ran if entry.outcome is not None and not entry.other]
    claims = [claim for outcome in done for claim in outcome.claims]
    passed = sum(bool(claim.passed) for claim in claims)
    time = duration(sum(outcome.seconds for outcome in done))
    left = len(ran) - len(done)
    other = f" Not counted: {left} of other settings or of another version." if left else ""
    return Text(
        f"{len(done)} of {len(found)} figures have run, in {time} together; {passed} of {len(claims)} claims "
        f"reproduced.{other} {SIZES[scale]} Each claim compares a measured number with a threshold."
    )


def _overview(found: Sequence[Entry]) -> Part:
    rows = []
    for entry in found:
        figure = entry.figure
        named = Cell(figure.title, kind="named", href=f"#{figure.id}", note=figure.name)
        numbers = [Cell(text, kind="num") for text in (entry.claims, entry.time)]
        rows.append([Cell(figure.id), named, Cell(entry.result, entry.kind), *numbers])
    heads = (("id", False), ("figure", False), ("result", False), ("claims reproduced", True), ("time", True))
    table = Table("All figures", heads, rows, whole=True, show_caption=False)
    return Part("overview", "Overview", [table])


def _figure(entry: Entry, out: Path, scale: str, budget: int) -> Part:
    """Return the section of a figure: pictures, expected result, claims, command, data, settings."""
    figure, outcome, key = entry.figure, entry.outcome, entry.figure.id
    expected = typeset(figure.expected[:1].upper() + figure.expected[1:])
    heading = Text("Result in the source" if figure.printed else "Expected result", "heading")
    command = f"bnrank reproduce {key}" + ("" if scale == "quick" else f" --scale {scale}")
    command += "" if str(out) == OUT else f" --out {shlex.quote(str(out))}"
    facts, claims, rest = [figure.source], list[Block](), list[Block]()
    pictures = list[Block]()
    if outcome is not None:
        if entry.ran:
            facts.append(f"{entry.claims} claims reproduced" if outcome.claims else "no claims")
        facts += [f"took {entry.time}", f"bnrank {outcome.version}"]
        pictures += [_picture(figure, outcome, name, path) for name, path in outcome.pictures.items()]
        made = [replace(c, name=typeset(c.name), expected=typeset(c.expected)) for c in outcome.claims]
        claims += claims_table(made)
        for i, section in enumerate(outcome.sections, 1):
            rest += details(section.title, contents(section, f"{key}-{i}", budget), heading=True)
        rest += _settings(figure, outcome, scale)
    blocks = [Text(" · ".join(facts), "note"), *_state(entry), *pictures, heading, Text(f"{expected}."), *claims]
    return Part(key, f"{key}. {figure.title}", [*blocks, Text("To run this figure", code=command), *rest])


def _state(entry: Entry) -> list[Block]:
    """Return why a figure has no outcome, or none with the current settings and version."""
    outcome, said = entry.outcome, {}
    if entry.refused:
        said["Not run"] = entry.refused
    elif entry.other and outcome is not None:
        said["Other settings or another version"] = "; ".join(entry.other)
    if entry.damaged:
        said["Damaged"] = entry.damaged
    error, _, trace = outcome.error.partition("\n") if outcome is not None else ("", "", "")
    if error:
        said["Failed"] = error
    blocks: list[Block] = [Said(what, "bad", text.splitlines()) for what, text in said.items()]
    if outcome is None and not said:
        blocks.append(Said("Interrupted; rerun to resume." if entry.begun else "Not run yet.", "warn"))
    return blocks + (details("Traceback", [Text(trace, "pre")]) if trace else [])


def _settings(figure: Figure, outcome: Outcome, scale: str) -> list[Block]:
    """Return the settings of an outcome, and at quick scale also those of paper scale that differ."""
    shown = flatten_settings(outcome.settings)
    both = scale == "quick" and "paper" in figure.settings
    paper = flatten_settings(asdict(figure.settings["paper"])) if both else {}
    differ = {k: v for k, v in paper.items() if k in shown and store.plain(v) != store.plain(shown[k])}
    return settings(Section(figure.title, settings=shown), {"paper scale": differ})


def _picture(figure: Figure, outcome: Outcome, name: str, path: Path) -> Block:
    caption = outcome.captions.get(name) or name.replace("-", " ").capitalize()
    vector = path.with_suffix(".svg")
    return picture(vector if vector.exists() else path, caption, alt=f"{figure.id}, {figure.title}: {caption}")
