"""How the outcome of a figure lies in its folder, and which version of bnrank it is of.

stamp.json              written before anything is computed: version, source files, settings
runs/                   training runs, which a figure that was stopped goes on from
spent.json              seconds of the attempts so far
PICTURE.png, .svg       the second only where it is small
sections/*.nc, *.png    histories, profiles and pictures of the sections
sections.json           their texts, tables and settings
claims.json             last: the folder holds a whole outcome if, and only if, this is there; lists the other files

What else lies there is not of the figure, and is not removed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnrank._core.files import PARTIAL, prepare_folder, write_atomically
from bnrank._version import __version__
from bnrank.reporting import Section
from bnrank.reporting.blocks import drawn, named_figures
from bnrank.reporting.charts.parts import is_plotly
from bnrank.reporting.charts.parts import plain as plain_figure
from bnrank.reporting.sections import flatten_settings
from bnrank.reporting.tables import verdict_rows

__all__ = [
    "begin",
    "claim_entry",
    "clear",
    "code_digest",
    "differences",
    "discard_abandoned",
    "folders",
    "is_full",
    "is_there",
    "one_error",
    "picture_files",
    "plain",
    "read_json",
    "read_sections",
    "refusal",
    "restored",
    "section_files",
    "spend",
    "stamp_of",
    "write_files",
    "write_json",
]

FORMAT = "bnrank figure 1"
STAMP, SPENT, SECTIONS, CLAIMS = "stamp.json", "spent.json", "sections.json", "claims.json"
RUNS, INNER = "runs", "sections"
SVG_LIMIT = 300_000  # bytes above which a picture is kept as PNG only
DPI = 150
ABANDONED = 600  # seconds after which what is half written is no longer taken for another process's
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


# ---- versions ---------------------------------------------------------------------------------------------------


@functools.cache
def code_digest() -> str:
    """Return a digest of the source files of the package."""
    package = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:16]


def stamp_of(figure: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to agree for stored results to be gone on with."""
    return {
        "format": FORMAT,
        "figure": figure,
        "version": __version__,
        "source files": code_digest(),
        "settings": plain(settings),
    }


def differences(folder: Path, stamp: Mapping[str, Any]) -> list[str]:
    """Say in what the results that a folder holds are not those of ``stamp``; empty if there are none, or they are."""
    if not any(is_there(folder / name) for name in (STAMP, CLAIMS, RUNS)):
        return []
    stored = []
    for name in (STAMP, CLAIMS):
        try:
            found = plain(read_json(folder / name)["stamp"])
        except FileNotFoundError:
            if name == STAMP:
                return ["the folder does not say which version it is of"]
        except (OSError, ValueError, KeyError, TypeError):
            if name == STAMP:
                return [f"{STAMP} cannot be read"]
        else:
            if not isinstance(found, Mapping):
                return [f"{name} does not say which version it is of"]
            stored.append(found)
    result: dict[str, None] = {}
    now = _flat(plain(stamp))
    for found in map(_flat, stored):
        for key in [*now, *(key for key in found if key not in now)]:
            if found.get(key) != now.get(key):
                result[f"{key}: stored {_show(found, key)}, now {_show(now, key)}"] = None
    return list(result)


def _flat(stamp: Mapping[str, Any]) -> dict[str, Any]:
    settings = stamp.get("settings", {})
    rest = {key: value for key, value in stamp.items() if key != "settings"}
    return rest | (dict(settings) if isinstance(settings, Mapping) else {"settings": settings})


def _show(entries: Mapping[str, Any], key: str) -> str:
    text = json.dumps(entries[key]) if key in entries else "none"
    return text if len(text) <= 80 else text[:77] + "..."


@contextlib.contextmanager
def one_error(folder: Path) -> Iterator[None]:
    """Turn what a full disk or a folder that cannot be written to raises into one clear error."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        text = f"out: cannot write to {str(folder)!r}: {reason}; what was stored before stays whole"
        raise ValueError(text) from error


def is_full(problem: BaseException) -> bool:
    """Say whether an error, or its cause, is that of a full disk."""
    return any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in (problem, problem.__cause__))


# ---- a folder over time -----------------------------------------------------------------------------------------


def begin(folder: Path, stamp: Mapping[str, Any]) -> float:
    """Make a figure's folder, stamp it where it is not, and return the seconds spent on it so far."""
    prepare_folder(folder)
    discard_abandoned(folder)
    if not (folder / STAMP).exists():
        with one_error(folder):
            write_json(folder / STAMP, {"stamp": stamp})
    try:
        return float(read_json(folder / SPENT)["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def spend(folder: Path, seconds: float) -> None:
    """Keep how many seconds were spent on a figure that was stopped or failed."""
    with one_error(folder):
        write_json(folder / SPENT, {"seconds": round(seconds, 3)})


def discard_abandoned(folder: Path) -> None:
    """Remove what a killed process was writing into a folder, and leave what a live one may be."""
    for path in folder.glob(f".*{PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def refusal(folder: Path) -> str:
    """Say why a folder must not be taken for a figure's; empty if it may."""
    names = {path.name for path in folder.iterdir() if path.suffix != PARTIAL} if folder.is_dir() else set()
    ours = names & {STAMP, CLAIMS} or names <= {RUNS}
    return "" if ours else f"{str(folder)!r} holds files and is not the folder of a figure; it is left as it is"


def clear(folder: Path) -> None:
    """Remove what is a figure's from its folder, and the folder if nothing else is in it."""
    with one_error(folder):
        if (folder / RUNS).is_dir():
            shutil.rmtree(folder / RUNS)
        for name in (*_listed(folder), SECTIONS, SPENT, STAMP, CLAIMS):
            (folder / name).unlink(missing_ok=True)
    for emptied in (folder / INNER, folder):
        with contextlib.suppress(OSError):
            emptied.rmdir()


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, int]:
    """Write the files of an outcome in the place of those of the one before, and return their sizes.

    What was there before and is not listed in claims.json is left alone; claims.json is removed.
    """
    vectors = [f"{name[:-4]}.svg" for name in files if name.endswith(".png")]  # that a save cut short may have left
    stale = {*_listed(folder), *vectors} - set(files)
    (folder / CLAIMS).unlink(missing_ok=True)
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomically(folder / name, content)
    return {name: len(content) for name, content in files.items()}


def _listed(folder: Path) -> list[str]:
    """Return the files that claims.json lists and that are there; none where it cannot be read."""
    try:
        names = list(read_json(folder / CLAIMS)["files"])
        return [n for n in names if Path(n).parent in (Path(), Path(INNER)) and (folder / n).is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


# ---- JSON -------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; numbers that are not finite become text, objects what they print.

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
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(entry) for entry in value]
    return str(value)


def restored(value: Any) -> Any:
    """Undo what `plain` does to numbers that are not finite.

    Examples
    --------
    >>> restored(plain([1.5, -float("inf")]))
    [1.5, -inf]
    """
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {key: restored(entry) for key, entry in value.items()}
    return [restored(entry) for entry in value] if isinstance(value, list) else value


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, _json(value))


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    return restored(json.loads(path.read_text(encoding="utf-8")))


# ---- pictures and sections --------------------------------------------------------------------------------------


def picture_files(pictures: Mapping[str, Any]) -> dict[str, bytes]:
    """Return pictures as PNG, small ones as SVG too: file -> content.

    Raises
    ------
    ValueError
        If a name is not one that a file can have.
    """
    for name in pictures:
        if Path(name).name != name:
            raise ValueError(f"pictures: got the name {name!r}, expected one that a file can have")
    return dict(file for name, picture in pictures.items() for file in _files(name, picture))


def _files(name: str, picture: Any) -> list[tuple[str, bytes]]:
    """Return the files of a picture, by name; one of an outcome that was opened comes as the path of its PNG."""
    if isinstance(picture, Path):
        paths = [path for path in (picture, picture.with_suffix(".svg")) if path.exists()]
        return [(f"{name}{path.suffix}", path.read_bytes()) for path in paths]
    png = drawn(picture, name, "png", dpi=DPI, bbox_inches="tight")
    svg = drawn(picture, name, "svg")
    return [(f"{name}.png", png), *([(f"{name}.svg", svg)] if len(svg) <= SVG_LIMIT else [])]


def section_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return the sections of an outcome as files: name -> content; verdicts as the rows of their table."""
    files: dict[str, bytes] = {}

    def put(name: str, content: bytes) -> str:
        files[f"{INNER}/{name}"] = content
        return f"{INNER}/{name}"

    stored = []
    for i, section in enumerate(sections, 1):
        shown: list[dict[str, Any]] = []
        for j, (caption, picture) in enumerate(named_figures(section.figures).items(), 1):
            if is_plotly(picture):
                shown.append({"caption": caption, "plotly": plain_figure(picture)})
            else:
                paths = [put(*file) for file in _files(f"{i}-picture-{j}", picture)]
                shown.append({"caption": caption, "file": paths[0]})
        datasets = {
            kind: {
                label: put(f"{i}-{kind}-{k}.nc", _netcdf(dataset))
                for k, (label, dataset) in enumerate(getattr(section, plural).items(), 1)
            }
            for kind, plural in (("history", "histories"), ("profile", "profiles"))
        }
        stored.append(
            {
                "title": section.title,
                "text": section.text,
                "claims": [claim_entry(claim) for claim in section.claims],
                "rows": [*section.rows, *(verdict_rows(section.verdicts) if section.verdicts is not None else ())],
                "pictures": shown,
                **datasets,
                "settings": None if section.settings is None else flatten_settings(section.settings),
            }
        )
    return files | {SECTIONS: _json(stored)}


def claim_entry(claim: Any) -> dict[str, Any]:
    """Return a claim as a mapping."""
    passed = claim.passed if claim.passed is None else bool(claim.passed)
    return {"name": claim.name, "passed": passed, "measured": claim.measured, "expected": claim.expected}


def read_sections(folder: Path, claim: Any) -> tuple[Section, ...]:
    """Read what `section_files` gave; pictures come as files, datasets by label; ``claim`` makes a claim."""
    return tuple(
        Section(
            entry["title"],
            text=entry["text"],
            claims=tuple(claim(**c) for c in entry["claims"]),
            rows=entry["rows"],
            figures={p["caption"]: p["plotly"] if "plotly" in p else folder / p["file"] for p in entry["pictures"]},
            history=_load(folder, entry["history"]),
            profile=_load(folder, entry["profile"]),
            settings=entry["settings"],
        )
        for entry in read_json(folder / SECTIONS)
    )


def _netcdf(dataset: xr.Dataset) -> bytes:
    """Return a dataset as NetCDF, its attributes in a form that this can hold."""
    several = [name for name, index in dataset.indexes.items() if index.nlevels > 1]
    dataset = dataset.reset_index([name for name in several if name in dataset.dims]) if several else dataset.copy()
    for part in (dataset, *(dataset[name] for name in dataset.variables)):
        part.attrs = {key: _attribute(value) for key, value in part.attrs.items() if value is not None}
    return bytes(dataset.to_netcdf(engine="h5netcdf"))  # by way of memory: HDF5 crashes where it finds the disk full


def _attribute(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, str | int | float | np.generic | np.ndarray):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(v, int | float) for v in value):
        return list(value)
    return json.dumps(plain(value))


def _load(folder: Path, files: Mapping[str, str]) -> dict[str, xr.Dataset] | None:
    return {label: xr.load_dataset(folder / file, engine="h5netcdf") for label, file in files.items()} or None


def is_there(path: Path) -> bool:
    """Say whether a file or folder is there; what cannot be looked at is not."""
    try:
        return path.exists()
    except OSError:
        return False


def folders(root: Path) -> Iterable[Path]:
    """Return the folders of figures in a folder, by name."""
    return sorted(path for path in root.iterdir() if is_there(path / CLAIMS)) if root.is_dir() else []
