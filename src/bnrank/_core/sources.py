"""Files from elsewhere: only regular ones, no larger than memory; JSON of limited size and depth."""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bnrank._core import validation

MAX_JSON = 1 << 23
"""Bytes of JSON in a file, such as the header of a safetensors file."""
MAX_DEPTH = 100
"""Nested lists and objects in JSON."""
MAX_EXPANSION = 50
"""Bytes in memory per byte of a compressed file, beyond the first `FREE`."""
FREE = 1 << 26
"""Bytes that a compressed file of any size may expand to."""
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)  # possessive: no memory for backtracking


class DamagedError(ValueError):
    """A stored file that differs from what was written."""


def as_path(value: object, name: str) -> Path:
    """Return a path.

    Raises
    ------
    TypeError, ValueError
        If it is not a path, or an empty one.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name}: got {validation.describe(value)}, expected a path")
    text = os.fspath(value)
    validation.expect(isinstance(text, str), name, value, "a path as text", TypeError)
    validation.expect(text and "\0" not in text, name, f"{text!r}", "a path")
    longest = max(Path(text).parts, key=lambda part: len(os.fsencode(part)), default="")
    short = len(os.fsencode(longest)) <= 255
    validation.expect(short, name, f"{longest[:20] + '...'!r} in a path", "a path with names of at most 255 bytes")
    return Path(text)


@contextlib.contextmanager
def opened(path: Path, name: str) -> Iterator[BinaryIO]:
    """Provide a regular file to read; devices, pipes and folders are refused, and so is more than memory can hold.

    Raises
    ------
    ValueError
        If the file is missing, no regular file, cannot be read, or is too large.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for its writer
    except (OSError, ValueError) as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" and can be read ({error})"
        raise ValueError(f"{name}: got {str(path)!r}, expected a file that exists{reason}") from error
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):  # a folder cannot even be opened below
        os.close(number)
        raise ValueError(f"{name}: got {str(path)!r}, a folder, pipe or device, expected a file that exists")
    with os.fdopen(number, "rb") as file:
        limit = validation.memory()
        expected = f"at most {limit:,}, the memory of this machine"
        validation.expect(status.st_size <= limit, name, f"{str(path)!r} of {status.st_size:,} bytes", expected)
        yield file


def read(path: Path, name: str, limit: int | None = None) -> bytes:
    """Return the contents of a regular file of at most ``limit`` bytes.

    Raises
    ------
    ValueError
        As :func:`opened`, or if it is longer.
    """
    with opened(path, name) as file:
        data = file.read() if limit is None else file.read(limit + 1)
    fits = limit is None or len(data) <= limit
    validation.expect(fits, name, f"{str(path)!r} of more than {limit} bytes", f"at most {limit}")
    return data


def may_expand_to(length: int) -> int:
    """Return the number of bytes that a compressed file of this length may expand to."""
    return FREE + MAX_EXPANSION * length


def parse_json(data: bytes, limit: int = MAX_JSON) -> Any:
    """Return the value of JSON text in UTF-8.

    Raises
    ------
    ValueError
        If it is not JSON, longer than ``limit``, or nested deeper than `MAX_DEPTH`.

    Examples
    --------
    >>> parse_json(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json(b"[" * 200 + b"]" * 200)
    Traceback (most recent call last):
        ...
    ValueError: JSON nested 200 deep, expected at most 100
    """
    if len(data) > limit:
        raise ValueError(f"{len(data):,} bytes of JSON, expected at most {limit:,}")
    brackets = np.frombuffer(_TEXT.sub(b"", data).translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), np.int8(1), np.int8(-1))
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if depth > MAX_DEPTH:
        raise ValueError(f"JSON nested {depth} deep, expected at most {MAX_DEPTH}")
    return json.loads(data.decode())


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
