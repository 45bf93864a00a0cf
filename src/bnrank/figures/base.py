"""What every figure of the theory is: settings, a run, claims that can fail, pictures."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bnrank._files import write_atomically
from bnrank.reporting import Section

__all__ = ["SCALES", "Claim", "Figure", "Outcome", "middle"]

SCALES = ("quick", "paper")


@dataclass(frozen=True)
class Claim:
    """One thing that must be seen, and whether it was.

    Attributes
    ----------
    name : str
        What is claimed.
    passed : bool
        Whether it was seen.
    measured : str or float
        The number it was decided on.
    expected : str
        What that number had to be.
    """

    name: str
    passed: bool
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
        File name without ending -> matplotlib figure.
    settings : mapping
        What it was made with.
    seconds : float
        Wall time.
    error : str
        Why there is nothing, if it failed.
    """

    figure: str
    claims: tuple[Claim, ...] = ()
    sections: tuple[Section, ...] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran and everything that must be seen was seen."""
        return not self.error and all(claim.passed for claim in self.claims)

    def save(self, folder: Path) -> None:
        """Write claims and settings as JSON and the pictures as PNG."""
        folder.mkdir(parents=True, exist_ok=True)
        claims = [asdict(claim) for claim in self.claims]
        text = {"figure": self.figure, "passed": self.passed, "claims": claims, "settings": dict(self.settings)}
        text |= {"seconds": round(self.seconds, 1), "error": self.error}
        write_atomically(folder / "claims.json", json.dumps(text, indent=1, default=str) + "\n")
        for name, picture in self.pictures.items():
            picture.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight")


@dataclass(frozen=True)
class Figure:
    """One figure of theory.md section 7.

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
    """

    id: str
    name: str
    title: str
    source: str
    sees: str
    settings: Mapping[str, Mapping[str, Any]]
    make: Callable[..., Outcome]

    def run(self, scale: str, out: str | os.PathLike[str], progress: bool = True, **changes: Any) -> Outcome:
        """Run the figure at a scale and store its claims and pictures in a folder; an error becomes its outcome.

        ``changes`` replace settings of the scale.
        """
        settings = {**self.settings[scale], **changes}
        folder = Path(out) / self.name
        began = time.perf_counter()
        try:
            made = self.make(folder / "runs", progress, **settings)
            error = ""
        except Exception as problem:
            made = Outcome(self.id)
            error = f"{type(problem).__name__}: {problem}\n{traceback.format_exc(limit=4)}"
        outcome = Outcome(
            f"{self.id} {self.name}",
            made.claims,
            made.sections,
            made.pictures,
            {"scale": scale, **settings},
            time.perf_counter() - began,
            error,
        )
        outcome.save(folder)
        return outcome


def middle(depth: int) -> Sequence[int]:
    """Return the layers, counted from 1, in the middle third of a network of depth L.

    Examples
    --------
    >>> list(middle(13))
    [5, 6, 7, 8, 9]
    """
    return range(depth // 3 + 1, depth - depth // 3 + 1)
