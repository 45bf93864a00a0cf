"""The figures of the theory, each with its claims measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bnrank import _validate
from bnrank.figures import (
    f01_bottleneck_spectra,
    f04_norm_and_depth,
    f09_first_escape,
    f09_linear,
    f10_depth_four,
    f11_width,
    f12_one_neuron,
    f13_low_rank_tails,
)
from bnrank.figures.base import SCALES, Claim, Figure, Outcome
from bnrank.figures.demo import Demo, run_demo
from bnrank.reporting import Section, report

__all__ = ["FIGURES", "SCALES", "Claim", "Demo", "Figure", "Outcome", "find", "reproduce", "run_demo"]

FIGURES = tuple(
    module.FIGURE
    for module in (
        f01_bottleneck_spectra,
        f04_norm_and_depth,
        f09_first_escape,
        f09_linear,
        f10_depth_four,
        f11_width,
        f12_one_neuron,
        f13_low_rank_tails,
    )
)


def find(name: str) -> Figure:
    """Return a figure by its id or its name.

    Raises
    ------
    ValueError
        If there is none of that name; the nearest is suggested.

    Examples
    --------
    >>> find("F1").name, find("norm-and-depth").id
    ('bottleneck-spectra', 'F4')
    """
    for figure in FIGURES:
        if str(name).lower() in (figure.id.lower(), figure.name):
            return figure
    options = [option for figure in FIGURES for option in (figure.id, figure.name)]
    expected = ", ".join(f"{figure.id} ({figure.name})" for figure in FIGURES)
    raise ValueError(f"figure: got {name!r}, expected one of {expected}, or all{_validate.suggest(name, options)}")


def reproduce(
    names: Sequence[str], out: str | os.PathLike[str], scale: str = "quick", progress: bool = True
) -> list[Outcome]:
    """Run figures, store claims and pictures, and write a page of all of them, ``index.html``.

    A figure that fails does not keep the others from running. Runs that were stored before are gone on with.

    Parameters
    ----------
    names : sequence of str
        Ids or names; "all" for every figure there is.
    out : path
        Folder; each figure has a folder of its own name in it, with one more for the scale.
    scale : "quick" or "paper"
        Minutes on two cores, or networks and data of the source's own sizes (docs/errata.md says what differs).
    progress : bool
        Show progress bars.

    Raises
    ------
    ValueError
        If there is no such figure or scale.
    """
    _validate.choice(scale, "scale", SCALES)
    figures = list(FIGURES) if "all" in names else [find(name) for name in names]
    folder = Path(out) / scale
    outcomes = [figure.run(scale, folder, progress) for figure in figures]
    sections = [section for figure, o in zip(figures, outcomes, strict=True) for section in _sections(figure, o)]
    report(sections, folder / "index.html", title=f"bnrank reproduce, {scale} scale")
    return outcomes


def _sections(figure: Figure, outcome: Outcome) -> list[Section]:
    command = f"bnrank reproduce {figure.id} --scale {outcome.settings['scale']}"
    text = f"{figure.source}. What must be seen: {figure.sees}.\n\nTook {outcome.seconds:.0f} s; alone: {command}"
    if outcome.error:
        text += f"\n\nFailed: {outcome.error}"
    head = Section(
        f"{figure.id}. {figure.title}",
        text=text,
        claims=outcome.claims,
        figures=dict(outcome.pictures) or (),
        settings=outcome.settings,
    )
    return [head, *outcome.sections]
