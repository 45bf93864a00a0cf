"""Figures of the theory: settings at two scales, a computation, claims, pictures."""

import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bnrank._core import validation
from bnrank.figures.harness import store
from bnrank.figures.harness.interruption import ctrl_c
from bnrank.figures.harness.outcome import Outcome

SCALES = ("quick", "paper")


@dataclass(frozen=True)
class Figure:
    """One figure of docs/theory.md.

    Attributes
    ----------
    id, name, title : str
        "F1", "bottleneck-spectra" and a line in words.
    source : str
        Paper key and figure number.
    expected : str
        The expected result, in words.
    settings : mapping
        Scale -> settings, an instance of the figure's frozen dataclass.
    make : callable
        (settings, folder of training runs, progress) -> Outcome.
    version : int
        Raised by the author when the computation changes; results of another version are not reused.
    gigabytes : mapping
        Scale -> peak memory in GB (10^9 bytes); scales left out are not checked.
    data : mapping
        Scale -> required data sets, such as ``("mnist",)``.
    printed : bool
        Whether the source prints this figure, so that ``expected`` is what it shows.
    """

    id: str
    name: str
    title: str
    source: str
    expected: str
    settings: Mapping[str, Any]
    make: Callable[[Any, Path, bool], Outcome]
    _: dataclasses.KW_ONLY
    version: int = 1
    gigabytes: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    printed: bool = True

    @property
    def label(self) -> str:
        """Its id and its name."""
        return f"{self.id} {self.name}"

    def stamp(self, scale: str, **changes: Any) -> dict[str, Any]:
        """Return the stamp of results, which are reused only if it agrees: figure, version, scale and settings."""
        return {"figure": self.label, "version": self.version, **self.described(scale, **changes)}

    def described(self, scale: str, **changes: Any) -> dict[str, Any]:
        """Return scale and settings as one mapping."""
        return {"scale": scale, **dataclasses.asdict(self.changed(scale, **changes))}

    def changed(self, scale: str, **changes: Any) -> Any:
        """Return the settings of a scale with some of them replaced.

        Raises
        ------
        ValueError
            If there is no such scale or setting.
        """
        settings = self.settings[validation.choice(scale, "scale", SCALES)]
        known = [entry.name for entry in dataclasses.fields(settings)]
        for name in changes:
            if name not in known:
                expected = f"expected some of {', '.join(known)}{validation.suggest(name, known)}"
                raise ValueError(f"changes: {self.label} has no setting {name!r}, {expected}")
        return replace(settings, **changes)

    def run(
        self, scale: str, out: str | os.PathLike[str], progress: bool = True, resume: bool = True, **changes: Any
    ) -> Outcome:
        """Run the figure at a scale, store its outcome in a folder of its name, and return it.

        An error of the computation becomes the outcome's ``error``. Stored training runs are resumed.

        Parameters
        ----------
        scale : "quick" or "paper"
            Which settings.
        out : path
            The figure's folder is created in it.
        progress : bool
            Show progress bars.
        resume : bool
            Resume stored training runs; False discards stored results first.
        **changes
            Settings to replace.

        Raises
        ------
        ValueError
            If there is no such scale or setting, the folder holds results of other settings, of another version or
            other files, or it cannot be written to.
        """
        settings, stamp = self.changed(scale, **changes), self.stamp(scale, **changes)
        folder = Path(out) / self.name
        refused = store.refusal(folder, stamp, resume)
        if refused:
            raise ValueError(f"out: {refused}")
        if not resume:
            store.clear(folder)
        before, began = store.begin(folder, stamp), time.perf_counter()
        made, error = Outcome(), ""
        try:
            with ctrl_c():
                made = self.make(settings, folder / store.RUNS, progress)
        except Exception as problem:
            error = describe(problem)
            if "resume=False" in error:  # advice of a stored training run, for callers of bnrank.train
                error = f"--fresh (resume=False) discards the stored results of the figure; {error}"
        finally:
            seconds = before + time.perf_counter() - began
            store.spend(folder, seconds)
        described = self.described(scale, **changes)
        try:
            described |= made.settings
            outcome = replace(made, figure=self.label, settings=described, seconds=seconds, error=error)
            outcome.save(folder)
        except Exception as problem:
            if isinstance(problem.__cause__, OSError):
                raise
            error = f"the outcome cannot be stored: {describe(problem)}"
            outcome = Outcome(self.label, settings=described, seconds=seconds, error=error)
            outcome.save(folder)
        return outcome


def describe(problem: Exception) -> str:
    """Return what an error is, and below it where it was raised."""
    return f"{type(problem).__name__}: {problem}\n{''.join(traceback.format_exception(problem, limit=-4))}"


def middle(depth: int) -> Sequence[int]:
    """Return the layers, counted from 1, in the middle third of a network of depth L.

    Examples
    --------
    >>> list(middle(13))
    [5, 6, 7, 8, 9]
    """
    return range(depth // 3 + 1, depth - depth // 3 + 1)
