"""Running figures one after another: stored outcomes are reused, and a failure does not stop the others."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnrank._core.files import prepare_folder
from bnrank.figures.harness import gallery, store
from bnrank.figures.harness.figure import Figure, describe
from bnrank.figures.harness.outcome import Outcome
from bnrank.figures.harness.requirements import lacking


def run_all(
    figures: Sequence[Figure],
    shown: Sequence[Figure],
    folder: Path,
    scale: str,
    progress: bool,
    resume: bool,
    on_start: Callable[[Figure], Any] | None = None,
    on_end: Callable[[Figure, Outcome], Any] | None = None,
) -> list[Outcome]:
    """Run figures or open their stored outcomes, and keep the page of all that are ``shown`` up to date.

    Figures that cannot run are reported before the first one starts.
    """
    prepare_folder(folder)
    store.discard_abandoned(folder)
    data: dict[str, str] = {}
    refused: dict[str, str] = {}
    failed: dict[str, Outcome] = {}
    done: dict[str, Outcome] = {}

    def stored(figure: Figure) -> Outcome | None:
        own = folder / figure.name
        why = store.refusal(own, figure.stamp(scale), resume)
        if not why and resume:
            try:
                outcome = Outcome.open(own)
                if not outcome.error:
                    return outcome
            except ValueError:  # none, or a damaged one: run again
                pass
        why = why or lacking(figure, scale, data)
        if not why:
            return None
        refused[figure.name] = why
        return Outcome(figure.label, settings={"scale": scale}, error=why)

    def end(figure: Figure, outcome: Outcome) -> None:
        done[figure.name] = outcome
        if on_end is not None:
            on_end(figure, outcome)

    checked = [(figure, stored(figure)) for figure in figures]
    gallery.write(folder, scale, shown, refused)
    for figure, outcome in checked:
        if outcome is not None and figure.name in refused:
            end(figure, outcome)
    for figure in figures:
        if figure.name in done:
            continue
        outcome = stored(figure)  # again: the figures before may have used up memory or disk space
        if outcome is None:
            if on_start is not None:
                on_start(figure)
            try:
                outcome = _run(figure, folder, scale, progress, resume)
            except KeyboardInterrupt:
                gallery.write(folder, scale, shown, refused, failed)
                raise
            if outcome.error:
                failed[figure.name] = outcome
        gallery.write(folder, scale, shown, refused, failed)
        end(figure, outcome)
    return [done[figure.name] for figure in figures]


def _run(figure: Figure, folder: Path, scale: str, progress: bool, resume: bool) -> Outcome:
    """Run a figure and return its outcome as stored, or one that says why nothing could be stored."""
    try:
        figure.run(scale, folder, progress, resume)
        return Outcome.open(folder / figure.name)
    except Exception as problem:
        if store.is_full(problem):
            raise
        why = str(problem) if isinstance(problem.__cause__, OSError) else describe(problem)
        return Outcome(figure.label, settings={"scale": scale}, error=why)
