"""Representations of two networks on the same samples: similarities of all layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.sampling import evenly_spaced
from bnrank.measures import similarity
from bnrank.measures.layerwise import LayerUse, layer_use
from bnrank.networks.capturing import capture
from bnrank.networks.functional import Functional, check_finite, example
from bnrank.networks.reading import read

if TYPE_CHECKING:
    import xarray as xr

LONG_NAMES = {
    "cka": "linear CKA of the centered activations (Kornblith et al., 2019)",
    "cka_debiased": "linear CKA by the unbiased estimator of HSIC (Song et al., 2012)",
    "cca": "mean canonical correlation of the components with 99 percent of variance (SVCCA)",
    **{f"units_{n}": f"width of the layer of {n}: features, or channels of an image" for n in "ab"},
    **{
        f"dimension_{share}_{n}": f"dimension of the centered activations of {n} at {share} percent of the variance"
        for share in ("95", "99")
        for n in "ab"
    },
    **{f"dead_units_{n}": f"number of units of {n} that are 0 on all samples" for n in "ab"},
}


@dataclass(frozen=True)
class Seen:
    """What one network does on samples: its layers, centered Gram matrices, use of its width, and outputs."""

    names: tuple[str, ...]
    grams: tuple[Tensor, ...]
    use: tuple[LayerUse, ...]
    output: Tensor
    samples: int


def seen(net: nn.Module, x: Any, name: str, max_samples: int, chunk_size: int, dtype: torch.dtype) -> Seen:
    """Return what a network does on samples; ``name`` is for errors."""
    try:
        samples = example(net, x, inputs=True)
        rows = evenly_spaced(len(samples), max_samples)
        samples = samples[rows.to(samples.device)]
        check_finite(net)
        reading = read(net, samples)
        empty = [layer.name for layer in reading.layers if 0 in layer.weight.shape]
        validation.expect(not empty, name, f"layers {empty} without units", "at least one unit in each")
        parts = [part.activations for part in capture(net, samples, reading, chunk_size, dtype)]
        used = layer_use(net, samples, reading, chunk_size=chunk_size, dtype=dtype)
        function = Functional(net, dtype)
        with torch.no_grad():
            output = torch.cat([function(part).flatten(1).double().cpu() for part in samples.split(chunk_size)])
    except (ValueError, TypeError) as error:
        if str(error).startswith("net"):
            raise type(error)(f"{name}{str(error).removeprefix('net')}") from error
        raise
    grams = []
    for i in range(len(reading.layers)):
        values = torch.cat([part[i] for part in parts])
        if not bool(torch.isfinite(values).all()):
            raise ValueError(
                f"{name}: activations of {reading.layers[i].name!r} are NaN or infinite, expected finite ones"
            )
        grams.append(similarity.gram(values))
        for k, part in enumerate(parts):  # each is held once
            parts[k] = (*part[:i], torch.zeros(0), *part[i + 1 :])
    names = tuple(layer.name for layer in reading.layers)
    return Seen(names, tuple(grams), tuple(used[name] for name in names), output, len(samples))


def dataset(a: Seen, b: Seen) -> tuple[xr.Dataset, list[dict[str, str]]]:
    """Return the similarities over (layer_a, layer_b), the use of widths, the changes of the outputs, and notes."""
    import xarray as xr

    notes = []
    nothing = np.full((len(a.names), len(b.names)), math.nan)
    found = {"cka": nothing, "cka_debiased": nothing, "cca": nothing}
    if a.samples < 2:
        notes.append({"name": "x", "note": "one sample: representations have no variation, and no CKA"})
    else:
        found["cka"] = similarity.cka_matrix(a.grams, b.grams)
        u, v = ([similarity.components(k) for k in one.grams] for one in (a, b))
        found["cca"] = np.array([[similarity.mean_correlation(p, q) for q in v] for p in u])
        if a.samples < 4:
            notes.append({"name": "x", "note": f"{a.samples} samples: the debiased CKA needs 4"})
        else:
            found["cka_debiased"] = similarity.cka_matrix(a.grams, b.grams, debiased=True)
        for letter, one in (("a", a), ("b", b)):
            constant = [name for name, k in zip(one.names, one.grams, strict=True) if not bool(k.any())]
            if constant:
                notes.append({"name": ", ".join(constant), "note": f"constant in {letter}: no CKA"})
    variables: dict[str, Any] = {name: (("layer_a", "layer_b"), values) for name, values in found.items()}
    for letter, one in (("a", a), ("b", b)):
        variables |= {f"{name}_{letter}": (f"layer_{letter}", column) for name, column in _columns(one.use).items()}
    names = {"layer_a": np.array(a.names, dtype=str), "layer_b": np.array(b.names, dtype=str)}
    attrs: dict[str, Any] = {"samples": a.samples}
    if a.output.shape == b.output.shape:
        attrs |= _change(a.output, b.output)
    else:
        text = f"shapes {tuple(a.output.shape[1:])} and {tuple(b.output.shape[1:])}: no change"
        notes.append({"name": "outputs", "note": text})
    return xr.Dataset(variables, names, attrs), notes


def _columns(used: Sequence[LayerUse]) -> dict[str, np.ndarray]:
    columns = {
        "units": [use.units for use in used],
        "dimension_95": [use.dimensions[0] for use in used],
        "dimension_99": [use.dimensions[1] for use in used],
        "dead_units": [use.dead for use in used],
    }
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def _change(a: Tensor, b: Tensor) -> dict[str, float]:
    """Return the change of the outputs over their norm and over their spread, where these are not 0."""
    moved, spread = float((b - a).norm()), float((a - a.mean(0)).norm())
    sizes = {"output_change": float(a.norm()), "output_change_of_spread": spread}
    return {name: moved / size for name, size in sizes.items() if size > 0}
