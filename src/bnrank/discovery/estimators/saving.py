"""Fitted estimators on disk: one safetensors file, from which nothing is run."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from bnrank._core import validation
from bnrank._core.files import write_atomically
from bnrank._version import __version__
from bnrank.discovery.estimators.counting import Trial
from bnrank.discovery.estimators.summary import Summary
from bnrank.networks.files import blueprint, build
from bnrank.networks.mlp import MLP

__all__ = ["is_fitted", "load", "save"]

RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (Trial, Summary)}
KEY = "bnrank_estimator"
PRIVATE = ("_n_features_out", "_one_dimensional")  # set by fit, without a name ending in _


def save(estimator: Any, path: str | os.PathLike[str]) -> Path:
    """Write an estimator: arrays and parameters as tensors, all else as JSON in the metadata.

    Raises
    ------
    TypeError, ValueError
        If the path has another ending than ``.safetensors``, or something of the estimator is no plain value.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path: got {path.name!r}, expected a name ending in .safetensors")
    tensors: dict[str, Tensor] = {}
    about = {
        "class": type(estimator).__name__,
        "version": __version__,
        "parameters": {k: _pack(v, f"p.{k}", tensors) for k, v in estimator.get_params(deep=False).items()},
        "fitted": {k: _pack(v, k, tensors) for k, v in vars(estimator).items() if is_fitted(k)},
    }
    try:
        write_atomically(path, to_bytes(tensors, {"format": "pt", KEY: json.dumps(about)}))
    except OSError as error:
        raise ValueError(f"path: cannot write {str(path)!r}: {error.strerror or error}") from error
    return path


def load(kind: type, path: str | os.PathLike[str]) -> Any:
    """Read an estimator of a class.

    Raises
    ------
    ValueError
        If there is no such file, or it holds something else or is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: {str(path)!r} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"path: {str(path)!r} is no safetensors file, or damaged: {error}") from error
    if KEY not in metadata:
        raise ValueError(f"path: {str(path)!r} holds no fitted estimator")
    try:
        about = json.loads(metadata[KEY])
        name = about["class"]
        if name == kind.__name__:
            estimator = kind(**{k: _unpack(v, tensors) for k, v in about["parameters"].items()})
            for key, value in about["fitted"].items():
                if not is_fitted(key):
                    raise ValueError(f"{key!r} is no fitted attribute")
                setattr(estimator, key, _unpack(value, tensors))
            return estimator
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"path: {str(path)!r} is damaged: {error}") from error
    raise ValueError(f"path: {str(path)!r} holds a {name}, expected a {kind.__name__}")


def is_fitted(name: str) -> bool:
    """Return whether an attribute of this name is set by ``fit``."""
    return (name.endswith("_") and not name.startswith("_")) or name in PRIVATE


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and put arrays among the tensors under a name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _pack(value.item(), name, tensors)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return {"strings": value.tolist(), "dtype": value.dtype.str}
        tensors[name] = torch.from_numpy(np.ascontiguousarray(value)).clone()
        return {"array": name}
    if isinstance(value, MLP):
        for key, tensor in value.state_dict().items():
            tensors[f"{name}/{key}"] = tensor.detach().cpu().contiguous().clone()
        return {"network": blueprint(value), "name": name}
    if isinstance(value, tuple | list):
        items = [_pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else {"list": items}
    if type(value).__name__ in RECORDS:
        fields = {f.name: _pack(getattr(value, f.name), f"{name}.{f.name}", tensors) for f in dataclasses.fields(value)}
        return {"record": type(value).__name__, "fields": fields}
    raise TypeError(
        f"{name.removeprefix('p.')}: got {validation.describe(value)}, expected a value that can be written down"
    )


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return tensors[value["array"]].numpy()
    if "strings" in value:
        return np.array(value["strings"], dtype=np.dtype(value["dtype"]))
    if "network" in value:
        prefix = f"{value['name']}/"
        own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        net = build(value["network"], next(iter(own.values())).dtype)
        net.load_state_dict(own)
        return net
    if "record" in value:
        return RECORDS[value["record"]](**{k: _unpack(v, tensors) for k, v in value["fields"].items()})
    if "tuple" in value:
        return tuple(_unpack(item, tensors) for item in value["tuple"])
    return [_unpack(item, tensors) for item in value["list"]]
