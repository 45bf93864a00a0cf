"""Folders of files that belong together, with checksums in the format of ``sha256sum``, and JSON with its checksum."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from bnrank._core import sources, validation
from bnrank._core.files import atomic_path
from bnrank._core.sources import DamagedError

NAME = "SHA256SUMS"
"""The file with the checksums of the others, for ``sha256sum -c SHA256SUMS``; a folder without it is incomplete."""
_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00-\x1f\\]+)\n")
_NAME = re.compile(r"^[0-9a-fA-F]{64} [ *](.+?)\r?$", re.MULTILINE)  # as other programs write it
_MAX_FILE = 1 << 24

Content = bytes | Callable[[Path], object]


def replace(folder: Path, files: Mapping[str, Content], *, keep: bool = False, last: str = "") -> None:
    """Replace files of a folder, and their checksums, which are written last.

    All files are written before the first one is replaced, so that a full disk changes nothing.

    Parameters
    ----------
    folder : Path
        An existing folder.
    files : mapping
        Name, relative to the folder -> contents, or a function that writes them to a path.
    keep : bool
        Keep the checksums of other files.
    last : str
        The name of the file to be replaced last; it and the checksums are removed before the others are replaced.
    """
    sums = _sums(folder) if keep else {}
    with atomic_path(folder / NAME) as listed:
        for name, content in files.items():
            staged = listed.parent / name
            staged.parent.mkdir(exist_ok=True)
            if callable(content):
                content(staged)
                content = staged.read_bytes()
            else:
                _write(staged, content)
            sums[name] = hashlib.sha256(content).hexdigest()
        _write(listed, "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())
        discard(folder, last)
        for name in sorted(files, key=lambda name: name == last):
            (folder / name).parent.mkdir(exist_ok=True)
            (listed.parent / name).replace(folder / name)


def discard(folder: Path, *names: str) -> None:
    """Remove the checksums of a folder, so that its files no longer count, and files of these names."""
    for name in (NAME, *filter(None, names)):
        (folder / name).unlink(missing_ok=True)


def refuse_foreign(folder: Path, own: Container[str], name: str = "out") -> None:
    """Raise if the checksums of a folder, which are to be replaced, list files other than these; damage is no matter.

    A name that is not in the folder counts as damaged if others of the list are own.
    """
    try:
        text = sources.read(folder / NAME, name, _MAX_FILE).decode(errors="replace")
    except (ValueError, OSError):
        return
    names = set(_NAME.findall(text))
    foreign = sorted(file for file in names if file not in own)
    there = [file for file in foreign if os.path.lexists(folder / file)]
    if there or (foreign and len(foreign) == len(names)):
        got = f"{str(folder)!r}, whose {NAME} lists {(there or foreign)[0]!r}"
        validation.expect(False, name, got, f"a folder without checksums of other files; {NAME} would be overwritten")


def read(folder: Path, names: Iterable[str], name: str = "out", advice: str = "") -> dict[str, bytes]:
    """Return the verified contents of files of a folder; `advice` says what to do about damage.

    Raises
    ------
    DamagedError
        If a file, or the one with the checksums, is missing or damaged; the message names it.
    """
    found, contents = listed(folder, name, advice), {}
    for file in names:
        path = folder / file
        if file not in found:
            raise DamagedError(_damaged(name, folder / NAME, f"it has no checksum of {file}", advice))
        try:
            contents[file] = sources.read(path, name)
        except (ValueError, OSError) as error:
            raise DamagedError(_damaged(name, path, "it is missing or cannot be read", advice)) from error
        if hashlib.sha256(contents[file]).hexdigest() != found[file]:
            reason = f"its SHA-256 is not the one in {NAME}"
            raise DamagedError(_damaged(name, path, reason, advice))
    return contents


def listed(folder: Path, name: str = "out", advice: str = "") -> dict[str, str]:
    """Return the checksums of a folder: name of a file -> SHA-256.

    Raises
    ------
    DamagedError
        If they are missing or damaged.
    """
    path = folder / NAME
    try:
        text = sources.read(path, name, _MAX_FILE).decode()
    except (ValueError, OSError) as error:
        reason = "it is missing or cannot be read: the folder is incomplete"
        raise DamagedError(_damaged(name, path, reason, advice)) from error
    found = {file: digest for digest, file in _LINE.findall(text)}
    if text != "".join(f"{digest}  {file}\n" for file, digest in found.items()):
        raise DamagedError(_damaged(name, path, "its lines are not those of sha256sum", advice))
    return found


def _sums(folder: Path) -> dict[str, str]:
    try:
        return listed(folder)
    except DamagedError:
        return {}


def _damaged(name: str, path: Path, reason: str, advice: str) -> str:
    return f"{name}: {str(path)!r} is damaged: {reason}{advice and '; '}{advice}"


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


# JSON with a checksum -------------------------------------------------------------------------------------------------


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return a mapping as JSON text, with the SHA-256 of the text without it as a further entry, ``sha256``.

    Examples
    --------
    >>> unsealed(sealed({"seconds": 1.5}))
    {'seconds': 1.5}
    >>> unsealed(sealed({"seconds": 1.5}).replace(b"1.5", b"2.5"))
    Traceback (most recent call last):
        ...
    bnrank._core.sources.DamagedError: its contents differ from what was written
    """
    return _text({**value, "sha256": hashlib.sha256(_text(value)).hexdigest()})


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the mapping in the result of :func:`sealed`.

    Raises
    ------
    DamagedError
        If a byte differs from what was written.
    """
    try:
        value = dict(sources.parse_json(data))
        value.pop("sha256", None)
        whole = data == sealed(value)
    except (ValueError, TypeError) as error:
        raise DamagedError(f"no JSON object: {error}") from error
    if not whole:
        raise DamagedError("its contents differ from what was written")
    return value


def _text(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
