"""Figures one after the other into a folder: what is stored is kept, what fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnrank._files import discard_partial, prepare_folder
from bnrank.figures import gallery, store
from bnrank.figures.base import Figure, Outcome
from bnrank.figures.requirements import lacking

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
    """Run figures, or open what is stored of them, and keep the page of all that are ``shown`` up to date."""
    prepare_folder(folder)
    discard_partial(folder)
    refused: dict[str, str] = {}
    outcomes = []
    gallery.write(folder, scale, shown, refused)
    for figure in figures:
        outcome = None if fresh else _kept(figure, folder, scale)
        why = "" if outcome is not None else _obstacle(figure, folder, scale, fresh)
        if outcome is not None:
            pass
        elif why:
            outcome = Outcome(figure.label, settings={"scale": scale}, error=why)
            refused[figure.name] = why
        else:
            if fresh:
                store.clear(folder / figure.name)
            if on_start is not None:
                on_start(figure)
            try:
                figure.run(scale, folder, progress)
            except KeyboardInterrupt:
                gallery.write(folder, scale, shown, refused)
                raise
            outcome = Outcome.open(folder / figure.name)
        outcomes.append(outcome)
        gallery.write(folder, scale, shown, refused)
        if on_end is not None:
            on_end(figure, outcome)
    return outcomes


def _kept(figure: Figure, folder: Path, scale: str) -> Outcome | None:
    """Return the stored outcome of a figure if nothing is left to do: it is whole, of this version, and no error."""
    own = folder / figure.name
    if store.differences(own, figure.stamp(scale)):
        return None
    try:
        outcome = Outcome.open(own)
    except ValueError:  # not there, or damaged: made again
        return None
    return None if outcome.error else outcome


def _obstacle(figure: Figure, folder: Path, scale: str, fresh: bool) -> str:
    """Say why a figure cannot be started; empty if it can."""
    own = folder / figure.name
    if fresh:
        return store.refusal(own) or lacking(figure, scale)
    found = store.differences(own, figure.stamp(scale))
    if found:
        return (
            f"{str(own)!r} holds results of another version, which are not mixed with this one ({'; '.join(found)}); "
            "--fresh (fresh=True) throws them away and starts anew, another --out keeps them"
        )
    return lacking(figure, scale)
