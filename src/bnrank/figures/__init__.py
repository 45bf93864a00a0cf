"""The figures of the theory, with their claims measured."""

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bnrank._core import validation
from bnrank._core.files import discard_partial, prepare_folder
from bnrank._core.sources import as_path
from bnrank.figures.demo import Demo, run_demo
from bnrank.figures.f01_bottleneck_spectra import figure as f01
from bnrank.figures.f02_class_regions import figure as f02
from bnrank.figures.f03_autoencoders import figure as f03
from bnrank.figures.f04_norm_and_depth import figure as f04
from bnrank.figures.f05_symmetry_learning import figure as f05
from bnrank.figures.f06_falling_ball import figure as f06
from bnrank.figures.f07_kernel_rates import figure as f07
from bnrank.figures.f08_kernel_jacobians import figure as f08
from bnrank.figures.f09_first_escape import figure as f09
from bnrank.figures.f09_linear_control import figure as f09l
from bnrank.figures.f10_depth_four import figure as f10
from bnrank.figures.f11_escape_width import figure as f11
from bnrank.figures.f12_one_neuron import figure as f12
from bnrank.figures.f13_low_rank_tails import figure as f13
from bnrank.figures.f14_geodesics import figure as f14
from bnrank.figures.f15_rank_recovery import figure as f15
from bnrank.figures.f16_stability import figure as f16
from bnrank.figures.f17_rank_jumps import figure as f17
from bnrank.figures.harness import claims, gallery, store
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import SCALES, Figure, Outcome, describe
from bnrank.figures.harness.gallery import OUT, Entry, duration, entries
from bnrank.figures.harness.requirements import lacking, unscaled
from bnrank.training.sweeping.engines import engine

__all__ = [
    "FIGURES",
    "OUT",
    "SCALES",
    "Claim",
    "Demo",
    "Figure",
    "Outcome",
    "claims",
    "duration",
    "find",
    "listing",
    "reproduce",
    "run_demo",
    "stored",
]

FIGURES: tuple[Figure, ...] = tuple(
    module.FIGURE
    for module in (f01, f02, f03, f04, f05, f06, f07, f08, f09, f09l, f10, f11, f12, f13, f14, f15, f16, f17)
)


def find(name: str) -> Figure:
    """Return a figure by its id or its name.

    Raises
    ------
    ValueError
        If there is no such figure; the message suggests the nearest name.

    Examples
    --------
    >>> find("F1").name, find("norm-and-depth").id
    ('bottleneck-spectra', 'F4')
    """
    return _named([validation.text(name, "name")], "name")[0]


def reproduce(
    names: str | Figure | Sequence[str | Figure],
    out: str | os.PathLike[str],
    scale: str = "quick",
    progress: bool = True,
    resume: bool = True,
    on_start: Callable[[Figure], Any] | None = None,
    on_end: Callable[[Figure, Outcome], Any] | None = None,
    executor: Any = None,
) -> list[Outcome]:
    """Run figures, store their outcomes, and return them; the page ``index.html`` is rewritten after every figure.

    The page lists the figures of the library and those given in this call.

    A finished figure is opened, not rerun, whether or not its claims passed. An interrupted figure resumes its stored
    training runs; a failed one is retried. If a figure fails, has no settings for the scale, lacks memory or data, or
    its folder contains other files or results of other settings or versions, its outcome has an ``error``, and the
    other figures still run.

    Parameters
    ----------
    names : str, Figure or sequence of them
        Ids or names; "all" for every figure; or figures of your own (docs/how-to/add-a-figure.md).
    out : path
        Output folder; contains one folder per scale, with one folder per figure.
    scale : "quick" or "paper"
        Minutes on two cores, or networks and data of the source's sizes (docs/figures.md lists the differences).
    progress : bool
        Show progress bars.
    resume : bool
        Reuse stored results; False discards those of these figures and starts over.
    on_start, on_end : callable, optional
        Called with a figure before it is run, and with it and its outcome after it was run or opened. Figures that
        cannot run are reported before the first one starts.
    executor : concurrent.futures.Executor, dask.distributed.Client or function, optional
        Executor that runs trainings that do not depend on each other, each with one thread, as that of `bnrank.sweep`;
        its workers must reach ``out`` under the same path. Each stores its result in the figure's folder. One that is
        lost is submitted again, and resumes from its checkpoint. Measurements, single trainings and the flows of F9L
        and F13 run in this process.

    Returns
    -------
    list of Outcome
        One per figure, in the order of ``names``, as stored: pictures are files.

    Raises
    ------
    TypeError, ValueError
        If there is no such figure or scale, two figures have the same id or name, the folder cannot be written to or
        is full, or ``executor`` takes no work.
    KeyboardInterrupt
        At Ctrl-C; the page is written, and the same call resumes.

    Warns
    -----
    UserWarning
        If a stored outcome is damaged; the figure is made again.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome, = bnrank.figures.reproduce("F12", folder, progress=False)
    >>> outcome.figure, outcome.passed, len(outcome.claims)
    ('F12 one-neuron', True, 3)
    """
    folder = _folder(out, scale)
    figures = _chosen(names)
    listed = (*FIGURES, *(figure for figure in figures if figure not in FIGURES))
    executor = engine(executor)
    prepare_folder(folder)
    discard_partial(folder)
    data: dict[str, str] = {}
    refused: dict[str, str] = {}
    failed: dict[str, Outcome] = {}
    done: dict[str, Outcome] = {}

    def write_page() -> None:
        gallery.write(folder, scale, entries(folder, scale, listed, refused, failed))

    def opened(figure: Figure) -> Outcome | None:
        """Return the stored outcome of a figure, or one with the reason why it cannot run; None if it must run."""
        refused.pop(figure.name, None)
        why = unscaled(figure, scale) or store.refusal(folder / figure.name, figure.stamp(scale), resume)
        if not why and resume:
            try:
                outcome = Outcome.open(folder / figure.name)
            except ValueError as error:  # missing or damaged: run again
                if store.is_there(folder / figure.name / store.CLAIMS):
                    warnings.warn(f"{error}; the figure is made again", stacklevel=3)
            else:
                if not outcome.error:
                    return outcome
        why = why or lacking(figure, scale, data)
        if not why:
            return None
        refused[figure.name] = why
        return Outcome(figure.label, settings={"scale": scale}, error=why)

    for figure in figures:
        opened(figure)
    write_page()
    for figure in sorted(figures, key=lambda one: one.name not in refused):
        shown = figure.name in refused  # on the page
        outcome = opened(figure)  # again: earlier figures may have exhausted memory or disk space
        if outcome is None:
            if on_start is not None:
                on_start(figure)
            try:
                outcome = _run(figure, folder, scale, progress, resume, executor)
            except KeyboardInterrupt:
                write_page()
                raise
            if outcome.error:
                failed[figure.name] = outcome
        if not (shown and figure.name in refused):
            write_page()
        done[figure.name] = outcome
        if on_end is not None:
            on_end(figure, outcome)
    return [done[figure.name] for figure in figures]


def _run(figure: Figure, folder: Path, scale: str, progress: bool, resume: bool, executor: Any) -> Outcome:
    """Run a figure and return its outcome as stored, or one with the reason why nothing could be stored."""
    try:
        figure.run(scale, folder, progress, resume, executor)
        return Outcome.open(folder / figure.name)
    except Exception as problem:
        if store.is_full(problem):
            raise
        why = str(problem) if isinstance(problem.__cause__, OSError) else describe(problem)
        return Outcome(figure.label, settings={"scale": scale}, error=why)


def stored(out: str | os.PathLike[str], scale: str = "quick") -> dict[str, Outcome]:
    """Return the outcomes that `reproduce` stored in a folder, by the name of their figure.

    Unfinished and corrupted figures are omitted. `listing` shows whether stored settings differ from the current ones.

    Parameters
    ----------
    out, scale
        Those of `reproduce`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     done = reproduce("F12", out, progress=False)
    ...     again = stored(out)["one-neuron"]
    >>> again.passed, again.claims == done[0].claims, again.settings["angles"]
    (True, True, 721)
    >>> [path.name for path in again.pictures.values()]
    ['speed-against-angle.png']
    """
    folder = _folder(out, scale)
    found = {}
    for path in store.folders(folder):
        with contextlib.suppress(ValueError):
            found[path.name] = Outcome.open(path)
    return found


def listing(
    out: str | os.PathLike[str], scale: str = "quick", names: str | Figure | Sequence[str | Figure] = "all"
) -> list[Entry]:
    """Return the entries of figures (default: all) with their results in a folder of `reproduce`.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     entry, = bnrank.figures.listing(folder, names="F1")
    >>> entry.figure.name, entry.outcome is None                # nothing is stored in the folder
    ('bottleneck-spectra', True)
    """
    return entries(_folder(out, scale), scale, _chosen(names), {}, {})


def _folder(out: str | os.PathLike[str], scale: str) -> Path:
    """Return the folder of a scale, which need not exist."""
    folder = as_path(out, "out") / validation.choice(scale, "scale", SCALES)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.stat()
    except OSError as error:  # a name that is too long
        raise ValueError(f"out: got {str(out)!r}, expected a folder ({error.strerror or error})") from error
    return folder


def _chosen(names: str | Figure | Sequence[str | Figure]) -> list[Figure]:
    """Return the figures of these names, and those that are given themselves, without duplicates."""
    expected = "ids or names of figures, or all"
    given = [names] if isinstance(names, str | Figure) else validation.sequence(names, "names", expected)
    validation.expect(given, "names", "none", expected)
    known = all(isinstance(name, str | Figure) for name in given)
    validation.expect(known, "names", names, "ids or names of figures, such as 'F1', or 'all'", TypeError)
    _named([name for name in given if isinstance(name, str) and name.lower() != "all"], "names")
    chosen: list[Figure] = []
    for name in given:
        chosen += [name] if isinstance(name, Figure) else FIGURES if name.lower() == "all" else _named([name], "names")
    figures = list({id(figure): figure for figure in chosen}.values())
    taken = {name.lower(): figure for figure in FIGURES for name in (figure.id, figure.name)}
    for figure in figures:
        for name in dict.fromkeys((figure.id.lower(), figure.name.lower())):
            other = taken.setdefault(name, figure)
            validation.expect(other is figure, "names", f"two figures {name!r}", "figures of different ids and names")
    return figures


def _named(names: Sequence[str], argument: str) -> list[Figure]:
    """Return the figures of these ids or names."""
    known = {name.lower(): figure for figure in FIGURES for name in (figure.id, figure.name)}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        options = [option for figure in FIGURES for option in (figure.id, figure.name)]
        expected = ", ".join(f"{figure.id} ({figure.name})" for figure in FIGURES)
        hints = "".join(dict.fromkeys(validation.suggest(name, options) for name in unknown))
        raise ValueError(f"{argument}: got {', '.join(map(repr, unknown))}, expected one of {expected}, or all{hints}")
    return [known[name.lower()] for name in names]
