"""The state of a search that consists of nested stages, in a file from which it goes on after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnrank._core import store
from bnrank._core.files import StorageError
from bnrank._core.sources import DamagedError

KIND = "search for a stationary point"
SEARCH = "search.safetensors"  # the file in a folder of results
EVERY = 20.0  # seconds between files

State = dict[str, Any]


def digest(*values: Any) -> str:
    """Return the SHA-256 of arrays and plain values."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            found.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def save(path: Path, tensors: Mapping[str, Any], about: Mapping[str, Any], kind: str) -> None:
    """Write a file of a folder of results.

    Raises
    ------
    ValueError
        If the folder is full or cannot be written to; the previous file is kept.
    """
    try:
        store.save(path, tensors, about, kind)
    except ValueError as error:
        raise StorageError(f"out: cannot write to {str(path.parent)!r}: {error}") from error


class Stages:
    """Nested stages of a search and their states.

    A stage is entered with the state in the file if the search was interrupted there, and with an empty one otherwise.
    A state must be noted before a stage within is entered for another time, so that the two belong together.

    Parameters
    ----------
    path : Path, optional
        The file. Default: no state is kept.
    problem : mapping of str to str
        What the search depends on.
    """

    def __init__(self, path: Path | None = None, problem: Mapping[str, str] | None = None) -> None:
        self.path, self.problem = path, dict(problem or {})
        self.names: list[str] = []
        self.states: dict[str, State] = {}
        self.known: dict[str, State] = {}
        self.seconds, self.last, self.began = 0.0, time.perf_counter(), time.perf_counter()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[State]:
        """Enter a stage, and provide its state."""
        self.names.append(name)
        key = "/".join(self.names)
        if key not in self.known:  # what lies within belongs to a stage of this name that was left
            self.known = {other: state for other, state in self.known.items() if not other.startswith(f"{key}/")}
        self.states[key] = known = self.known.pop(key, {})
        yield known
        self.states.pop(key, None)
        self.names.pop()

    def note(self, **state: Any) -> None:
        """Set the state of the stage: numbers, texts, None, arrays, and lists of arrays; now and then it is written."""
        self.states["/".join(self.names)] = state
        if self.path is not None and time.perf_counter() - self.last >= EVERY:
            self.write()

    def write(self) -> None:
        """Write the states of all stages to the file."""
        if self.path is None:
            return
        tensors: dict[str, np.ndarray] = {}
        plain: dict[str, State] = {}
        for key, state in self.states.items():
            plain[key] = {}
            for name, value in state.items():
                place = f"{key}:{name}"
                if isinstance(value, np.ndarray):
                    tensors[place], value = value, {"array": place}
                elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
                    tensors |= {f"{place}:{i}": part for i, part in enumerate(value)}
                    value = {"arrays": [f"{place}:{i}" for i in range(len(value))]}
                plain[key][name] = value
        seconds = self.seconds + time.perf_counter() - self.began
        save(self.path, tensors, {"problem": self.problem, "states": plain, "seconds": seconds}, KIND)
        self.last = time.perf_counter()

    def read(self) -> list[str] | None:
        """Read the states from the file, and return what differs from this problem; None if there is no file."""
        if self.path is None or not self.path.exists():
            return None
        stored = store.load(self.path, KIND, name="out")
        try:
            about, tensors = stored.about, {name: value.numpy() for name, value in stored.tensors.items()}
            differences = [name for name, value in self.problem.items() if about["problem"].get(name) != value]
            if differences:
                return differences
            self.seconds = float(about["seconds"])
            for key, state in about["states"].items():
                self.known[key] = {name: _restored(value, tensors) for name, value in state.items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(f"out: {str(self.path)!r} is damaged: {error}") from error
        return []

    def discard(self) -> None:
        """Remove the file."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _restored(value: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict) and "array" in value:
        return tensors[value["array"]].copy()
    if isinstance(value, dict) and "arrays" in value:
        return [tensors[name].copy() for name in value["arrays"]]
    return value
