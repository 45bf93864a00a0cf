"""Rows of results, appended by many processes: each has a file of its own, and a half-written line is never read."""

import json
import os
import uuid
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER, SUFFIX = "rows", ".jsonl"
CHECK = 9  # characters of the checksum and the space before a row


class Writer:
    """The rows of one process, in a file that no other process writes to.

    Parameters
    ----------
    folder : Path
        The folder of a sweep.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Writer(Path(folder)) as writer:
    ...         writer.append([{"key": "a", "loss": 0.1}])
    ...     Reader(Path(folder)).read()
    [{'key': 'a', 'loss': 0.1}]
    """

    def __init__(self, folder: Path) -> None:
        (folder / FOLDER).mkdir(exist_ok=True)
        self.path = folder / FOLDER / f"{uuid.uuid4().hex}{SUFFIX}"
        self._descriptor: int | None = None

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append rows, which are on the disk when this returns.

        Raises
        ------
        OSError
            If the disk is full: what was written of these rows is not read.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        data = "".join(map(line_of, rows)).encode()
        end = os.fstat(self._descriptor).st_size
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, end)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Reader:
    """All rows in a folder; each call of `read` returns those that were appended since the last one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._read: dict[str, int] = {}  # bytes of each file

    def read(self) -> list[dict[str, Any]]:
        """Return the new rows, in the order of each file."""
        return list(self.new())

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the new rows, of which only those of one file are in memory at a time."""
        try:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            start = self._read.get(entry.name, 0)
            if not entry.name.endswith(SUFFIX) or entry.stat().st_size <= start:
                continue
            with Path(entry.path).open("rb") as file:
                file.seek(start)
                lines = file.read().split(b"\n")
            damaged = 0
            for line in lines[:-1]:  # the last is empty, or is still being written
                start += len(line) + 1
                if (row := row_of(line)) is not None:
                    yield row
                else:
                    damaged += 1
            self._read[entry.name] = start
            if damaged:
                warnings.warn(f"out: {entry.path} is damaged in {damaged} row(s), which are not used", stacklevel=4)


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line with a checksum."""
    text = json.dumps(row, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def row_of(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None if it is damaged."""
    text = line[CHECK:]
    if line[: CHECK - 1] != b"%08x" % zlib.crc32(text):
        return None
    row: dict[str, Any] = json.loads(text)
    return row
