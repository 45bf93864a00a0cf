"""The singular values by frequency that a profile holds where a layer is a circular convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bnrank._core import remarks
from bnrank.measures import bottlenecks
from bnrank.measures.frequencies.values import by_frequency, kept, rank
from bnrank.networks.reading import Layer, Reading

if TYPE_CHECKING:
    import xarray as xr

MAX_FREQUENCY_VALUES = 2**22  # singular values, 32 MiB


def with_frequencies(dataset: xr.Dataset, reading: Reading, bottleneck: bottlenecks.Bottleneck) -> xr.Dataset:
    """Return a profile with the variables over frequencies of its convolutions."""
    convolutions = [layer for layer in reading.layers if layer.is_convolution]
    shapes = [(len(layer.weight), *(layer.input_shape or (0,))) for layer in convolutions]
    count = sum(min(c_out, c_in) * math.prod(size) for c_out, c_in, *size in shapes)
    if count > MAX_FREQUENCY_VALUES:
        reason = f"frequency_singular_values: {count} numbers, the limit is {MAX_FREQUENCY_VALUES}"
        row = {"name": "", "type": dataset.attrs["title"].split()[-1]}
        row["reason"] = f"{reason}; bnrank.frequencies.weight_singular_values returns them"
        return remarks.attach(dataset, "skipped", [row])
    values, skipped = by_frequency(reading)
    names = {layer.name for layer in convolutions}
    notes = [{"name": s.name, "note": s.reason} for s in skipped if s.name in names]
    start, end = bottleneck.start, bottleneck.end
    channels, missing = {}, bottleneck.reason
    if start is not None and end is not None and values.sel(layer=slice(start, end)).size:
        frequencies = kept(values, start, end, atol=bottleneck.atol).frequencies
        channels = {f.frequency: f.channels for f in frequencies}
    elif not missing:
        missing = "the bottleneck has no convolution with frequencies"
    for name, variable in (("frequency_singular_values", values), ("frequency_rank", rank(values, bottleneck.atol))):
        dataset[name] = variable.drop_vars("layer_name").reindex(layer=dataset["layer"].values)
        dataset[name].attrs = {key: variable.attrs[key] for key in ("long_name", "units")}
    dataset["kept_channels"] = "frequency", [channels.get(name, 0) for name in values["frequency"].values]
    attrs = {"image_size": values.attrs["image_size"], **({"kept_reason": missing} if missing else {})}
    return remarks.attach(dataset, "note", notes).assign_attrs(attrs)


def is_circular(layer: Layer) -> bool:
    """Return whether a convolution commutes with translations of the torus."""
    if layer.input_shape is None or layer.output_shape is None:
        return False
    conv: Any = layer.module
    same = layer.input_shape[1:] == layer.output_shape[1:]
    return conv.padding_mode == "circular" and all(s == 1 for s in conv.stride) and same
