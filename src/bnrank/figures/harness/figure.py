"""Figures of the theory: settings at two scales, a computation, and its outcome: claims, sections, pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bnrank._core import identity, sources, validation
from bnrank._core.files import one_writer, prepare_folder
from bnrank._core.sources import DamagedError
from bnrank._version import __version__
from bnrank.figures.harness import store
from bnrank.figures.harness.claims import Claim
from bnrank.reporting import Section
from bnrank.training.sweeping.engines import engaged

SCALES = ("quick", "paper")


@dataclass(frozen=True)
class Outcome:
    """The result of a figure.

    Attributes
    ----------
    figure : str
        Its id and name.
    claims : tuple of Claim
        Expected results and their measurements.
    sections : tuple of Section
        Parts of the page: pictures, profiles, histories, tables.
    pictures : mapping
        File name without ending -> matplotlib figure; in an opened outcome, -> PNG file.
    settings : mapping
        The settings it was computed with.
    captions : mapping
        Name of a picture -> its caption; default: the name in words.
    seconds : float
        Wall time, interrupted and failed attempts included (those of killed processes excluded).
    error : str
        Why the figure failed; empty if it did not.
    version : str
        The version of bnrank that computed it.

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

    figure: str = ""
    claims: tuple[Claim, ...] = ()
    sections: Sequence[Section] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    captions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""
    version: str = __version__

    @property
    def passed(self) -> bool:
        """Whether it ran, has claims, and all of them were reproduced."""
        return not self.error and bool(self.claims) and all(claim.passed for claim in self.claims)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the outcome to a folder, claims.json last: if that file exists, the outcome is complete.

        The checksums of all files are in ``SHA256SUMS``.

        Pictures are written as PNG (small ones also as SVG), histories and profiles as NetCDF, the rest as JSON. Only
        files of an outcome saved there before are removed.

        Raises
        ------
        ValueError
            If the folder cannot be written to, or is full; or if a picture or a section cannot be stored.
        """
        folder = Path(folder)
        for name in self.pictures:
            validation.expect(_is_file_name(name), "pictures", f"the name {name!r}", "a valid file name")
        text = {key: getattr(self, key) for key in ("figure", "passed", "settings", "error", "captions", "version")}
        text["claims"] = store.claim_entries(self.claims)
        text["seconds"] = round(self.seconds, 3)
        text["pictures"] = {name: f"{name}.png" for name in self.pictures}
        with store.one_error(folder):
            files = store.section_files(self.sections)
            for name, picture in self.pictures.items():
                files |= store.picture_files(name, picture)
            folder.mkdir(parents=True, exist_ok=True)
            store.write_files(folder, {**files, store.CLAIMS: store.to_json(text)})

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Outcome:
        """Return a saved outcome.

        Raises
        ------
        ValueError
            If the folder contains no outcome, or a corrupted one.
        """
        folder = sources.as_path(folder, "folder")
        if not store.is_there(folder / store.CLAIMS):
            raise ValueError(f"folder: {str(folder)!r} holds no outcome, expected a file {store.CLAIMS} in it")
        files = store.read_files(folder)
        try:
            text = store.read_json(files[store.CLAIMS])
            text.pop("passed")
            text["claims"] = tuple(Claim(**claim) for claim in text["claims"])
            text["pictures"] = {name: store.picture(folder, files, file) for name, file in text["pictures"].items()}
            return cls(sections=store.read_sections(folder, files), **text)
        except DamagedError:
            raise
        except Exception as error:
            wrong = f"{store.CLAIMS} or {store.SECTIONS} of {str(folder)!r}"
            raise DamagedError(f"folder: {wrong} is damaged or of no outcome: {error!r}") from error


@dataclass(frozen=True)
class Figure:
    """One figure of docs/theory.md.

    Attributes
    ----------
    id, name, title : str
        "F1", "bottleneck-spectra" and a line in words. The name is that of the figure's folder.
    source : str
        Paper key and figure number.
    expected : str
        The expected result, in words.
    settings : mapping
        Scale -> settings, an instance of the figure's frozen dataclass.
    make : callable
        (settings, folder of training runs, progress) -> Outcome.
    version : int
        Incremented when the computation changes; results of another version are not reused.
    gigabytes : mapping
        Scale -> peak memory in GB (10^9 bytes); omitted scales are not checked.
    data : mapping
        Scale -> required data sets, such as ``("mnist",)``.
    printed : bool
        Whether the figure is printed in the source, so that ``expected`` describes the printed figure.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong type, the name is no file name, or a scale is unknown.

    Examples
    --------
    >>> import tempfile
    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     value: float = 1.0
    >>> def make(settings, folder, progress):
    ...     return Outcome(claims=(Claim("the value is positive", settings.value > 0, settings.value, "> 0"),))
    >>> scales = {"quick": Settings(), "paper": Settings(value=2.0)}
    >>> figure = Figure("X1", "positive", "A positive value", "nowhere", "a value above 0", scales, make)
    >>> with tempfile.TemporaryDirectory() as out:
    ...     figure.run("paper", out, progress=False).passed
    True
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

    def __post_init__(self) -> None:
        for name in ("id", "name", "title", "source", "expected"):
            validation.text(getattr(self, name), name)
        validation.expect(_is_file_name(self.name), "name", repr(self.name), "a valid file name")
        for name in ("settings", "gigabytes", "data"):
            value = getattr(self, name)
            validation.expect(isinstance(value, Mapping), name, value, "a mapping from scales", TypeError)
            for scale in value:
                validation.choice(scale, f"{name}, a scale", SCALES)
        for value in self.settings.values():
            instance = dataclasses.is_dataclass(value) and not isinstance(value, type)
            validation.expect(instance, "settings", value, "an instance of a dataclass for every scale", TypeError)
        validation.expect(callable(self.make), "make", self.make, "a function", TypeError)
        validation.integer(self.version, "version", 0)
        validation.flag(self.printed, "printed")

    @property
    def label(self) -> str:
        """Its id and its name."""
        return f"{self.id} {self.name}"

    def stamp(self, scale: str, **changes: Any) -> dict[str, Any]:
        """Return the stamp of results, which are reused only if it agrees: figure, version, scale and settings."""
        version = {"version": self.version, "format": identity.FORMAT}
        return {"figure": self.label, **version, **self.described(scale, **changes)}

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
        settings = self.settings[validation.choice(scale, "scale", [name for name in SCALES if name in self.settings])]
        known = [entry.name for entry in dataclasses.fields(settings)]
        for name in changes:
            if name not in known:
                expected = f"expected some of {', '.join(known)}{validation.suggest(name, known)}"
                raise ValueError(f"changes: {self.label} has no setting {name!r}, {expected}")
        return replace(settings, **changes)

    def run(
        self,
        scale: str,
        out: str | os.PathLike[str],
        progress: bool = True,
        resume: bool = True,
        executor: Any = None,
        **changes: Any,
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
        executor : concurrent.futures.Executor, dask.distributed.Client or function, optional
            Engine of the trainings, as in `reproduce`.
        **changes
            Settings to replace.

        Raises
        ------
        ValueError
            If there is no such scale or setting, the folder holds results of other settings, of another version or
            other files, it cannot be written to, or another process runs the figure in it.
        """
        stamp = self.stamp(scale, **changes)
        folder = sources.as_path(out, "out") / self.name
        store.refuse(folder, stamp, resume)
        prepare_folder(folder)
        with engaged(executor), one_writer(folder):
            store.refuse(folder, stamp, resume)  # again: another process may have written to it
            if not resume:
                store.clear(folder)
            return self._run(scale, folder, store.begin(folder, stamp), progress, changes)

    def _run(self, scale: str, folder: Path, before: float, progress: bool, changes: Mapping[str, Any]) -> Outcome:
        """Run the figure in its folder, after some seconds of earlier attempts."""
        settings, began = self.changed(scale, **changes), time.perf_counter()
        made, error = Outcome(), ""
        try:
            with ctrl_c():
                result = self.make(settings, folder / store.RUNS, progress)
                made = validation.kind(result, "make", Outcome, "a result that is a")
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


def _is_file_name(name: str) -> bool:
    """Return whether a name names a file or folder inside a folder."""
    return Path(name).name == name and name not in ("", "..") and name.isprintable() and "\\" not in name


def describe(problem: Exception) -> str:
    """Return the description of an error, followed by where it was raised."""
    return f"{type(problem).__name__}: {problem}\n{''.join(traceback.format_exception(problem, limit=-4))}"


def middle(depth: int) -> Sequence[int]:
    """Return the layers, counted from 1, in the middle third of a network of depth L.

    Examples
    --------
    >>> list(middle(13))
    [5, 6, 7, 8, 9]
    """
    return range(depth // 3 + 1, depth - depth // 3 + 1)


@contextlib.contextmanager
def ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if Ctrl-C was pressed inside and handled there.

    Training ends normally at Ctrl-C and returns an unfinished run, on which claims must not be measured. Has an effect
    only in the main thread, and only where Ctrl-C is not ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    ours, theirs = socket.socketpair()  # receives the number of every signal, whichever handler it has
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        told = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            signal.set_wakeup_fd(told)
            with contextlib.suppress(BlockingIOError):
                if signal.SIGINT in ours.recv(4096):
                    raise KeyboardInterrupt
