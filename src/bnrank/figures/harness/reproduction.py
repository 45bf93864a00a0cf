"""Figures one after the other into a folder: what is stored is kept, what fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnrank._core.files import prepare_folder
from bnrank.figures.harness import gallery, store
from bnrank.figures.harness.figure import Figure, Outcome, describe
from bnrank.figures.harness.requirements import lacking

__all__ = ["go"]


def go(
    figures: Sequence[Figure],
    shown: Sequence[Figure],
    folder: Path,
    scale: str,
    progress: bool,
    fresh: bool,
    on_start: Callable[[Figure], Any] | None = None,
    on_end: Callable[[Figure, Outcome], Any] | None = None,
) -> list[Outcome]:
    """Run figures, or open what is stored of them, and keep the page of all that are ``shown`` up to date.

    Those that cannot run are told before the first starts.
    """
    prepare_folder(folder)
    store.discard_abandoned(folder)
    data: dict[str, str] = {}
    refused: dict[str, str] = {}
    failed: dict[str, Outcome] = {}
    done: dict[str, Outcome] = {}

    def standing(figure: Figure) -> Outcome | None:
        found = _standing(figure, folder, scale, fresh, data)
        if isinstance(found, str):
            refused[figure.name] = found
            return Outcome(figure.label, settings={"scale": scale}, error=found)
        return found

    def end(figure: Figure, outcome: Outcome) -> None:
        done[figure.name] = outcome
        if on_end is not None:
            on_end(figure, outcome)

    checked = [(figure, standing(figure)) for figure in figures]
    gallery.write(folder, scale, shown, refused)
    for figure, outcome in checked:
        if outcome is not None and figure.name in refused:
            end(figure, outcome)
    for figure in figures:
        if figure.name in done:
            continue
        outcome = standing(figure)  # again: those before it may have taken memory or disk
        if outcome is None:
            if on_start is not None:
                on_start(figure)
            try:
                outcome = _run(figure, folder, scale, progress, fresh)
            except KeyboardInterrupt:
                gallery.write(folder, scale, shown, refused, failed)
                raise
            if outcome.error:
                failed[figure.name] = outcome
        gallery.write(folder, scale, shown, refused, failed)
        end(figure, outcome)
    return [done[figure.name] for figure in figures]


def _standing(figure: Figure, folder: Path, scale: str, fresh: bool, data: dict[str, str]) -> Outcome | str | None:
    """Return the stored outcome of a figure if nothing is left to do, why it cannot start, or None if it can."""
    own = folder / figure.name
    try:
        foreign = store.refusal(own)
    except OSError as error:
        foreign = f"{str(own)!r} cannot be read: {error.strerror or error}"
    if foreign or fresh:
        return foreign or lacking(figure, scale, data) or None
    found = store.differences(own, figure.stamp(scale))
    if found:
        return (
            f"{str(own)!r} holds results of another version, which are not mixed with this one ({'; '.join(found)}); "
            "--fresh (fresh=True) throws them away and starts anew, another --out keeps them"
        )
    try:
        outcome = Outcome.open(own)
    except ValueError:  # not there, or damaged: made again
        outcome = None
    return outcome if outcome and not outcome.error else lacking(figure, scale, data) or None


def _run(figure: Figure, folder: Path, scale: str, progress: bool, fresh: bool) -> Outcome:
    """Run a figure and return its outcome as stored, or one that says why nothing could be stored."""
    try:
        if fresh:
            store.clear(folder / figure.name)
        figure.run(scale, folder, progress)
        return Outcome.open(folder / figure.name)
    except Exception as problem:
        if store.is_full(problem):
            raise
        why = str(problem) if isinstance(problem.__cause__, OSError) else describe(problem)
        return Outcome(figure.label, settings={"scale": scale}, error=why)
