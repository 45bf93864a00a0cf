"""The page of all figures that a folder holds: an overview, then per figure pictures, claims, how to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from bnrank.figures import store
from bnrank.figures.base import Figure, Outcome
from bnrank.reporting import Section, markup, page, payload
from bnrank.reporting.verdicts import typeset

__all__ = ["Entry", "duration", "entries", "write"]

PAGE = "index.html"


@dataclass(frozen=True)
class Entry:
    """A figure on the page.

    Attributes
    ----------
    figure : Figure
        Which one.
    outcome : Outcome or None
        What is stored of it.
    begun : bool
        Whether it was begun and has no outcome.
    refused : str
        Why it was not run when it was asked for.
    other : list of str
        In what the stored outcome is not one of this version.
    """

    figure: Figure
    outcome: Outcome | None
    begun: bool = False
    refused: str = ""
    other: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """Good, bad or warn, as the marks of the page are called."""
        if self.outcome is None or self.other:
            return "bad" if self.refused else "warn"
        return "good" if self.outcome.passed else "bad"

    @property
    def result(self) -> str:
        """Say in a few words what came out."""
        if self.outcome is None:
            return "not run: see below" if self.refused else "begun, not finished" if self.begun else "not run yet"
        if self.outcome.error:
            return "failed"
        count = sum(not claim.passed for claim in self.outcome.claims)
        result = "all pass" if not count else f"{count} fail{'s' if count == 1 else ''}"
        return f"{result} (other version)" if self.other else result

    @property
    def claims(self) -> str:
        """Say how many claims pass."""
        if self.outcome is None or self.outcome.error:
            return "–"
        return f"{sum(claim.passed for claim in self.outcome.claims)} of {len(self.outcome.claims)}"

    @property
    def time(self) -> str:
        """Say how long it took."""
        return "–" if self.outcome is None else duration(self.outcome.seconds)


def entries(
    folder: Path, scale: str, figures: Sequence[Figure], refused: Mapping[str, str] | None = None
) -> list[Entry]:
    """Return what a folder holds of each figure; outcomes that are damaged count as not there."""
    found = []
    for figure in figures:
        own = folder / figure.name
        try:
            outcome = Outcome.open(own)
        except ValueError:
            outcome = None
        other = store.differences(own, figure.stamp(scale))
        found.append(Entry(figure, outcome, own.is_dir(), (refused or {}).get(figure.name, ""), other))
    return found


def write(folder: Path, scale: str, figures: Sequence[Figure], refused: Mapping[str, str] | None = None) -> Path:
    """Write the page of all figures into a folder.

    Parameters
    ----------
    folder : Path
        Where the folders of the figures are.
    scale : str
        Their scale.
    figures : sequence of Figure
        Those that the page has, whether stored or not.
    refused : mapping, optional
        Name -> why a figure was not run when it was asked for.

    Raises
    ------
    ValueError
        If it cannot be written.
    """
    found = entries(folder, scale, figures, refused)
    histories = [h for e in found if e.outcome for s in e.outcome.sections for h in s.histories.values()]
    data: dict[str, Any] = {}
    budget = payload.spectra_budget(histories)
    body = "".join([_overview(found), *(_figure(entry, scale, data, budget) for entry in found)])
    text = page.compose(f"Figures of the theory, {scale} scale", _head(found, scale), body, data)
    return page.write(folder / PAGE, text)


def duration(seconds: float) -> str:
    """Return a time in words.

    Examples
    --------
    >>> duration(0.02), duration(35.6), duration(125), duration(7260)
    ('under 1 s', '36 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 1:
        return "under 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _head(found: Sequence[Entry], scale: str) -> str:
    done = [e.outcome for e in found if e.outcome is not None and not e.outcome.error]
    claims = [claim for outcome in done for claim in outcome.claims]
    passed, seconds = sum(claim.passed for claim in claims), sum(outcome.seconds for outcome in done)
    sizes = {
        "quick": "small networks and data, minutes on two cores",
        "paper": "networks and data of the sources' sizes",
    }
    return (
        f"<p>{len(done)} of {len(found)} figures have run, in {duration(seconds)} together; {passed} of {len(claims)} "
        f"claims pass. {sizes[scale].capitalize()}. Each claim is a number measured on what was computed, and what the "
        "number had to be.</p>"
    )


def _overview(found: Sequence[Entry]) -> str:
    rows = ""
    for entry in found:
        figure = entry.figure
        link = f'<a href="#{figure.id}">{escape(figure.title)}</a><div class=note>{escape(figure.name)}</div>'
        mark = f'<span class="mark {entry.kind}">{escape(entry.result)}</span>'
        rows += f"<tr><td>{escape(figure.id)}</td><td class=named>{link}</td><td>{mark}</td>"
        rows += f"<td class=num>{entry.claims}</td><td class=num>{entry.time}</td></tr>"
    heads = (("id", ""), ("figure", ""), ("result", ""), ("claims that pass", " class=num"), ("time", " class=num"))
    head = "".join(f"<th scope=col{kind}>{name}</th>" for name, kind in heads)
    return (
        "<section id=overview aria-labelledby=overview-title><h2 id=overview-title>Overview</h2>"
        '<div class="scroll whole" tabindex=0 role=region aria-label="All figures"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _figure(entry: Entry, scale: str, data: dict[str, Any], budget: int) -> str:
    """Return the part of the page on a figure: pictures, what the source shows, claims, how to run it, and the rest."""
    figure, outcome, key = entry.figure, entry.outcome, entry.figure.id
    parts = [f"<section id={key} aria-labelledby={key}-title><h2 id={key}-title>{key}. {escape(figure.title)}</h2>"]
    facts = [figure.source]
    if outcome is not None and not outcome.error:
        facts.append(f"{entry.claims} claims pass")
    if outcome is not None:
        facts += [f"took {entry.time}", f"bnrank {outcome.version}"]
    parts.append(f"<p class=note>{escape(' · '.join(facts))}</p>")
    if entry.refused:
        parts.append(_said("Not run", entry.refused))
    elif entry.other and outcome is not None:
        parts.append(_said("Made by another version", "; ".join(entry.other)))
    if outcome is None and not entry.refused:
        state = "It was begun and did not finish; run again, it goes on." if entry.begun else "It has not been run yet."
        parts.append(f"<p><span class='mark warn'>{state}</span></p>")
    if outcome is not None and outcome.error:
        first, _, rest = outcome.error.partition("\n")
        parts += [_said("Failed", first), _folded("Where it failed", f"<pre>{escape(rest)}</pre>") if rest else ""]
    if outcome is not None:
        parts += [_picture(figure, outcome, name, path) for name, path in outcome.pictures.items()]
    sees = typeset(figure.sees[:1].upper() + figure.sees[1:])
    parts.append(f"<h3>What the source shows</h3><p>{escape(sees)}.</p>")
    if outcome is not None:
        claims = [replace(c, name=typeset(c.name), expected=typeset(c.expected)) for c in outcome.claims]
        parts.append(markup.claims(Section(figure.title, claims=claims)))
    command = f"bnrank reproduce {key}" + ("" if scale == "quick" else f" --scale {scale}")
    parts.append(f"<p>To run it alone: <code>{escape(command)}</code></p>")
    if outcome is not None:
        for i, section in enumerate(outcome.sections, 1):
            parts.append(_folded(section.title, page.contents_of(section, f"{key}-{i}", data, budget), "h3"))
        parts.append(markup.settings(Section(figure.title, settings=outcome.settings)))
    return "".join([*parts, "</section>"])


def _picture(figure: Figure, outcome: Outcome, name: str, path: Path) -> str:
    caption = outcome.captions.get(name) or name.replace("-", " ").capitalize()
    vector = path.with_suffix(".svg")
    return markup.picture(vector if vector.exists() else path, caption, alt=f"{figure.id}, {figure.title}: {caption}")


def _said(what: str, text: str) -> str:
    return f"<p><span class='mark bad'>{escape(what)}</span>: {escape(text)}</p>"


def _folded(title: str, body: str, heading: str = "") -> str:
    inner = f"<{heading}>{escape(title)}</{heading}>" if heading else escape(title)
    return f"<details><summary>{inner}</summary>{body}</details>"
