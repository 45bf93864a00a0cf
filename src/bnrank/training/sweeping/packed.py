"""A run as tensors and plain values, and back: networks and history of a group in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core.store import Stored
from bnrank.networks.files import blueprint
from bnrank.training.history import Run, built, summarize
from bnrank.training.settings import TrainSettings

if TYPE_CHECKING:
    import xarray as xr


def pack(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the parameters and the history of a run as tensors, and the rest as plain values."""
    tensors: dict[str, Tensor] = {"parameters": run.parameters}
    variables = {}
    for name, variable in run.history.variables.items():
        values = np.asarray(variable.values)
        described: dict[str, Any] = {"dims": list(variable.dims), "attrs": dict(variable.attrs)}
        if values.dtype.kind in "biuf":
            tensors[f"history.{name}"] = torch.from_numpy(np.array(values, order="C"))
        else:
            described["values"] = values.tolist()
        variables[str(name)] = described | {"coordinate": name in run.history.coords}
    about = {
        "history": {"variables": variables, "attrs": dict(run.history.attrs)},
        "settings": asdict(run.settings),
        "seconds": run.seconds,
        "network": blueprint(run.net),
    }
    return tensors, about


def unpack(stored: Stored) -> Run:
    """Return the run of a file."""
    history = _history(stored)
    settings = TrainSettings.from_json(stored.about["settings"])
    parameters = stored.tensors["parameters"]
    net = built(stored.about["network"], parameters, Path(stored.path), "out")
    return Run(history, summarize(history), settings, float(stored.about["seconds"]), net, parameters)


def _history(stored: Stored) -> xr.Dataset:
    import xarray as xr

    data: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    for name, entry in stored.about["history"]["variables"].items():
        values = np.array(entry["values"]) if "values" in entry else stored.tensors[f"history.{name}"].numpy()
        (coords if entry["coordinate"] else data)[name] = (tuple(entry["dims"]), values, entry["attrs"])
    return xr.Dataset(data, coords, stored.about["history"]["attrs"])
