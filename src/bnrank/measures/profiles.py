"""All measures of a network on data, in one dataset."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import heap, remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._core.sampling import evenly_spaced
from bnrank._core.validation import Data
from bnrank._version import __version__
from bnrank.measures import bottlenecks, kinks, spectra, weights
from bnrank.measures.derivatives import derivatives
from bnrank.measures.frequencies.profiled import is_circular, with_frequencies
from bnrank.measures.kinks import KINK_RTOL
from bnrank.measures.layerwise import NUMBERS, LayerUse, Uses, few_samples
from bnrank.measures.nonlinearities import Ratio
from bnrank.measures.samplewise import RTOL, SEVERAL, VARIABLES, in_blocks, too_expensive, undefined
from bnrank.measures.usage import FEW
from bnrank.measures.weights import Measured, padded
from bnrank.networks.files import runnable
from bnrank.networks.functional import Functional, check_finite, example, is_plain_mlp, unwrap
from bnrank.networks.inputs import Example, Inputs, Samples
from bnrank.networks.reading import Layer, Reading, check_read, leaving_out, read_function
from bnrank.networks.reading.matrices import TIED
from bnrank.networks.reasons import Skipped, only_weight

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["describe", "profile"]

WHAT = ("weights", "activations", "jacobian", "ntk", "operators")
DEFAULT = WHAT[:4]
MAX_ACTIVATION_WORK = 5 * 10**10  # samples x features x min(samples, features) of all layers, by default
EXPENSIVE = (
    f"spectra of whole activations: {{:.1e}} operations, by default the limit is {MAX_ACTIVATION_WORK:.0e}; "
    'what=("activations", ...) computes them'
)
NOTHING = torch.zeros(0)
UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("activation_singular_values", "preactivation_singular_values"), NOTHING),
    **dict.fromkeys(("nonlinearity", *NUMBERS), math.nan),
}  # of activations of a layer
UNMEASURED = "the weights were not measured"
RANDOM = {
    "name": "output",
    "note": "random, in eval mode, too: activations contain the noise of one draw per pass",
}

_LONG_NAMES = {
    **weights.LONG_NAMES,
    "weight_singular_values": "singular values of W_l (convolutions: as operators on images, see the notes)",
    "activation_singular_values": "singular values of a_l(X) / sqrt(N)",
    "preactivation_singular_values": "singular values of the preactivations a~_l(X) / sqrt(N)",
    "nonlinearity": "||Z_l - sigma(Z_l)||_F / ||Z_l||_F",
    "weight_rank": "number of singular values of W_l above the tolerance",
    "parameter_norm": "||W_l||_F^2 + ||b_l||^2",
    "jacobian_singular_values": "singular values of Jf(x)",
    "log_pseudo_determinant": "log |Jf(x)|_+, the sum of the logs of the non-zero singular values",
    "ntk_trace": "Tr Theta(x, x) over all parameters",
    "cost": "cost of the network on (x, y)",
    "units": "width of a_l: features, or channels of an image",
    "dimension_95": "dimension of the centered a_l at 95 percent of the variance, corrected for few samples",
    "dimension_99": "dimension of the centered a_l at 99 percent of the variance, corrected for few samples",
    "dead_units": "number of units of a_l that are 0 on all samples; NaN for a single row",
    "layer": "layer, 1..L",
    "index": "index of the singular value",
    "sample": "row of x",
    "kept_channels": "number of channels in which the bottleneck keeps a frequency",
    "channel": "index of the singular value at one frequency",
}


def profile(
    net: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str],
    x: Example | None = None,
    y: Data | None = None,
    *,
    what: Sequence[str] | None = None,
    weight_rtol: float = 0.01,
    atol: float = 0.1,
    chunk_size: int = 4096,
    max_jacobian_samples: int = 100,
    max_values: int = 4096,
    max_minutes: float | None = None,
    progress: bool = False,
    dtype: torch.dtype = torch.float64,
    activation: str | float | None = None,
) -> xr.Dataset:
    """Return the measures of a network on data, layer by layer and sample by sample; without data those of its weights.

    Parameters
    ----------
    net : torch.nn.Module, mapping or path
        Any module that runs and has a weight matrix. It is left unchanged. Of several outputs the main one counts:
        ``.logits``, ``.last_hidden_state`` or the first tensor; one of shape (N,) is one feature. Or a state dict, or a
        file of weights: ``.safetensors``, ``.onnx`` (needs the package onnx), ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` or
        ``.pth.tar`` (tensors and plain values only), a TorchScript archive, or the ``.index.json`` of split weights. No
        code of a file is run. With x, it is a network that bnrank saved, or a chain of linear layers with
        ``activation``.
    x : Tensor or ndarray, tuple or mapping of them, optional
        Samples, (N, ...), or tokens, integers. A mapping is passed as ``net(**x)``, a tuple as ``net(*x)``. For
        recurrent and attention modules of torch by themselves with ``batch_first=False``: (time, N, features).
        Without samples only the weights are measured, see Notes.
    y : Tensor or ndarray, optional
        (N, d_out), or (N,) for one output, for the mean squared error (1/N) sum_i ||f(x_i) - y_i||^2; or class
        indices, integers, for the mean cross-entropy: (N,) for outputs (N, C), and (N, T) for (N, T, C), whose last
        dimension is that of the classes. Adds the variable ``cost``.
    what : sequence of str, optional
        From "weights", "activations", "jacobian", "ntk" and "operators". Default: the first four, without what is
        expensive: spectra of whole activations, Jacobians and the NTK are left out beyond a number of operations, which
        are counted, not timed, and the result lists them. Naming one of them computes all of it, except that Jacobians
        keep their limit. For "weights", the kernels of large convolutions stand for their operators on
        images, and a note says so; "operators", which includes "weights", measures all operators, see
        :func:`bnrank.spectra.weight_singular_values`.
    weight_rtol : float
        Singular values of a weight above ``weight_rtol`` times its largest count for ``weight_relative_rank``.
    atol : float
        Singular values of a weight above ``atol`` count for ``weight_rank`` and the bottleneck.
    chunk_size : int
        Samples per forward pass, fewer where a layer has more than 2^18 numbers for them; bounds the memory.
    max_jacobian_samples : int
        Maximum number of samples for the variables over ``sample``, spread evenly over x.
    max_values : int
        Maximum number of singular values kept per layer, the largest; ranks count all of them.
    max_minutes : float, optional
        Time budget in minutes. What is not done within it is listed as skipped, with the number of samples after which
        it was cut off; the smallest weights come first. It is looked at between layers and blocks of samples.
    progress : bool
        Show a progress bar.
    dtype : torch.dtype
        Precision of forward and backward passes; spectra are computed in float64 in any case.
    activation : str or float, optional
        The activation between the layers of a state dict or file of weights that is run on x, which do not say it:
        "relu", "linear", the slope of a leaky ReLU, or an elementwise function of ``torch.nn.functional`` by its name,
        such as "tanh".

    Returns
    -------
    xarray.Dataset
        NaN is padding, or marks undefined and skipped values.

        - Over (layer, index): ``weight_singular_values``, ``activation_singular_values`` and
          ``preactivation_singular_values``, the last two over sqrt(N).
        - Over layer: ``nonlinearity`` and ``parameter_norm`` (squared).
        - Over layer, of the weights: ``weight_rank``, ``weight_relative_rank``, ``stable_rank`` ||W||_F^2 /
          ||W||_op^2, ``entropy_rank`` (exp of the entropy of s_i / sum_j s_j, called effective rank by Roy and
          Vetterli, 2007; not :func:`bnrank.spectra.effective_rank`), ``full_rank`` (number of singular values) and
          ``subnormals``.
        - Over layer, of the activations: ``units``, ``dimension_95`` and ``dimension_99``
          (:func:`bnrank.measures.usage.centered_dimension`; channels are units and up to 64 positions of an image or
          sequence are samples, also where it is flattened for the next layer), and ``dead_units`` (0 on all samples;
          NaN for one sample with one position).
        - Over (sample, index): ``jacobian_singular_values``. Over sample: ``ntk_trace``, and
          ``log_pseudo_determinant`` of the Jacobian's singular values above 1e-6 times the largest.
        - Coordinates: ``layer`` (1..L), ``layer_name``, ``layer_kind``, ``index`` (from 1), ``sample`` (row of x).
        - Attributes: tolerances, N, and the bottleneck as ``bottleneck_rank``, ``bottleneck_start``,
          ``bottleneck_end`` and ``bottleneck_gap``, absent where undetermined (``bottleneck_reason`` says why) or
          infinite.
        - Along ``skipped``: modules, or without x tensors, that are not measured (``skipped_name``, ``skipped_type``,
          ``skipped_reason``). Along ``note``: assumptions (``note_name``, ``note_note``). See :func:`describe`.

        If a layer is a circular convolution, also ``frequency_singular_values`` (layer, frequency, channel) and
        ``frequency_rank`` (layer, frequency), as in :mod:`bnrank.frequencies`, with coordinates ``multiplicity`` and
        ``modulus``; ``kept_channels`` (frequency), the number of channels of each frequency that the bottleneck keeps;
        and the attribute ``kept_reason`` if there is no bottleneck, or none of its layers has frequencies.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no layer is found, the module cannot be run on x, or the activation is not
        known.

    Notes
    -----
    The weights are those of one list, with and without x: every matrix and every kernel of a convolution. With x, those
    whose values are not observed, such as stacked experts, come last, with their weights alone, and a note says why.
    Without x, one tensor is in memory at a time. Recurrent weights are split by gate, fused projections of attention in
    q, k and v; a tensor with two names is measured once. Without the size of the images, a convolution is measured as
    the matrix (out, in x taps) that maps a patch of the input to one position of the output, kind "conv2d patches". Its
    squared singular values are the eigenvalues of the covariance of the output channels for white noise as input, by
    Parseval the mean over frequencies of K^(w) K^(w)^*. The coordinates ``layer_kind`` and, without x, ``layer_shape``
    tell what a matrix is; :func:`describe` lists the rest.

    Examples
    --------
    >>> import torch, bnrank
    >>> profile({"a.weight": torch.eye(3), "a.bias": torch.ones(3)}).stable_rank.values
    array([3.])
    >>> ds = profile(bnrank.MLP([3, 8, 8, 2], seed=0), torch.randn(50, 3))
    >>> dict(ds.sizes)
    {'layer': 3, 'index': 8, 'sample': 50}
    >>> ds.weight_rank.values
    array([3., 7., 2.])
    """
    limits = weights.limits_of(atol, weight_rtol, max_values)
    parts = frozenset(DEFAULT) if what is None else _parts(what)
    if x is None:
        _check_weights(parts, what, y, activation)
        return _described(weights.weights(net, limits, max_minutes, progress))
    (net, names), deadline = runnable(net, activation), Deadline(max_minutes)
    x, chunk_size = example(net, x, inputs=True).detach(), validation.integer(chunk_size, "chunk_size")
    chosen = evenly_spaced(len(x), validation.integer(max_jacobian_samples, "max_jacobian_samples"))
    near = bottlenecks.Limits(limits["atol"])
    validation.expect(near.atol < near.near_one[0], "atol", f"{near.atol:g}", f"a number below {near.near_one[0]}")
    measures = _Measures(net, x, chosen, parts, what is None, dtype, chunk_size, deadline)
    measures.read(y)
    with bar(progress, "weights", 3, counted=False) as tell:
        measures.weigh(tell)
        tell(1, "activations")
        measures.run(near)
        tell(2, "Jacobians and the NTK")
        measures.differentiate()
    dataset = measures.tabulated(limits)
    dataset = _renamed(dataset, names) if names else dataset
    if any(layer.is_convolution and is_circular(layer) for layer in measures.reading.layers):
        dataset = with_frequencies(dataset, measures.reading, measures.bottleneck)
    return _described(dataset)


def _check_weights(parts: frozenset[str], what: object, y: object, activation: object) -> None:
    """Raise ValueError if measures of more than weights are requested without samples."""
    validation.expect(y is None, "y", "targets without x", "them together with samples x")
    validation.expect(activation is None, "activation", f"{activation!r} without x", "it together with samples x")
    wanted = repr(what) if isinstance(what, str) else what
    on_images = "'weights' without x: 'operators' measures convolutions on images, whose size x gives"
    validation.expect("operators" not in parts, "what", wanted, on_images)
    validation.expect("weights" in parts, "what", wanted, "'weights' without x: the others are measured on samples")


def _parts(what: object) -> frozenset[str]:
    """Return what is measured, where the argument ``what`` is given; operators are weights, too."""
    parts = [what] if isinstance(what, str) else validation.sequence(what, "what", f"some of {', '.join(WHAT)}")
    validation.expect(parts, "what", "nothing", f"some of {', '.join(WHAT)}")
    chosen = {validation.choice(part, "what", WHAT) for part in parts}
    return frozenset(chosen | ({"weights"} if "operators" in chosen else set()))


@dataclass
class _Measures:
    """The measures of a network on samples, one after another: values by variable, what is missing, and notes.

    A replica of the network is held by one step at a time, and by none while the weights are measured.
    """

    net: nn.Module
    x: Samples
    chosen: Tensor  # samples for Jacobians and the NTK
    what: frozenset[str]
    is_default: bool  # what is expensive is left out
    dtype: torch.dtype
    chunk_size: int
    deadline: Deadline
    values: dict[str, Any] = field(default_factory=dict)  # at the chosen samples
    skipped: list[Skipped] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    floor: float = 0.0

    def read(self, y: Data | None) -> None:
        """Read the layers, and measure the cost where there are targets."""
        function = Functional(self.net, self.dtype, whole=self.x)
        self.reading = read_function(function, self.x)
        check_read(function, self.reading, layers=not self.reading.weights)
        with torch.no_grad():
            self.shape = tuple(function(self.x[:2]).shape[1:])
        self.is_random = "activations" in self.what and function.is_random(self.x[:2])
        self.cost = {} if y is None else {"cost": _cost(function, self.x, y, self.shape, self.chunk_size)}
        check_finite(self.net)

    def weigh(self, tell: Callable[[float, str], object]) -> None:
        """Measure the weights."""
        known = self.reading.weights if "weights" in self.what else ()
        max_work = math.inf if "operators" in self.what else weights.MAX_WORK
        measured = weights.measured(known, self.deadline, tell, max_work)
        self.weights = {part.matrix.name: part for part in measured}
        self.rows = {layer.name: dict(UNKNOWN) for layer in self.reading.weights}

    def run(self, limits: bottlenecks.Limits) -> None:
        """Measure activations, and find the bottleneck, undetermined where weights were not measured."""
        function = Functional(self.net, self.dtype, whole=self.x)
        if "activations" in self.what and self.reading.layers:
            _, self.reading = leaving_out(function, self.x, self.reading, partial(self._activations, function))
        values = {name: part.values for name, part in self.weights.items() if len(part.values)}
        missing = [layer.name for layer in self.reading.layers or self.reading.weights if layer.name not in values]
        known = {} if missing else values
        found = bottlenecks.of_network(function, self.x, self.reading, known, limits, self.chunk_size)
        reason = f"weights that were not measured: {', '.join(missing)}" if values else UNMEASURED
        self.bottleneck = replace(found, reason=reason) if missing else found

    def _activations(self, function: Functional, reading: Reading) -> None:
        """Measure spectra, nonlinearity and use of the layers in the same passes over the data."""
        samples = len(self.x)
        widths = [math.prod(layer.output_shape) for layer in reading.layers if layer.output_shape]
        work = sum(samples * width * min(samples, width) for width in widths)
        is_expensive = self.is_default and work > MAX_ACTIVATION_WORK
        passes = spectra.ActivationSpectra(function, self.x, reading, () if is_expensive else spectra.WHICH)
        ratio, uses, used = Ratio(reading), Uses(reading, samples), dict[str, LayerUse]()
        passes.measure([ratio, uses], self.chunk_size, self.deadline)
        self.reasons += [EXPENSIVE.format(work)] if is_expensive else []
        for kind, values in passes.values.items():
            self.floor, self.skipped = passes.floor, self.skipped + passes.skipped[kind]
            for name, spectrum in values.items():
                self.rows[name][f"{kind[:-1]}_singular_values"] = spectrum
        if passes.samples == samples:
            used = uses.use(self.deadline.over)
            for name, value in ratio.ratios().items():
                self.rows[name] |= {"nonlinearity": value, **(used[name].numbers if name in used else {})}
        self.reasons += _cut_off(passes, used, self.deadline) if self.deadline.is_set else []
        self.notes += [{"name": name, "note": use.note} for name, use in used.items() if use.note]
        self.notes += few_samples(samples, used) if samples < FEW else []

    def differentiate(self) -> None:
        """Measure Jacobians and the NTK at chosen samples, in the time that there is."""
        heap.give_back()
        x, d_out = self.x[self.chosen.to(self.x.device)], math.prod(self.shape)
        names = {part: name for part, name in VARIABLES.items() if part in self.what}
        is_limited = self.is_default and not is_plain_mlp(unwrap(self.net))
        expensive = too_expensive(self.reading, len(x), d_out) if is_limited else ""
        if isinstance(x, Inputs) or not names or expensive:
            self.reasons += [expensive] if expensive else [f"{name}: {SEVERAL}" for name in names.values()]
            return
        function = derivatives(unwrap(self.net), x, self.dtype)
        for part, name in names.items():
            measure, reason = (function.traces, "") if part == "ntk" else (function.spectra, undefined(x, d_out))
            blocks, reason = in_blocks(x, measure, self.deadline, reason)
            self.values |= {name: torch.cat(blocks).cpu()} if blocks else {}
            self.reasons += [f"{name}: {reason}"] if reason else []
        values = self.values.get("jacobian_singular_values")
        if values is not None:
            self.values["log_pseudo_determinant"] = torch.where(values > RTOL * values[:, :1], values, 1.0).log().sum(1)
            near = function.near_kinks(x[: len(values)], KINK_RTOL).cpu()
            notes = [kinks.describe(near, KINK_RTOL, self.chosen.numpy())] if bool(near.any()) else []
            self.notes += [{"name": "jacobian_singular_values", "note": note} for note in notes]

    def tabulated(self, limits: Mapping[str, Any]) -> xr.Dataset:
        """Return all measures as a dataset over layer, index and sample."""
        layers, values, count = self.reading.weights, self.values, len(self.chosen)
        jacobians = [*values.get("jacobian_singular_values", ()), *[NOTHING] * count][:count]
        parts = [self.weights.get(layer.name) or Measured.none(layer.matrix) for layer in layers]
        rows = [self.rows[layer.name] for layer in layers]
        dataset = weights.tabulated(parts, **limits, more=rows, width=len(jacobians[0])).drop_vars("layer_shape")
        dataset["jacobian_singular_values"] = ("sample", "index"), padded(jacobians, dataset.sizes["index"])
        for key in ("log_pseudo_determinant", "ntk_trace"):
            dataset[key] = "sample", padded([values.get(key, NOTHING)], count)[0]
        dataset = dataset.assign(self.cost).assign_coords(sample=self.chosen.numpy())
        skipped = [*self.reading.unread, *self.skipped]
        for matrix, why in [(part.matrix, part.reason) for part in self.weights.values() if part.reason]:
            skipped.append(Skipped(matrix.name, type(matrix.module).__name__, f"weight_singular_values: {why}"))
        skipped += [Skipped.part("", self.net, why) for why in self.reasons]
        dataset = remarks.attach(dataset, "skipped", [vars(part) for part in dict.fromkeys(skipped)])
        notes = [*_notes(layers, parts), *self.notes, *([RANDOM] if self.is_random else [])]
        return remarks.attach(dataset, "note", notes).assign_attrs(self._about())

    def _about(self) -> dict[str, Any]:
        """Return the attributes, besides those of the weights."""
        about = {"title": f"profile of {type(self.net).__name__}", "samples": len(self.x), "what": sorted(self.what)}
        about |= {"chunk_size": self.chunk_size, "dtype": str(self.dtype).removeprefix("torch."), "rtol": RTOL}
        about |= {"bnrank_version": __version__, "floor": self.floor, "bottleneck_reason": self.bottleneck.reason}
        edges = {f"bottleneck_{name}": getattr(self.bottleneck, name) for name in ("rank", "start", "end", "gap")}
        about |= {name: edge for name, edge in edges.items() if edge is not None and math.isfinite(edge)}
        return about | {"jacobian_samples": len(self.chosen)}


def _cut_off(passes: spectra.ActivationSpectra, used: Mapping[str, LayerUse], deadline: Deadline) -> list[str]:
    """Return which measures of activations are missing for lack of time."""
    reasons, late, layers = [], defaultdict(list), passes.reading.layers
    for (i, kind), reason in passes.late.items():
        late[f"{kind[:-1]} spectra, {reason}"].append(layers[i].name)
    if passes.samples < len(passes.x):
        text = "nonlinearity, units, dimensions and dead units of the activations"
        reasons.append(f"{text}: {deadline.cut(passes.samples, len(passes.x))}")
    else:
        late[f"dimensions and dead units, {deadline.missed}"] = [x.name for x in layers if x.name not in used]
    return reasons + [f"{text}: layers {', '.join(names)}" for text, names in late.items() if names]


def _notes(layers: Sequence[Layer], parts: Sequence[Measured]) -> list[dict[str, str]]:
    """Return what else to know of the weights of layers: how they are computed and measured, and why only they are."""
    notes = []
    for layer, part in zip(layers, parts, strict=True):
        texts = [layer.matrix.note, part.note, layer.reason and only_weight(layer.reason)]
        if len(part.values) and any(texts):
            notes.append({"name": layer.name, "note": "; ".join(filter(None, texts))})
    return notes


def _renamed(dataset: xr.Dataset, names: Mapping[str, str]) -> xr.Dataset:
    """Return a profile with the names that layers have in the state dict or file that a network was made from."""
    for coordinate in ("layer_name", "skipped_name", "note_name"):
        if coordinate in dataset.coords:
            shown = [names.get(name, name) for name in dataset[coordinate].values.tolist()]
            dataset[coordinate] = dataset[coordinate].dims, np.array(shown, dtype=str)
    return dataset


def describe(profile: xr.Dataset) -> list[str]:
    r"""Return lines of text on the modules or tensors skipped by a profile, and on assumptions.

    Parameters
    ----------
    profile : xarray.Dataset
        The result of :func:`profile`.

    Returns
    -------
    list of str
        One line per skipped module, and per note. Of a profile without samples: what it covers, one line per reason
        for which tensors were not measured, and one per note.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> ds = profile(nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)), torch.randn(50, 2))
    >>> describe(ds)
    ['skipped 1 (PReLU): activation with a learned slope and no weight matrix']
    >>> state = {"a.weight": torch.eye(3), "a.bias": torch.ones(3), "b.bias": torch.ones(2)}
    >>> print("\n".join(describe(profile(state))))
    1 of 3 tensors measured, with 9 of 14 entries
    not measured: 2 x bias (a.bias, b.bias)
    """
    attrs = getattr(profile, "attrs", {})
    expected = "the result of bnrank.profile"
    validation.expect("bottleneck_reason" in attrs, "profile", "a dataset without 'bottleneck_reason'", expected)
    skipped, lines = remarks.rows(profile, "skipped"), []
    if "tensors" not in attrs:
        lines = [f"skipped {Skipped(**row)}" for row in skipped]
    else:
        counts = [attrs[key] for key in ("tensors_measured", "tensors", "entries_measured", "entries")]
        lines = ["{:,} of {:,} tensors measured, with {:,} of {:,} entries".format(*counts)]
        reasons: dict[str, list[str]] = {}
        for row in skipped:
            reason, name = row["reason"], row["name"]
            if reason.startswith(TIED[0]):
                name += f" = {reason.removeprefix(TIED[0]).removesuffix(TIED[1])}"
                reason = "another".join(TIED)
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            times = f"{len(names)} x " if len(names) > 1 else ""
            lines.append(f"not measured: {times}{reason} ({_some(names)})")
    notes: dict[str, list[str]] = {}
    for row in remarks.rows(profile, "note"):
        notes.setdefault(row["note"], []).append(row["name"])
    return lines + [f"{_some(names)}: {note}" for note, names in notes.items()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} others" if len(names) > 2 else "")


def _described(dataset: xr.Dataset) -> xr.Dataset:
    for name in dataset.variables.keys() & _LONG_NAMES.keys():
        units = {"units": "1"} if name in dataset.data_vars else {}
        dataset[name].attrs |= {"long_name": _LONG_NAMES[str(name)], **units}
    return dataset


def _target(y: Data, n: int, shape: tuple[int, ...]) -> Tensor:
    """Return targets of n outputs of a shape: real numbers, (n, d_out), or class indices, one for each distribution."""
    d_out = math.prod(shape)
    if not isinstance(y, Tensor | np.ndarray):
        expected = "a tensor or array of targets, floating point of shape (N, d_out), or class indices"
        raise TypeError(f"y: got {validation.describe(y)}, expected {expected}")
    y = validation.dense(validation.from_array(y, "y") if isinstance(y, np.ndarray) else y, "y")
    if y.is_floating_point():
        y = validation.samples(validation.targets(y, d_out), "y", ndim=None if y.ndim > 2 else 2).flatten(1)
        got = f"{y.shape[1]} outputs per sample"
        validation.expect(y.shape[1] == d_out, "y", got, f"{d_out} as in the network's output")
    else:
        places = () if d_out == max(shape) else shape[:-1]  # (N, C, 1, 1) has one distribution
        at_positions = y.ndim > 1 and y.shape[1:] == shape[:-1]
        expected = f"class indices of shape {(n, *places)} for outputs {(n, *shape)}, classes in the last dimension"
        validation.expect(not places or at_positions, "y", f"shape {tuple(y.shape)}", expected)
        y = validation.classes(y.flatten() if at_positions else y, "y", shape[-1] if places else d_out)
        y = y.reshape(-1, *places)
    validation.expect(y.shape[0] == n, "y", f"{y.shape[0]} samples", f"{n} as in x")
    return y


def _cost(function: Functional, x: Samples, y: Data, shape: tuple[int, ...], chunk_size: int) -> Any:
    """Return the cost of outputs of a shape and its loss, as a variable of a dataset."""
    y = _target(y, len(x), shape)
    regression = y.is_floating_point()
    loss, dtype = (nn.functional.mse_loss, torch.float64) if regression else (nn.functional.cross_entropy, torch.int64)
    total = 0.0
    with torch.no_grad():
        for part, target in zip(x.split(chunk_size), y.split(chunk_size), strict=True):
            out, target = function(part).flatten(1).double(), target.to(function.device, dtype)
            if not regression:
                out, target = out.reshape(target.numel(), -1), target.flatten()
            total += float(loss(out, target, reduction="sum"))
    cost = total / (len(y) if regression else y.numel())
    return (), cost, {"loss": "mse" if regression else "cross_entropy"}
