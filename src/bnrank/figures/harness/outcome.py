"""The outcome of a figure, and how it is saved: JSON, NetCDF and pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from bnrank._core import validation
from bnrank._version import __version__
from bnrank.figures.harness import store
from bnrank.figures.harness.claims import Claim
from bnrank.reporting import Section
from bnrank.reporting.blocks import drawn, named_figures
from bnrank.reporting.charts.parts import is_plotly
from bnrank.reporting.charts.parts import plain as plain_figure
from bnrank.reporting.sections import flatten_settings
from bnrank.reporting.tables import verdict_rows

SVG_LIMIT = 300_000  # bytes above which a picture is kept as PNG only
DPI = 150


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

        Pictures are written as PNG (small ones also as SVG), histories and profiles as NetCDF, the rest as JSON. Only
        files of an outcome saved there before are removed.

        Raises
        ------
        ValueError
            If the folder cannot be written to, or is full; or if a picture or a section cannot be stored.
        """
        folder = Path(folder)
        text = {key: getattr(self, key) for key in ("figure", "passed", "settings", "error", "captions", "version")}
        text["claims"] = [_claim(claim) for claim in self.claims]
        text["seconds"] = round(self.seconds, 3)
        text["pictures"] = {name: f"{name}.png" for name in self.pictures}
        with store.one_error(folder):
            files = _picture_files(self.pictures) | _section_files(self.sections)
            folder.mkdir(parents=True, exist_ok=True)
            text["files"] = store.write_files(folder, files)
            store.write_json(folder / store.CLAIMS, text)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Outcome:
        """Return a saved outcome.

        Raises
        ------
        ValueError
            If the folder holds none, or a damaged one.
        """
        folder = Path(folder)
        if not store.is_there(folder / store.CLAIMS):
            raise ValueError(f"folder: {str(folder)!r} holds no outcome, expected a file {store.CLAIMS} in it")
        try:
            text = store.read_json(folder / store.CLAIMS)
            for file, size in text.pop("files").items():
                found = (folder / file).stat().st_size
                if found != size:
                    raise ValueError(f"{file} has {found} bytes, {size} were written")
            text.pop("passed")
            text["claims"] = tuple(Claim(**claim) for claim in text["claims"])
            text["pictures"] = {name: folder / file for name, file in text["pictures"].items()}
            return cls(sections=_read_sections(folder), **text)
        except Exception as error:
            raise ValueError(f"folder: {str(folder)!r} is damaged or holds no outcome: {error!r}") from error


def _claim(claim: Any) -> dict[str, Any]:
    passed = claim.passed if claim.passed is None else bool(claim.passed)
    return {"name": claim.name, "passed": passed, "measured": claim.measured, "expected": claim.expected}


def _picture_files(pictures: Mapping[str, Any]) -> dict[str, bytes]:
    """Return file name -> content of pictures."""
    for name in pictures:
        validation.expect(Path(name).name == name, "pictures", f"the name {name!r}", "a valid file name")
    return {file: content for name, picture in pictures.items() for file, content in _files(name, picture).items()}


def _files(name: str, picture: Any) -> dict[str, bytes]:
    """Return the files of a picture, PNG first; that of an opened outcome is given by the path of its PNG."""
    if isinstance(picture, Path):
        paths = [path for path in (picture, picture.with_suffix(".svg")) if path.exists()]
        return {f"{name}{path.suffix}": path.read_bytes() for path in paths}
    files = {f"{name}.png": drawn(picture, name, "png", dpi=DPI, bbox_inches="tight")}
    svg = drawn(picture, name, "svg")
    return files | ({f"{name}.svg": svg} if len(svg) <= SVG_LIMIT else {})


def _section_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return file name -> content of sections; verdicts become the rows of their table."""
    files: dict[str, bytes] = {}
    stored = []
    for i, section in enumerate(sections, 1):
        shown: list[dict[str, Any]] = []
        for j, (caption, picture) in enumerate(named_figures(section.figures).items(), 1):
            if is_plotly(picture):
                shown.append({"caption": caption, "plotly": plain_figure(picture)})
            else:
                paths = _files(f"{store.INNER}/{i}-picture-{j}", picture)
                shown.append({"caption": caption, "file": next(iter(paths))})
                files |= paths
        entry: dict[str, Any] = {
            "title": section.title,
            "text": section.text,
            "claims": [_claim(claim) for claim in section.claims],
            "rows": [*section.rows, *(verdict_rows(section.verdicts) if section.verdicts is not None else ())],
            "figures": shown,
            "settings": None if section.settings is None else flatten_settings(section.settings),
        }
        for kind, datasets in (("history", section.histories), ("profile", section.profiles)):
            entry[kind] = {label: f"{store.INNER}/{i}-{kind}-{k}.nc" for k, label in enumerate(datasets, 1)}
            files |= {entry[kind][label]: _netcdf(dataset) for label, dataset in datasets.items()}
        stored.append(entry)
    return files | {store.SECTIONS: store.to_json(stored)}


def _read_sections(folder: Path) -> tuple[Section, ...]:
    """Return stored sections; pictures are files, datasets are loaded."""
    result = []
    for entry in store.read_json(folder / store.SECTIONS):
        for kind in ("history", "profile"):
            files = entry[kind].items()
            entry[kind] = {k: xr.load_dataset(folder / file, engine="h5netcdf") for k, file in files} or None
        entry["claims"] = tuple(Claim(**claim) for claim in entry["claims"])
        entry["figures"] = {
            p["caption"]: p["plotly"] if "plotly" in p else folder / p["file"] for p in entry["figures"]
        }
        result.append(Section(**entry))
    return tuple(result)


def _netcdf(dataset: xr.Dataset) -> bytes:
    """Return a dataset as NetCDF, its attributes in a form that NetCDF can hold."""
    several = [name for name, index in dataset.indexes.items() if index.nlevels > 1]
    dataset = dataset.reset_index([name for name in several if name in dataset.dims]) if several else dataset.copy()
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
    return json.dumps(store.plain(value))
