"""Which measures of a network are computed: those requested, or by default those that are cheap enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import bottlenecks, nonlinearity, spectra, tensors
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.reading import Layer, Reading
from bnrank.networks.reasons import Skipped
from bnrank.networks.tensors import entry, pieces

WHAT = ("weights", "activations", "jacobian", "ntk")
MAX_WEIGHT_WORK = 10**10  # frequencies x c_out x c_in x min(c_out, c_in) of a convolution, by default
MAX_ACTIVATION_WORK = 5 * 10**10  # samples x features x min(samples, features) of all layers, by default
MAX_SAMPLE_WORK = 2 * 10**9  # samples x d_out x parameters of Jacobians and the NTK, by default
PATCHES = (
    "the kernel as a matrix (out, in x taps) that maps a patch to one position, since its operator on images is too "
    'expensive by default; what=("weights", ...) measures the operator'
)


@dataclass(frozen=True)
class Choice:
    """What is measured.

    Attributes
    ----------
    parts : frozenset of str
        From "weights", "activations", "jacobian" and "ntk".
    by_default : bool
        Whether nothing was requested, so that what costs much is replaced or left out.
    """

    parts: frozenset[str]
    by_default: bool

    @classmethod
    def of(cls, what: object) -> Choice:
        """Return the choice that an argument ``what`` says; None is the default.

        Examples
        --------
        >>> sorted(Choice.of(("ntk", "weights")).parts), Choice.of(None).by_default
        (['ntk', 'weights'], True)
        """
        if what is None:
            return cls(frozenset(WHAT), True)
        parts = [what] if isinstance(what, str) else validation.sequence(what, "what", f"some of {', '.join(WHAT)}")
        validation.expect(parts, "what", "nothing", f"some of {', '.join(WHAT)}")
        return cls(frozenset(validation.choice(part, "what", WHAT) for part in parts), False)

    def __contains__(self, part: str) -> bool:
        return part in self.parts

    def expensive(self, reading: Reading) -> list[Layer]:
        """Return the convolutions that are measured by their kernels: beyond the default, the most expensive ones."""
        left, out = float(MAX_WEIGHT_WORK), []
        for layer in sorted(reading.weights, key=_weight_work) if self.by_default else ():
            left -= _weight_work(layer)
            out += [layer] if left < 0 and _weight_work(layer) else []
        return out

    def of_samples(self, net: nn.Module, samples: int, d_out: int) -> tuple[list[str], str]:
        """Return which of Jacobians and the NTK are computed, and why others are left out by default."""
        parts = [part for part in ("jacobian", "ntk") if part in self]
        work = samples * d_out * sum(p.numel() for p in net.parameters())
        if not self.by_default or work <= MAX_SAMPLE_WORK or is_plain_mlp(unwrap(net)):
            return parts, ""
        limit = f"{work:.1e} operations, by default the limit is {MAX_SAMPLE_WORK:.0e}"
        return [], f'Jacobians and the NTK: {limit}; what=("jacobian", "ntk", ...) computes them'

    def spectra_of_activations(self, reading: Reading, samples: int) -> str:
        """Return why spectra of whole activations are left out; "" if they are computed."""
        if "activations" not in self:
            return "not requested"
        widths = [math.prod(shape) for layer in reading.layers for shape in (layer.output_shape,) if shape]
        work = sum(samples * width * min(samples, width) for width in widths)
        if not self.by_default or work <= MAX_ACTIVATION_WORK:
            return ""
        limit = f"{work:.1e} operations, by default the limit is {MAX_ACTIVATION_WORK:.0e}"
        return f'spectra of whole activations: {limit}; what=("activations", ...) computes them'


def _weight_work(layer: Layer) -> float:
    """Return the operations of the spectrum of a convolution at all frequencies; 0 for other layers."""
    weight = layer.weight
    if weight.ndim < 3 or layer.input_shape is None or max(weight.shape[2:]) == 1:
        return 0.0
    c_out, c_in = weight.shape[:2]
    return float(math.prod(layer.input_shape[2 - weight.ndim :]) * c_out * c_in * min(c_out, c_in))


def structure(
    net: nn.Module, x: Any, choice: Choice, reading: Reading, settings: dict[str, Any], passes: dict[str, Any]
) -> bottlenecks.Structure:
    """Return what :func:`bnrank.bottleneck` does, of the chosen measures; the others are None or NaN.

    Parameters
    ----------
    net, x, reading
        As for :func:`bnrank.bottleneck`.
    choice : Choice
        What is measured.
    settings, passes : dict
        The tolerances of the search; ``method``, ``chunk_size`` and ``dtype``.
    """
    expensive, without = choice.expensive(reading), choice.spectra_of_activations(reading, len(x))
    if "weights" in choice and not expensive and not without:
        return bottlenecks.bottleneck(net, x, **settings, **passes, reading=reading)
    weights, kernels = _weights(net, choice, reading, expensive)
    rows = [weights.get(layer.name, torch.zeros(0)) for layer in reading.weights]
    found = bottlenecks.detect(rows[: len(reading.layers)] or rows, **settings)
    if "weights" not in choice:
        found = replace(found, reason="the weights were not measured")
    before = after = spectra.Spectra({})
    ratios: dict[str, float] = {}
    if not without and reading.layers:
        before = spectra.activation_singular_values(net, x, which="preactivations", **passes, reading=reading)
        after = spectra.activation_singular_values(net, x, which="activations", **passes, reading=reading)
    if "activations" in choice and reading.layers:
        some = {key: passes[key] for key in ("chunk_size", "dtype")}
        ratios = nonlinearity.ratio(net, x, **some, reading=reading)
    kind = type(net).__name__
    left = [Skipped("", kind, without)] if without and "activations" in choice else []
    notes = dict(weights.notes) | dict.fromkeys(kernels, PATCHES)
    alone = {layer.name for layer in reading.unobserved}
    listed = [part for part in [*weights.skipped, *before.skipped, *after.skipped] if part.name not in alone]
    skipped = tuple(dict.fromkeys([*listed, *left]))
    values = {**weights, **kernels}
    layers = [_structure(layer, values, kernels, settings["atol"], before, after, ratios) for layer in reading.weights]
    return bottlenecks.Structure("undetermined", tuple(layers), found, 0, 0, skipped, notes, after.floor)


def _weights(
    net: nn.Module, choice: Choice, reading: Reading, expensive: Sequence[Layer]
) -> tuple[spectra.Spectra, dict[str, Tensor]]:
    """Return the spectra of weights, and those of the kernels of convolutions that are too expensive."""
    if "weights" not in choice:
        return spectra.Spectra({}, reading.skipped), {}
    names = {layer.name for layer in expensive}
    some = {key: [x for x in getattr(reading, key) if x.name not in names] for key in ("layers", "unobserved")}
    rest = replace(reading, layers=tuple(some["layers"]), unobserved=tuple(some["unobserved"]))
    found = spectra.weight_singular_values(net, reading=rest)
    return found, {layer.name: kernel_values(layer) for layer in expensive}


def kernel_values(layer: Layer) -> Tensor:
    """Return the singular values of a convolution's kernel as a matrix (out, in x taps), in float64, descending."""
    module: Any = layer.module
    role = "transposed" if getattr(module, "transposed", False) else "conv"
    found = entry(layer.name, layer.weight, role=role, groups=module.groups)
    ((piece,), _) = pieces(found, {})
    return tensors.singular_values(piece.take(found.load()))


def _structure(
    layer: Layer,
    values: dict[str, Tensor],
    kernels: Iterable[str],
    atol: float,
    before: spectra.Spectra,
    after: spectra.Spectra,
    ratios: dict[str, float],
) -> bottlenecks.LayerStructure:
    own = values.get(layer.name)
    return bottlenecks.LayerStructure(
        index=layer.index,
        name=layer.name,
        kind=f"{layer.kind} patches" if layer.name in kernels else layer.kind,
        inside=False,
        singular_values=own,
        count=None if own is None else int((own > atol).sum()),
        distance=math.nan,
        rest=math.nan,
        bias_norm=math.nan,
        nonlinearity=ratios.get(layer.name, math.nan),
        preactivation_values=before.get(layer.name),
        activation_values=after.get(layer.name),
        note="",
    )
