"""What is measured of a network on data, as chosen: in few passes over the data, until the time is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bnrank._core import heap
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank.measures import bottlenecks, spectra, weights
from bnrank.measures.choices import PATCHES, Choice
from bnrank.measures.layerwise import LayerUse, Uses, few_samples
from bnrank.measures.nonlinearities import Ratio
from bnrank.measures.samplewise import SampleMeasures
from bnrank.networks.inputs import Samples
from bnrank.networks.reading import Layer, Reading, capture, leaving_out
from bnrank.networks.reasons import Skipped, only_weight


@dataclass(frozen=True)
class Settings:
    """How a network is measured on data: the arguments of :func:`profile`, checked, and the samples of Jacobians."""

    atol: float
    weight_rtol: float
    chunk_size: int
    samples: Tensor
    max_values: int
    deadline: Deadline
    progress: bool
    dtype: torch.dtype


@dataclass(frozen=True)
class Measured:
    """What was measured of one layer; None or NaN where it was not."""

    name: str
    kind: str
    singular_values: Tensor | None
    squared_norm: float | None
    count: int | None
    nonlinearity: float
    preactivation_values: Tensor | None
    activation_values: Tensor | None


@dataclass(frozen=True)
class Found:
    """What was measured of a network on data: its layers, how much of their width they use, and single samples."""

    reading: Reading
    bottleneck: bottlenecks.Bottleneck
    layers: tuple[Measured, ...]
    used: Mapping[str, LayerUse]
    samples: SampleMeasures
    skipped: Sequence[Skipped]
    notes: Sequence[Mapping[str, str]]
    floor: float

    @property
    def spectra(self) -> dict[str, list[Tensor | None]]:
        """Singular values by variable and layer."""
        return {
            "weight_singular_values": [layer.singular_values for layer in self.layers],
            "activation_singular_values": [layer.activation_values for layer in self.layers],
            "preactivation_singular_values": [layer.preactivation_values for layer in self.layers],
        }

    @property
    def lengths(self) -> list[int]:
        """Numbers of singular values, per layer and variable; last those of a Jacobian."""
        found = [len(values) for rows in self.spectra.values() for values in rows if values is not None]
        return [*found, self.samples.jacobian_singular_values.shape[1]]


def measure(net: nn.Module, x: Samples, choice: Choice, reading: Reading, d_out: int, settings: Settings) -> Found:
    """Measure what is chosen, until the time is over: weights, activations, then single samples."""
    if not reading.weights:
        capture(net, x, reading)  # says so
    kind, deadline = type(net).__name__, settings.deadline
    with bar(settings.progress, "weights", 3, counted=False) as tell:
        measured, kernels = _weights(choice, reading, deadline)
        tell(1, "activations")
        acting, reading, unobserved = leaving_out(
            net, x, reading, lambda some: _activations(net, x, choice, some, settings), settings.dtype
        )
        tell(2, "Jacobians and the NTK")
        numbers = settings.samples
        rows = x[numbers.to(x.device)]
        parts, left = choice.of_samples(net, rows, d_out, settings.dtype)
        heap.give_back()
        samples = SampleMeasures(net, rows, d_out, settings.dtype, numbers.numpy(), parts, deadline)
    for name, reason in unobserved.items():
        if name in measured:
            measured.notes[name] = "; ".join(filter(None, [measured.notes.get(name), only_weight(reason)]))
    values = {**measured, **kernels}
    layers = tuple(_measured(layer, measured, kernels, settings.atol, acting) for layer in reading.weights)
    reasons = [*acting.reasons, *([left] if left else [])]
    alone = {layer.name for layer in reading.unobserved}
    listed = [s for part in (measured, acting.after, acting.before) for s in part.skipped if s.name not in alone]
    late = [s for s in measured.skipped if s.name in alone and deadline.missed in s.reason]
    skipped = dict.fromkeys([*listed, *late, *(Skipped("", kind, reason) for reason in reasons)])
    notes = [{"name": name, "note": note} for name, note in (measured.notes | dict.fromkeys(kernels, PATCHES)).items()]
    notes += [{"name": name, "note": use.note} for name, use in acting.used.items() if use.note]
    notes += few_samples(len(x), acting.used)
    return Found(
        reading=reading,
        bottleneck=_bottleneck(net, x, choice, reading, values, settings),
        layers=layers,
        used=acting.used,
        samples=samples,
        skipped=tuple(skipped),
        notes=notes + samples.notes,
        floor=acting.after.floor,
    )


@dataclass(frozen=True)
class _Acting:
    """The measures of activations, and why some are missing."""

    before: spectra.Spectra = field(default_factory=lambda: spectra.Spectra({}))
    after: spectra.Spectra = field(default_factory=lambda: spectra.Spectra({}))
    ratios: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, LayerUse] = field(default_factory=dict)
    reasons: Sequence[str] = ()


def _activations(net: nn.Module, x: Samples, choice: Choice, reading: Reading, settings: Settings) -> _Acting:
    """Measure spectra, nonlinearity and use of the layers in the same passes over the data."""
    if "activations" not in choice:
        return _Acting()
    without, deadline = choice.spectra_of_activations(reading, len(x)), settings.deadline
    if not reading.layers:
        return _Acting(reasons=[without] if without else [])
    ratio, uses = Ratio(reading), Uses(reading, len(x))
    found = spectra.activation_spectra(
        net,
        x,
        reading,
        () if without else spectra.WHICH,
        chunk_size=settings.chunk_size,
        dtype=settings.dtype,
        also=[ratio, uses],
        deadline=deadline,
    )
    late: dict[str, list[str]] = {}
    for (kind, i), reason in found.late.items():
        late.setdefault(f"{kind[:-1]} spectra, {reason}", []).append(reading.layers[i].name)
    reasons = [f"{text}: layers {', '.join(names)}" for text, names in late.items()] + [without] * bool(without)
    before, after = (found.values.get(kind, spectra.Spectra({})) for kind in ("preactivations", "activations"))
    if found.samples < len(x):
        text = "nonlinearity, units, dimensions and dead units of the activations"
        return _Acting(before, after, reasons=[f"{text}: {deadline.cut(found.samples, len(x))}", *reasons])
    used = uses.use(over=deadline.over)
    missing = [layer.name for layer in reading.layers if layer.name not in used]
    if missing:
        reasons = [f"dimensions and dead units, {deadline.missed}: layers {', '.join(missing)}", *reasons]
    return _Acting(before, after, ratio.ratios(), used, reasons)


def _weights(choice: Choice, reading: Reading, deadline: Deadline) -> tuple[spectra.Spectra, dict[str, Tensor]]:
    """Return the spectra of weights, and those of the kernels of convolutions that are too expensive."""
    if "weights" not in choice:
        return spectra.Spectra({}, reading.skipped), {}
    expensive = choice.expensive(reading)
    names = {layer.name for layer in expensive}
    some = {key: [x for x in getattr(reading, key) if x.name not in names] for key in ("layers", "unobserved")}
    rest = replace(reading, layers=tuple(some["layers"]), unobserved=tuple(some["unobserved"]))
    found = spectra.weight_spectra(rest, deadline=deadline)
    kernels = {}
    for layer in sorted(expensive, key=lambda layer: layer.weight.numel()):
        if deadline.over():
            reason = f"weight_singular_values: {deadline.missed}"
            found.skipped += (Skipped.part(layer.name, layer.module, reason),)
        else:
            kernels[layer.name] = kernel_values(layer)
    return found, {layer.name: kernels[layer.name] for layer in expensive if layer.name in kernels}


def kernel_values(layer: Layer) -> Tensor:
    """Return the singular values of a convolution's kernel as a matrix (out, in x taps), in float64, descending."""
    return weights.singular_values(layer.matrix.blocks())


def _bottleneck(
    net: nn.Module, x: Samples, choice: Choice, reading: Reading, values: Mapping[str, Tensor], settings: Settings
) -> bottlenecks.Bottleneck:
    """Return the bottleneck among the layers, undetermined where weights were not measured."""
    counted = reading.layers or reading.weights
    missing = [layer.name for layer in counted if layer.name not in values]
    late = settings.deadline.over() and bool(missing)
    found = bottlenecks.of_network(
        net,
        x,
        reading,
        {} if late else values,
        atol=settings.atol,
        chunk_size=settings.chunk_size,
        dtype=settings.dtype,
    )
    if "weights" not in choice:
        return replace(found, reason="the weights were not measured")
    return replace(found, reason=f"weights {settings.deadline.missed}: {', '.join(missing)}") if late else found


def _measured(
    layer: Layer, weights: spectra.Spectra, kernels: Mapping[str, Tensor], atol: float, acting: _Acting
) -> Measured:
    name = layer.name
    own = kernels[name] if name in kernels else weights.get(name)
    return Measured(
        name=name,
        kind=f"{layer.kind} patches" if name in kernels else layer.kind,
        singular_values=own,
        squared_norm=weights.squared_norms.get(name),
        count=None if own is None else int((own > atol).sum()),
        nonlinearity=acting.ratios.get(name, math.nan),
        preactivation_values=acting.before.get(name),
        activation_values=acting.after.get(name),
    )
