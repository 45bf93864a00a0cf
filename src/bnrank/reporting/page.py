"""Self-contained HTML pages of profiles, histories, runs, verdicts and discoveries, readable offline."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline

from bnrank._core import files, validation
from bnrank._version import __version__
from bnrank.reporting.blocks import Block, paragraphs, plots_in
from bnrank.reporting.charts.history import spectra_budget
from bnrank.reporting.charts.parts import DARK, dump
from bnrank.reporting.contents import contents
from bnrank.reporting.sections import Section, sections_from


@dataclass(frozen=True)
class Part:
    """A section of a page: id, title, blocks, and whether its title is left out."""

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
) -> Path:
    """Write a self-contained HTML page with interactive spectra, ranks, curves, settings and claims; return its path.

    The page is about 5 MB, nearly all of it plotly.js, so that it opens offline; a content security policy forbids
    every web request. Spectra are thinned out to at most 200 steps and 32 members; the page names what was left out.
    An existing file is replaced only when the new page is complete.

    Parameters
    ----------
    source : Dataset, run, Section, or several
        A profile (`bnrank.profile`), a history, a run (`bnrank.train`), verdicts (`bnrank.check`), a fitted estimator
        or its summary, a result of `bnrank.discovery.compress` or `bnrank.discovery.symmetries`, a `Section`, a
        sequence of these, or a mapping from section titles to these.
    path : path
        The file to write; missing folders are created.
    title : str, optional
        The page's title. Default: that of the only section, or "bnrank report".
    claims : sequence, optional
        Claims with ``name``, ``passed``, ``measured``, ``expected``; shown first.
    figures : figure, sequence or mapping, optional
        matplotlib figures or axes, or plotly figures; a mapping goes from caption to figure.
    notes : str, optional
        Plain text under the title.

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
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: got {validation.describe(path)}, expected the name of a file to write")
    sections = sections_from(source)
    if title is None:
        title = sections[0].title if len(sections) == 1 else "bnrank report"
    if claims or figures is not None:
        first = Section("Claims" if claims else "Figures", claims=claims or (), figures=figures)
        sections = [first, *sections]
    return write(Path(path), render(sections, title, notes or ""))


def render(sections: Sequence[Section], title: str, notes: str = "") -> str:
    """Return the page as text; see `report`."""
    budget = spectra_budget([dataset for section in sections for dataset in section.histories.values()])
    bare = len(sections) == 1 and sections[0].title == title  # the page's title is its heading
    parts = [
        Part(f"section-{i}", section.title, contents(section, f"section-{i}", budget), bare)
        for i, section in enumerate(sections, 1)
    ]
    return compose(title, paragraphs(notes), parts, with_contents=len(parts) > 1)


def compose(title: str, head: Sequence[Block], parts: Sequence[Part], with_contents: bool = False) -> str:
    """Return a page as text: a title, blocks below it, and sections, with a list of contents where wanted."""
    views = {plot.id: plot.view.data for part in parts for plot in plots_in(part.blocks)}
    environment, style, script = _templates()
    return environment.get_template("page.html.j2").render(
        title=title,
        head=head,
        parts=parts,
        contents=with_contents,
        version=__version__,
        style=style,
        data=dump({"dark": DARK, "views": views}),
        plotly=plotly.offline.get_plotlyjs() if views else "",
        script=script if views else "",
    )


@cache
def _templates() -> tuple[jinja2.Environment, str, str]:
    """Return the templates, with autoescape, and the style sheet and the script of a page."""
    loader = jinja2.PackageLoader("bnrank.reporting")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    return environment, style, script


def write(target: Path, text: str) -> Path:
    """Write a page as a whole or not at all, and return its path.

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
        raise ValueError(f"path: got {str(target)!r}, expected a file that can be written ({reason})") from error
    return target
