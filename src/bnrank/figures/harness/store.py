"""The folder of a figure: its files, and the settings and version they belong to.

stamp.json              written before anything is computed: id, version and settings of the figure, with a checksum
runs/                   training runs, from which an interrupted figure resumes
spent.json              seconds of the attempts so far, with a checksum
PICTURE.png, .svg       the second only where it is small
sections/*.nc, *.png    histories, profiles and pictures of the sections
sections.json           their texts, tables and settings
claims.json             written last: an outcome is complete if, and only if, this file exists
SHA256SUMS              checksums of the outcome's files, the pictures, sections and claims

Other files in the folder do not belong to the figure, and are not removed.
"""

import contextlib
import errno
import json
import math
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnrank._core import checksums, identity, netcdf, sources
from bnrank._core.files import LOCK, PARTIAL, StorageError, write_atomically
from bnrank.figures.harness.claims import Claim
from bnrank.reporting import Section
from bnrank.reporting.blocks import drawn, named_figures
from bnrank.reporting.charts.parts import is_plotly
from bnrank.reporting.charts.parts import plain as plain_figure
from bnrank.reporting.sections import flatten_settings
from bnrank.reporting.tables import verdict_rows

STAMP, SPENT, SECTIONS, CLAIMS = "stamp.json", "spent.json", "sections.json", "claims.json"
RUNS, INNER = "runs", "sections"
SVG_LIMIT = 300_000  # bytes above which a picture is kept as PNG only
DPI = 150
MAX_JSON = 1 << 28  # bytes of the claims and of the sections, which hold the data of plotly figures
_NUMBERS = ("NaN", "Infinity", "-Infinity")
ADVICE = "run the figure again, or put back a copy of the file"


def differences(folder: Path, stamp: Mapping[str, Any]) -> list[str]:
    """Return the differences between stored results and a stamp; empty if nothing is stored, or they agree."""
    if not any(is_there(folder / name) for name in (STAMP, CLAIMS, RUNS)):
        return []
    if not is_there(folder / STAMP):
        return ["the folder does not record its settings"]
    try:
        stored = dict(read_sealed(folder / STAMP)["stamp"])
    except (ValueError, KeyError, TypeError) as error:
        return [f"{str(folder / STAMP)!r} is damaged: {error}"]
    return identity.differences(stored, identified(stamp))


def identified(stamp: Mapping[str, Any]) -> identity.Parts:
    """Return the parts of a stamp, with settings flattened."""
    parts: identity.Parts = {}
    for name, value in flatten_settings(stamp).items():
        parts |= identity.describe(value, name)
    identity.require(parts)
    return parts


def refusal(folder: Path, stamp: Mapping[str, Any], resume: bool) -> str:
    """Return why the results of a figure cannot be written to a folder; empty if they can."""
    try:
        names = (
            {path.name for path in folder.iterdir() if path.suffix != PARTIAL and path.name != LOCK}
            if folder.is_dir()
            else set()
        )
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


def refuse(folder: Path, stamp: Mapping[str, Any], resume: bool) -> None:
    """Raise a ValueError if the results of a figure cannot be written to a folder."""
    refused = refusal(folder, stamp, resume)
    if refused:
        raise ValueError(f"out: {refused}")


@contextlib.contextmanager
def one_error(folder: Path) -> Iterator[None]:
    """Turn the OSError of a full disk or of a folder without write access into one clear ValueError."""
    try:
        yield
    except OSError as error:
        text = f"out: cannot write to {str(folder)!r}: {error.strerror or error}; stored results stay intact"
        raise StorageError(text) from error


def is_full(problem: BaseException) -> bool:
    """Return whether an error, or its cause, is due to a full disk."""
    return any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in (problem, problem.__cause__))


def begin(folder: Path, stamp: Mapping[str, Any]) -> float:
    """Stamp a figure's folder, and return the seconds spent on it so far."""
    if not (folder / STAMP).exists():
        with one_error(folder):
            write_atomically(folder / STAMP, checksums.sealed(plain({"stamp": identified(stamp)})))
    if not is_there(folder / SPENT):
        return 0.0
    try:
        return float(read_sealed(folder / SPENT)["seconds"])
    except (ValueError, KeyError, TypeError) as error:
        warnings.warn(f"{str(folder / SPENT)!r} is damaged: {error}; time is counted from 0", stacklevel=3)
        return 0.0


def spend(folder: Path, seconds: float) -> None:
    """Record how many seconds were spent on a figure."""
    with one_error(folder):
        write_atomically(folder / SPENT, checksums.sealed({"seconds": round(seconds, 3)}))


def clear(folder: Path) -> None:
    """Remove a figure's files from its folder, and the folder if it is then empty."""
    with one_error(folder):
        if (folder / RUNS).is_dir():
            shutil.rmtree(folder / RUNS)
        for name in (*_listed(folder), checksums.NAME, SECTIONS, SPENT, STAMP, CLAIMS):
            (folder / name).unlink(missing_ok=True)
    for emptied in (folder / INNER, folder):
        with contextlib.suppress(OSError):
            emptied.rmdir()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace the files of the previous outcome; claims.json is removed first and written last."""
    vectors = [f"{name[:-4]}.svg" for name in files if name.endswith(".png")]  # left by an interrupted save
    stale = {*_listed(folder), *vectors} - set(files)
    checksums.replace(folder, files, last=CLAIMS)
    for name in stale:
        (folder / name).unlink(missing_ok=True)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the verified files of an outcome.

    Raises
    ------
    DamagedError
        If one is missing or damaged.
    """
    names = checksums.listed(folder, "folder", ADVICE)
    return checksums.read(folder, {name for name in names if _is_inside(name)} | {CLAIMS, SECTIONS}, "folder", ADVICE)


def _listed(folder: Path) -> list[str]:
    """Return the existing files of the stored outcome."""
    try:
        return [name for name in checksums.listed(folder) if _is_inside(name) and (folder / name).is_file()]
    except ValueError:
        return []


def _is_inside(name: str) -> bool:
    return ".." not in Path(name).parts and Path(name).parent in (Path(), Path(INNER))


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the mapping in a file with a checksum."""
    return dict(_restored(checksums.unsealed(sources.read(path, "folder", sources.MAX_JSON))))


def is_there(path: Path) -> bool:
    """Return whether a path exists; False where that cannot be checked."""
    try:
        return path.exists()
    except OSError:
        return False


def folders(root: Path) -> Iterable[Path]:
    """Return the folders of complete figures, by name."""
    return sorted(path for path in root.iterdir() if is_there(path / CLAIMS)) if root.is_dir() else []


# JSON ----------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value that JSON supports: non-finite numbers become text, other objects their str.

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
        return float(value) if value in _NUMBERS else value
    if isinstance(value, dict):
        return {key: _restored(entry) for key, entry in value.items()}
    return [_restored(entry) for entry in value] if isinstance(value, list) else value


def to_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(data: bytes) -> Any:
    """Return the value that `to_json` turned into bytes.

    Examples
    --------
    >>> read_json(to_json([1.5, -float("inf")]))
    [1.5, -inf]
    """
    return _restored(sources.parse_json(data, MAX_JSON))


# pictures and sections -----------------------------------------------------------------------------------------------


def picture_files(name: str, picture: Any) -> dict[str, bytes]:
    """Return the files of a picture, PNG first; that of an opened outcome is given by the path of its PNG."""
    if isinstance(picture, Path):
        paths = [path for path in (picture, picture.with_suffix(".svg")) if path.exists()]
        return {f"{name}{path.suffix}": path.read_bytes() for path in paths}
    files = {f"{name}.png": drawn(picture, name, "png", dpi=DPI, bbox_inches="tight")}
    svg = drawn(picture, name, "svg")
    return files | ({f"{name}.svg": svg} if len(svg) <= SVG_LIMIT else {})


def claim_entries(claims: Iterable[Any]) -> list[dict[str, Any]]:
    """Return claims as mappings."""
    return [
        {
            "name": claim.name,
            "passed": None if claim.passed is None else bool(claim.passed),
            "measured": claim.measured,
            "expected": claim.expected,
        }
        for claim in claims
    ]


def section_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return file name -> content of sections; verdicts become the rows of their table."""
    files: dict[str, bytes] = {}
    stored = []
    for i, section in enumerate(sections, 1):
        shown: list[dict[str, Any]] = []
        for j, (caption, picture) in enumerate(named_figures(section.figures).items(), 1):
            if is_plotly(picture):
                shown.append({"caption": caption, "plotly": plain_figure(picture)})
            else:
                paths = picture_files(f"{INNER}/{i}-picture-{j}", picture)
                shown.append({"caption": caption, "file": next(iter(paths))})
                files |= paths
        entry: dict[str, Any] = {
            "title": section.title,
            "text": section.text,
            "claims": claim_entries(section.claims),
            "rows": [*section.rows, *(verdict_rows(section.verdicts) if section.verdicts is not None else ())],
            "figures": shown,
            "settings": None if section.settings is None else flatten_settings(section.settings),
        }
        for kind, datasets in (("history", section.histories), ("profile", section.profiles)):
            entry[kind] = {label: f"{INNER}/{i}-{kind}-{k}.nc" for k, label in enumerate(datasets, 1)}
            files |= {entry[kind][label]: _netcdf(dataset) for label, dataset in datasets.items()}
        stored.append(entry)
    return files | {SECTIONS: to_json(stored)}


def read_sections(folder: Path, files: Mapping[str, bytes]) -> tuple[Section, ...]:
    """Return the sections in files of a folder, given with their contents; pictures are paths."""
    result = []
    for entry in read_json(files[SECTIONS]):
        for kind in ("history", "profile"):
            named = entry[kind].items()
            entry[kind] = {k: netcdf.parse(files[file], folder / file, "folder") for k, file in named} or None
        entry["claims"] = tuple(Claim(**claim) for claim in entry["claims"])
        shown = entry["figures"]
        entry["figures"] = {
            p["caption"]: p["plotly"] if "plotly" in p else picture(folder, files, p["file"]) for p in shown
        }
        result.append(Section(**entry))
    return tuple(result)


def picture(folder: Path, files: Mapping[str, bytes], name: str) -> Path:
    """Return the path of a picture, which must be one of the files."""
    if name not in files:
        raise KeyError(name)
    return folder / name


def _netcdf(dataset: xr.Dataset) -> bytes:
    """Return a dataset as NetCDF, with attributes converted to types that NetCDF supports."""
    several = [name for name, index in dataset.indexes.items() if index.nlevels > 1 and name in dataset.dims]
    dataset = dataset.reset_index(several) if several else dataset.copy()
    for part in (dataset, *(dataset[name] for name in dataset.variables)):
        part.attrs = {key: _attribute(value) for key, value in part.attrs.items() if value is not None}
    return netcdf.dump(dataset)


def _attribute(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, str | int | float | np.generic | np.ndarray):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(v, int | float) for v in value):
        return list(value)
    return json.dumps(plain(value))
