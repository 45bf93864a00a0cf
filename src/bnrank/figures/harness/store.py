"""The folder of a figure: its files, and the settings and version they belong to.

stamp.json              written before anything is computed: id, version and settings of the figure
runs/                   training runs, from which an interrupted figure resumes
spent.json              seconds of the attempts so far
PICTURE.png, .svg       the second only where it is small
sections/*.nc, *.png    histories, profiles and pictures of the sections
sections.json           their texts, tables and settings
claims.json             written last: an outcome is complete if, and only if, this file exists; lists the other files

Other files in the folder do not belong to the figure, and are not removed.
"""

import contextlib
import errno
import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bnrank._core.files import PARTIAL, prepare_folder, write_atomically
from bnrank.reporting.sections import flatten_settings

STAMP, SPENT, SECTIONS, CLAIMS = "stamp.json", "spent.json", "sections.json", "claims.json"
RUNS, INNER = "runs", "sections"
ABANDONED = 600  # seconds after which a partial file no longer counts as another process's
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DAMAGED = (OSError, ValueError, KeyError, TypeError)


def differences(folder: Path, stamp: Mapping[str, Any]) -> list[str]:
    """Return in what stored results differ from a stamp; empty if nothing is stored, or they agree."""
    if not any(is_there(folder / name) for name in (STAMP, CLAIMS, RUNS)):
        return []
    try:
        stored = plain(flatten_settings(dict(read_json(folder / STAMP)["stamp"])))
    except _DAMAGED:
        return ["the folder does not record its settings"]
    now = plain(flatten_settings(stamp))
    return [
        f"{key}: stored {_show(stored, key)}, now {_show(now, key)}"
        for key in dict.fromkeys((*now, *stored))
        if stored.get(key) != now.get(key)
    ]


def _show(entries: Mapping[str, Any], key: str) -> str:
    text = json.dumps(entries[key]) if key in entries else "none"
    return text if len(text) <= 80 else text[:77] + "..."


def refusal(folder: Path, stamp: Mapping[str, Any], resume: bool) -> str:
    """Return why a folder cannot take the results of a figure; empty if it can."""
    try:
        names = {path.name for path in folder.iterdir() if path.suffix != PARTIAL} if folder.is_dir() else set()
    except OSError as error:
        return f"{str(folder)!r} cannot be read: {error.strerror or error}"
    if not (names & {STAMP, CLAIMS} or names <= {RUNS}):
        return f"{str(folder)!r} holds files and is not the folder of a figure; nothing in it was changed"
    found = differences(folder, stamp) if resume else []
    if not found:
        return ""
    return (
        f"{str(folder)!r} holds results of other settings or of another version ({'; '.join(found)}); --fresh "
        "(resume=False) discards them, another --out keeps them"
    )


@contextlib.contextmanager
def one_error(folder: Path) -> Iterator[None]:
    """Turn the OSError of a full disk or of a folder without write access into one clear ValueError."""
    try:
        yield
    except OSError as error:
        text = f"out: cannot write to {str(folder)!r}: {error.strerror or error}; stored results stay intact"
        raise ValueError(text) from error


def is_full(problem: BaseException) -> bool:
    """Return whether an error, or its cause, is that of a full disk."""
    return any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in (problem, problem.__cause__))


def begin(folder: Path, stamp: Mapping[str, Any]) -> float:
    """Create and stamp a figure's folder, and return the seconds spent on it so far."""
    prepare_folder(folder)
    discard_abandoned(folder)
    if not (folder / STAMP).exists():
        with one_error(folder):
            write_json(folder / STAMP, {"stamp": stamp})
    try:
        return float(read_json(folder / SPENT)["seconds"])
    except _DAMAGED:
        return 0.0


def spend(folder: Path, seconds: float) -> None:
    """Record how many seconds were spent on a figure."""
    with one_error(folder):
        write_json(folder / SPENT, {"seconds": round(seconds, 3)})


def discard_abandoned(folder: Path) -> None:
    """Remove partial files of killed processes from a folder, and leave those of live ones."""
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def clear(folder: Path) -> None:
    """Remove a figure's files from its folder, and the folder if it is then empty."""
    with one_error(folder):
        if (folder / RUNS).is_dir():
            shutil.rmtree(folder / RUNS)
        for name in (*_listed(folder), SECTIONS, SPENT, STAMP, CLAIMS):
            (folder / name).unlink(missing_ok=True)
    for emptied in (folder / INNER, folder):
        with contextlib.suppress(OSError):
            emptied.rmdir()


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, int]:
    """Replace the files of the previous outcome, and return the sizes of the new ones; claims.json is removed."""
    vectors = [f"{name[:-4]}.svg" for name in files if name.endswith(".png")]  # left by an interrupted save
    stale = {*_listed(folder), *vectors} - set(files)
    (folder / CLAIMS).unlink(missing_ok=True)
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomically(folder / name, content)
    return {name: len(content) for name, content in files.items()}


def _listed(folder: Path) -> list[str]:
    """Return the existing files that claims.json lists."""
    try:
        names = list(read_json(folder / CLAIMS)["files"])
        return [n for n in names if Path(n).parent in (Path(), Path(INNER)) and (folder / n).is_file()]
    except _DAMAGED:
        return []


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; numbers that are not finite become text, objects their str.

    Examples
    --------
    >>> plain({"depths": range(2, 4), "ridge": float("inf")})
    {'depths': [2, 3], 'ridge': 'Infinity'}
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(entry) for entry in value]
    return str(value)


def _restored(value: Any) -> Any:
    """Return a value with the numbers that `plain` turns into text."""
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: _restored(entry) for key, entry in value.items()}
    return [_restored(entry) for entry in value] if isinstance(value, list) else value


def to_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_atomically(path, to_json(value))


def read_json(path: Path) -> Any:
    """Return a value that `write_json` wrote.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", [1.5, -float("inf")])
    ...     read_json(Path(folder) / "a.json")
    [1.5, -inf]
    """
    return _restored(json.loads(path.read_text(encoding="utf-8")))


def is_there(path: Path) -> bool:
    """Return whether a path exists; False where that cannot be checked."""
    try:
        return path.exists()
    except OSError:
        return False


def folders(root: Path) -> Iterable[Path]:
    """Return the folders of complete figures, by name."""
    return sorted(path for path in root.iterdir() if is_there(path / CLAIMS)) if root.is_dir() else []
