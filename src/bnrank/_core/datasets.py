"""Datasets as one file of the store: the same bits come back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnrank._core import store
from bnrank._core.sources import DamagedError

if TYPE_CHECKING:
    import xarray as xr


def save(path: str | os.PathLike[str], dataset: xr.Dataset, kind: str) -> Path:
    """Write a dataset of numbers, texts and plain attributes to a .safetensors file, and return its path.

    Examples
    --------
    >>> import tempfile
    >>> import xarray as xr
    >>> made = xr.Dataset({"x": ("layer", [1.0, np.nan])}, {"layer": ["a", "b"]}, {"n": 2})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = dataset_of(store.load(save(f"{folder}/x.safetensors", made, "example")))
    >>> found.identical(made)
    True
    """
    numbers, texts = {}, {}
    for name, variable in dataset.variables.items():
        values = variable.values
        if values.dtype.kind in "biuf":
            numbers[str(name)] = values.astype(values.dtype.newbyteorder("="))
        else:
            texts[str(name)] = values.astype(str).tolist()
    about = {
        "dims": {str(name): list(map(str, variable.dims)) for name, variable in dataset.variables.items()},
        "shapes": {str(name): list(variable.shape) for name, variable in dataset.variables.items()},
        "coordinates": [str(name) for name in dataset.coords],
        "texts": texts,
        "attrs": _plain(dataset.attrs),
        "variables": {str(name): _plain(variable.attrs) for name, variable in dataset.variables.items()},
    }
    return store.save(path, numbers, about, kind)


def not_plain(dataset: xr.Dataset) -> list[str]:
    """Return the names, with the types, of variables and attributes of a dataset that :func:`save` cannot keep.

    Examples
    --------
    >>> import xarray as xr
    >>> not_plain(xr.Dataset({"x": ("layer", [1.0]), "y": ("layer", [1j])}, attrs={"n": 2, "of": np.ones(2)}))
    ['y (complex128)', 'attribute of (ndarray)']
    """
    found = []
    for name, variable in dataset.variables.items():
        texts = variable.dtype.kind == "U" or all(isinstance(value, str) for value in variable.values.flat)
        if not texts and (variable.dtype.kind not in "biuf" or variable.dtype.itemsize > 8):
            found.append(f"{name} ({variable.dtype})")
    holders: list[Any] = [dataset, *dataset.variables.values()]
    attributes = [item for some in holders for item in some.attrs.items()]
    return found + [f"attribute {key} ({type(value).__name__})" for key, value in attributes if not _is_plain(value)]


def _is_plain(value: object) -> bool:
    try:
        json.dumps(_plain({"value": value}))
    except (TypeError, ValueError):
        return False
    return True


def dataset_of(stored: store.Stored) -> xr.Dataset:
    """Return the dataset of a file that :func:`save` wrote.

    Raises
    ------
    DamagedError
        If its contents are not those of a dataset.
    """
    import xarray as xr

    try:
        about = stored.about
        found: dict[str, Any] = {}
        for name, dims in about["dims"].items():
            text = np.array(about["texts"][name], dtype=str) if name in about["texts"] else None
            values = stored.tensors[name].numpy() if text is None else text
            found[name] = (dims, values.reshape(about["shapes"][name]), about["variables"][name])
        coordinates = {name: found.pop(name) for name in about["coordinates"]}
        return xr.Dataset(found, coordinates, about["attrs"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError(f"path: {stored.path} is damaged: {type(error).__name__}: {error}") from error


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value.item() if isinstance(value, np.generic) else value for key, value in attrs.items()}
