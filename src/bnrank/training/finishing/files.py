"""Finished networks in files: the network, its certificate, and how it was reached."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import sources, store, validation
from bnrank.measures.critical_points import Birth, Stationarity
from bnrank.networks.files import blueprint, build
from bnrank.networks.mlp import MLP
from bnrank.training.finishing.finisher import Finished
from bnrank.training.history import FINISHED_KIND

KIND = FINISHED_KIND


def save(finished: Finished, path: str | os.PathLike[str]) -> Path:
    """Write a finished network with its certificate, and return the path."""
    tensors, about = pack(finished)
    return store.save(path, tensors, about, KIND)


def open_finished(stored: store.Stored) -> Finished:
    """Return a finished network from the contents of a file."""
    return unpack(stored.tensors, stored.about, stored.path)


def pack(finished: Finished) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors and plain values that `unpack` reads."""
    tensors: dict[str, Any] = {f"network.{name}": value for name, value in finished.network.state_dict().items()}
    about: dict[str, Any] = {"plan": blueprint(finished.network), "values": _values(finished)}
    at = finished.stationarity
    about["stationarity"] = _values(at)
    tensors |= _arrays(at, "stationarity")
    about["births"] = [_values(birth) for birth in at.births]
    for number, birth in enumerate(at.births):
        tensors |= _arrays(birth, f"birth.{number}")
    return tensors, about


def unpack(tensors: Mapping[str, Tensor], about: Mapping[str, Any], path: Path) -> Finished:
    """Return a finished network from what `pack` returned.

    Raises
    ------
    DamagedError
        If something is missing, or the parts do not belong together.
    """
    try:
        own = {name.removeprefix("network."): v for name, v in tensors.items() if name.startswith("network.")}
        network = build(about["plan"], torch.float64, own)
        validation.expect(isinstance(network, MLP), "plan", type(network).__name__, "an MLP")
        network.load_state_dict(own)
        births = []
        for number, plain in enumerate(about["births"]):
            fields: dict[str, Any] = plain | _under(tensors, f"birth.{number}")
            births.append(Birth(**fields))
        values: dict[str, Any] = about["stationarity"] | {"live": tuple(about["stationarity"]["live"])}
        values |= _under(tensors, "stationarity") | {"births": tuple(births)}
        return Finished(network, Stationarity(**values), **about["values"])  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise sources.DamagedError(f"path: {str(path)!r} is damaged or of no finished network: {error}") from error


def _values(result: Any) -> dict[str, Any]:
    """Return the fields of a result that are plain values."""
    every = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    plain = (bool, int, float, str, type(None))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in every.items()
        if isinstance(value, plain) or (isinstance(value, tuple) and all(isinstance(v, plain) for v in value))
        if name != "births"
    }


def _arrays(result: Any, prefix: str) -> dict[str, Any]:
    """Return the fields of a result that are arrays, under names with a prefix."""
    every = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {f"{prefix}.{name}": value for name, value in every.items() if isinstance(value, np.ndarray)}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names have a prefix, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): v.numpy() for name, v in tensors.items() if name.startswith(start)}
