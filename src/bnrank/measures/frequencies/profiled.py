"""The part of a profile that is about frequencies: there where a module has circular convolutions."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import xarray as xr

from bnrank.measures.frequencies.keeping import Kept, kept
from bnrank.measures.frequencies.weights import of_reading, rank
from bnrank.networks.reading import Layer, Reading

__all__ = ["add"]

LIMIT = 2**22  # singular values, 32 MiB


def add(profile: xr.Dataset, reading: Reading) -> xr.Dataset:
    """Return a profile with ``frequency_singular_values``, ``frequency_rank`` and attribute ``kept_frequencies``.

    Parameters
    ----------
    profile : Dataset
        Of `bnrank.profile`, over all layers of ``reading``, with attributes ``threshold`` and ``bottleneck``.
    reading : Reading
        The layers, read with an example.

    Returns
    -------
    Dataset
        The profile as it is where no layer is a circular convolution, or with one more entry in ``skipped`` where there
        are too many singular values. Convolutions that have none of their own are in ``notes``.
    """
    if not any(map(_is_circular, reading.layers)):
        return profile
    count = sum(_count(layer) for layer in reading.layers if layer.kind != "linear")
    if count > LIMIT:
        reason = (
            f"frequency_singular_values: {count} numbers, the limit is {LIMIT}; "
            "bnrank.frequencies.weight_singular_values returns them"
        )
        return _noting(profile, "skipped", [{"name": "", "type": profile.attrs["title"].split()[-1], "reason": reason}])
    values = of_reading(reading)
    convolutions = {layer.name for layer in reading.layers if layer.kind != "linear"}
    left_out = [s for s in json.loads(values.attrs["skipped"]) if s["name"] in convolutions]
    variables = {"frequency_singular_values": values, "frequency_rank": rank(values, profile.attrs["threshold"])}
    for name, variable in variables.items():
        variables[name] = variable.drop_vars("layer_name").reindex(layer=profile["layer"].values)
        variables[name].attrs = {key: entry for key, entry in variable.attrs.items() if key in ("long_name", "units")}
    out = _noting(profile, "notes", [{"name": s["name"], "note": s["reason"]} for s in left_out]).assign(variables)
    out["channel"].attrs["long_name"] = "index of the singular value at one frequency"
    return out.assign_attrs(
        image_size=values.attrs["image_size"], kept_frequencies=json.dumps(_kept(values, out.attrs))
    )


def _kept(values: xr.DataArray, attrs: dict[Any, Any]) -> dict[str, Any]:
    found = json.loads(attrs["bottleneck"])
    if found["start"] is None:
        result = Kept(None, None, (), found["reason"])
    elif not any(found["start"] <= layer <= found["end"] for layer in values["layer"].values):
        result = Kept(None, None, (), "the bottleneck has no convolution with frequencies")
    else:
        result = kept(values, found["start"], found["end"], threshold=attrs["threshold"])
    return {**dataclasses.asdict(result), "rank": result.rank}


def _noting(profile: xr.Dataset, key: str, entries: list[dict[str, str]]) -> xr.Dataset:
    return profile.assign_attrs({key: json.dumps([*json.loads(profile.attrs[key]), *entries])})


def _is_circular(layer: Layer) -> bool:
    """Say whether a layer commutes with the translations of the torus."""
    if layer.kind == "linear" or layer.input_shape is None or layer.output_shape is None:
        return False
    conv: Any = layer.module
    same = layer.input_shape[1:] == layer.output_shape[1:]
    return conv.padding_mode == "circular" and all(s == 1 for s in conv.stride) and same


def _count(layer: Layer) -> int:
    size = layer.input_shape or (0,)
    return min(layer.weight.shape[0], size[0]) * math.prod(size[1:])
