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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnrank._core import identity
from bnrank._core.files import LOCK, PARTIAL, write_atomically
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
_NUMBERS = ("NaN", "Infinity", "-Infinity")
_DAMAGED = (OSError, ValueError, KeyError, TypeError)


def differences(folder: Path, stamp: Mapping[str, Any]) -> list[str]:
    """Return the differences between stored results and a stamp; empty if nothing is stored, or they agree."""
    if not any(is_there(folder / name) for name in (STAMP, CLAIMS, RUNS)):
        return []
    try:
        stored = dict(read_json(folder / STAMP)["stamp"])
    except _DAMAGED:
        return ["the folder does not record its settings"]
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
        raise ValueError(text) from error


def is_full(problem: BaseException) -> bool:
    """Return whether an error, or its cause, is due to a full disk."""
    return any(getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for e in (problem, problem.__cause__))


def begin(folder: Path, stamp: Mapping[str, Any]) -> float:
    """Stamp a figure's folder, and return the seconds spent on it so far."""
    if not (folder / STAMP).exists():
        with one_error(folder):
            write_atomically(folder / STAMP, to_json({"stamp": identified(stamp)}))
    try:
        return float(read_json(folder / SPENT)["seconds"])
    except _DAMAGED:
        return 0.0


def spend(folder: Path, seconds: float) -> None:
    """Record how many seconds were spent on a figure."""
    with one_error(folder):
        write_atomically(folder / SPENT, to_json({"seconds": round(seconds, 3)}))


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
    for name in (CLAIMS, *stale):
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


def read_json(path: Path) -> Any:
    """Return a value from a file that holds the result of `to_json`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.json").write_bytes(to_json([1.5, -float("inf")]))
    ...     read_json(Path(folder) / "a.json")
    [1.5, -inf]
    """
    return _restored(json.loads(path.read_text(encoding="utf-8")))


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


def read_sections(folder: Path) -> tuple[Section, ...]:
    """Return stored sections; pictures are files, datasets are loaded."""
    result = []
    for entry in read_json(folder / SECTIONS):
        for kind in ("history", "profile"):
            files = entry[kind].items()
            entry[kind] = {k: xr.load_dataset(folder / file, engine="h5netcdf") for k, file in files} or None
        entry["claims"] = tuple(Claim(**claim) for claim in entry["claims"])
        shown = entry["figures"]
        entry["figures"] = {p["caption"]: p["plotly"] if "plotly" in p else folder / p["file"] for p in shown}
        result.append(Section(**entry))
    return tuple(result)


def _netcdf(dataset: xr.Dataset) -> bytes:
    """Return a dataset as NetCDF, with attributes converted to types that NetCDF supports."""
    several = [name for name, index in dataset.indexes.items() if index.nlevels > 1 and name in dataset.dims]
    dataset = dataset.reset_index(several) if several else dataset.copy()
    for part in (dataset, *(dataset[name] for name in dataset.variables)):
        part.attrs = {key: _attribute(value) for key, value in part.attrs.items() if value is not None}
    return bytes(dataset.to_netcdf(engine="h5netcdf"))  # in memory: HDF5 crashes when the disk is full


def _attribute(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, str | int | float | np.generic | np.ndarray):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(v, int | float) for v in value):
        return list(value)
    return json.dumps(plain(value))
