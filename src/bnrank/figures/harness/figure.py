"""What every figure of the theory is: settings, a run, claims that can fail, pictures."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bnrank._core import validation
from bnrank._version import __version__
from bnrank.figures.harness import store
from bnrank.figures.harness.interruption import ctrl_c
from bnrank.reporting import Section

__all__ = ["SCALES", "Claim", "Figure", "Outcome", "describe", "middle"]

SCALES = ("quick", "paper")


@dataclass(frozen=True)
class Claim:
    """One thing that must be seen, and whether it was.

    Attributes
    ----------
    name : str
        What is claimed.
    passed : bool or None
        Whether it was seen; None if that could not be decided.
    measured : str or float
        The number it was decided on.
    expected : str
        What that number had to be.
    """

    name: str
    passed: bool | None
    measured: str | float
    expected: str


@dataclass(frozen=True)
class Outcome:
    """What a figure gave.

    Attributes
    ----------
    figure : str
        Its id and name.
    claims : tuple of Claim
        What must be seen.
    sections : tuple of Section
        Parts of the page: pictures, profiles, histories, tables.
    pictures : mapping
        File name without ending -> matplotlib figure; of an outcome that was opened, -> PNG file.
    settings : mapping
        What it was made with.
    seconds : float
        Wall time, with that of attempts before that were interrupted or failed (not of one that was killed).
    error : str
        Why there is nothing, if it failed.
    captions : mapping
        Name of a picture -> a line under it; without one, the name in words.
    version, code : str
        The version of bnrank, and a digest of its source files.
    stamp : mapping or None
        What has to agree for `reproduce` to take it for the outcome that it is asked for; None if it was not made so.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> outcome = Outcome("F0 nothing", (Claim("one is one", True, 1.0, "1"),), seconds=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome.save(Path(folder))
    ...     Outcome.open(folder).claims[0].measured
    1.0
    """

    figure: str
    claims: tuple[Claim, ...] = ()
    sections: tuple[Section, ...] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    captions: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__
    code: str = field(default_factory=store.code_digest)
    stamp: Mapping[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether it ran, something must be seen, and all of that was seen."""
        return not self.error and bool(self.claims) and all(claim.passed for claim in self.claims)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all of it to a folder, claims.json last: where that is there, the outcome is whole.

        Pictures are written as PNG, histories and profiles as NetCDF, the rest as JSON. Of what the folder holds, only
        the files of an outcome that was saved there before are removed.

        Raises
        ------
        ValueError
            If the folder cannot be written to, or is full; or if a picture or a section cannot be stored.
        """
        folder = Path(folder)
        text: dict[str, Any] = {
            "figure": self.figure,
            "passed": self.passed,
            "claims": [store.claim_entry(claim) for claim in self.claims],
            "settings": dict(self.settings),
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "captions": dict(self.captions),
            "version": self.version,
            "code": self.code,
            "stamp": self.stamp,
            "pictures": {name: f"{name}.png" for name in self.pictures},
        }
        with store.one_error(folder):
            files = store.picture_files(self.pictures) | store.section_files(self.sections)
            folder.mkdir(parents=True, exist_ok=True)
            text["files"] = store.write_files(folder, files)
            store.write_json(folder / store.CLAIMS, text)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Outcome:
        """Open an outcome that was saved.

        Raises
        ------
        ValueError
            If the folder holds none, or one that is damaged.
        """
        folder = Path(folder)
        if not store.is_there(folder / store.CLAIMS):
            raise ValueError(f"folder: {str(folder)!r} holds no outcome, expected a file {store.CLAIMS} in it")
        try:
            text = store.read_json(folder / store.CLAIMS)
            for file, size in text["files"].items():
                found = (folder / file).stat().st_size
                if found != size:
                    raise ValueError(f"{file} has {found} bytes, {size} were written")
            return cls(
                text["figure"],
                tuple(Claim(**claim) for claim in text["claims"]),
                store.read_sections(folder, Claim),
                {name: folder / file for name, file in text["pictures"].items()},
                text["settings"],
                text["seconds"],
                text["error"],
                text["captions"],
                text["version"],
                text["code"],
                text["stamp"],
            )
        except Exception as error:
            raise ValueError(f"folder: {str(folder)!r} is damaged or holds no outcome: {error!r}") from error


@dataclass(frozen=True)
class Figure:
    """One figure of docs/theory.md.

    Attributes
    ----------
    id, name, title : str
        "F1", "bottleneck-spectra" and a line in words.
    source : str
        Paper key and figure number.
    sees : str
        What must be seen, in words.
    settings : mapping
        Scale -> keyword arguments of ``make``.
    make : callable
        (folder for runs, progress, **settings) -> Outcome.
    gigabytes : mapping
        Scale -> memory needed at its peak, in GB (10^9 bytes); a scale that is not there is not checked.
    data : mapping
        Scale -> data sets it cannot do without, such as ``("mnist",)``.
    printed : bool
        Whether the source prints this figure, so that ``sees`` is what it shows there.
    """

    id: str
    name: str
    title: str
    source: str
    sees: str
    settings: Mapping[str, Mapping[str, Any]]
    make: Callable[..., Outcome]
    gigabytes: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    printed: bool = True

    @property
    def label(self) -> str:
        """Its id and its name."""
        return f"{self.id} {self.name}"

    def stamp(self, scale: str, **changes: Any) -> dict[str, Any]:
        """Return what has to agree for stored results to be gone on with: version, source files, settings."""
        return store.stamp_of(self.label, {"scale": scale, **self.settings[scale], **changes})

    def run(self, scale: str, out: str | os.PathLike[str], progress: bool = True, **changes: Any) -> Outcome:
        """Run the figure at a scale and store its outcome in a folder of its name; an error becomes its outcome.

        Training runs that the folder holds are gone on with, whatever version of bnrank they are of: the stamp that
        was written before them stays, by which `bnrank.figures.reproduce` refuses them. ``changes`` replace settings
        of the scale.

        Raises
        ------
        ValueError
            If there is no such scale, or the folder cannot be written to, or is full.
        """
        settings = {**self.settings[validation.choice(scale, "scale", SCALES)], **changes}
        stamp = self.stamp(scale, **changes)
        folder = Path(out) / self.name
        before = store.begin(folder, stamp)
        began = time.perf_counter()
        error = ""
        try:
            with ctrl_c():
                made = self.make(folder / store.RUNS, progress, **settings)
        except Exception as problem:
            made, error = Outcome(self.id), describe(problem)
            if "resume=False" in error:  # said of a stored training run, to whom trains it directly
                error = f"--fresh (fresh=True) throws away what is stored of the figure and starts anew; {error}"
        except BaseException:  # Ctrl-C
            store.spend(folder, before + time.perf_counter() - began)
            raise
        seconds = before + time.perf_counter() - began
        outcome = replace(
            made,
            figure=self.label,
            settings={"scale": scale, **settings, **made.settings},
            seconds=seconds,
            error=error,
            stamp=stamp,
        )
        store.spend(folder, seconds)
        try:
            outcome.save(folder)
        except Exception as problem:
            if isinstance(problem.__cause__, OSError):
                raise
            outcome = replace(
                outcome, sections=(), pictures={}, error=f"what was found cannot be stored: {describe(problem)}"
            )
            outcome.save(folder)
        return outcome


def describe(problem: Exception) -> str:
    """Say what an error is, and below where it came from."""
    return f"{type(problem).__name__}: {problem}\n{''.join(traceback.format_exception(problem, limit=-4))}"


def middle(depth: int) -> Sequence[int]:
    """Return the layers, counted from 1, in the middle third of a network of depth L.

    Examples
    --------
    >>> list(middle(13))
    [5, 6, 7, 8, 9]
    """
    return range(depth // 3 + 1, depth - depth // 3 + 1)
