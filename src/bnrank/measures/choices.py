"""Which measures of a network are computed: those requested, or by default those that are cheap enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from bnrank._core import validation
from bnrank.measures.pass_work import pass_work, runs_together
from bnrank.networks.functional import is_plain_mlp, unwrap
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.reading import Layer, Reading

WHAT = ("weights", "activations", "jacobian", "ntk", "operators")
DEFAULT = WHAT[:4]
MAX_WEIGHT_WORK = 10**10  # frequencies x c_out x c_in x min(c_out, c_in) of all convolutions, without "operators"
MAX_ACTIVATION_WORK = 5 * 10**10  # samples x features x min(samples, features) of all layers, by default
MAX_SAMPLE_WORK = 2 * 10**9  # samples x d_out x parameters of Jacobians and the NTK, by default
MAX_PASS_WORK = 10**10  # samples x d_out x the work of a backward pass, by default: some seconds
PATCHES = (
    "the kernel as a matrix (out, in x taps) that maps a patch to one position, since its operator on images is "
    'expensive; what=("operators", ...) measures the operator'
)


@dataclass(frozen=True)
class Choice:
    """What is measured.

    Attributes
    ----------
    parts : frozenset of str
        From "weights", "activations", "jacobian", "ntk" and "operators", which has "weights" in it: convolutions as
        operators on images, also those whose kernels stand for them otherwise.
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
            return cls(frozenset(DEFAULT), True)
        parts = [what] if isinstance(what, str) else validation.sequence(what, "what", f"some of {', '.join(WHAT)}")
        validation.expect(parts, "what", "nothing", f"some of {', '.join(WHAT)}")
        named = {validation.choice(part, "what", WHAT) for part in parts}
        return cls(frozenset(named | ({"weights"} if "operators" in named else set())), False)

    def __contains__(self, part: str) -> bool:
        return part in self.parts

    def expensive(self, reading: Reading) -> list[Layer]:
        """Return the convolutions that are measured by their kernels: the most expensive ones, without "operators"."""
        left, out = float(MAX_WEIGHT_WORK), []
        for layer in sorted(reading.weights, key=_weight_work) if "operators" not in self else ():
            left -= _weight_work(layer)
            out += [layer] if left < 0 and _weight_work(layer) else []
        return out

    def of_samples(self, net: nn.Module, x: Samples, d_out: int, dtype: torch.dtype) -> tuple[list[str], str]:
        """Return which of Jacobians and the NTK are computed at samples, and why others are left out by default.

        Passes run in ``dtype``.
        """
        parts = [part for part in ("jacobian", "ntk") if part in self]
        if not self.by_default or is_plain_mlp(unwrap(net)):
            return parts, ""
        work, limit, few = float(len(x) * d_out * sum(p.numel() for p in net.parameters())), MAX_SAMPLE_WORK, 0
        if work <= limit:
            (work, few), limit = _pass_work(net, x, d_out, dtype), MAX_PASS_WORK
        if work <= limit:
            return parts, ""
        text = f"{work:.1e} operations, by default the limit is {limit:.0e}"
        hint = f", max_jacobian_samples={few} stays below it" if few else ""
        return [], f'Jacobians and the NTK: {text}; what=("jacobian", "ntk", ...) computes them{hint}'

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


def _pass_work(net: nn.Module, x: Samples, d_out: int, dtype: torch.dtype) -> tuple[float, int]:
    """Return the operations of the backward passes of all outputs at samples, and samples for which they are few.

    The first is 0 where there are none to count. Whether passes run by themselves is tried only where it decides.
    """
    if isinstance(x, Inputs):  # not differentiated
        return 0.0, 0
    passes = len(x) * d_out
    try:
        one = pass_work(net, x, dtype)
        alone = passes * one.together <= MAX_PASS_WORK < passes * one.alone and not runs_together(net, x, dtype)
    except ValueError:  # not differentiable, which the measures say
        return 0.0, 0
    return passes * (one.alone if alone else one.together), int(MAX_PASS_WORK // (d_out * one.alone))


def _weight_work(layer: Layer) -> float:
    """Return the operations of the spectrum of a convolution at all frequencies; 0 for other layers."""
    weight = layer.weight
    if weight.ndim < 3 or layer.input_shape is None or max(weight.shape[2:]) == 1:
        return 0.0
    c_out, c_in = weight.shape[:2]
    return float(math.prod(layer.input_shape[2 - weight.ndim :]) * c_out * c_in * min(c_out, c_in))
