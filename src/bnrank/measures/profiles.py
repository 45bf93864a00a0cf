"""All measures of a network on data, in one dataset."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.sampling import evenly_spaced
from bnrank._core.validation import Data
from bnrank._version import __version__
from bnrank.measures import choices, usage, weights
from bnrank.measures.frequencies.profiled import with_frequencies
from bnrank.measures.layerwise import LayerUse
from bnrank.measures.measuring import Found, Settings, measure
from bnrank.measures.samplewise import RTOL
from bnrank.networks.functional import Functional, check_finite, example
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading import Layer, read
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["describe", "profile"]

RANDOM = {
    "name": "output",
    "note": "random, in eval mode, too: activations contain the noise of one draw per pass",
}
METHOD = "qr"  # how spectra are combined over blocks of samples

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
) -> xr.Dataset:
    """Return the measures of a network on data, layer by layer and sample by sample; without data those of its weights.

    Parameters
    ----------
    net : torch.nn.Module, mapping or path
        Any module that runs and has a weight matrix. It is left unchanged. Of several outputs the main one counts:
        ``.logits``, ``.last_hidden_state`` or the first tensor; one of shape (N,) is one feature. Without x also a
        state dict, or a file of weights: ``.safetensors``, ``.onnx`` (needs the package onnx), ``.pt``, ``.pth``,
        ``.bin``, ``.ckpt`` or ``.pth.tar`` (tensors and plain values only), a TorchScript archive, or the
        ``.index.json`` of split weights. No code of a file is run.
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
        and the NTK keep their limits. For "weights", the kernels of large convolutions stand for their operators on
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
        - Along ``skipped``: modules (``skipped_name``, ``skipped_type``, ``skipped_reason``). Along ``note``:
          assumptions (``note_name``, ``note_note``). See :func:`describe`.

        If a layer is a circular convolution, also ``frequency_singular_values`` (layer, frequency, channel) and
        ``frequency_rank`` (layer, frequency), as in :mod:`bnrank.frequencies`, with coordinates ``multiplicity`` and
        ``modulus``; ``kept_channels`` (frequency), the number of channels of each frequency that the bottleneck keeps;
        and the attribute ``kept_reason`` if there is no bottleneck, or none of its layers has frequencies.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no layer is found, or the module cannot be run
        on x.

    Notes
    -----
    Without x, ``layer`` counts matrices. Every matrix and every kernel of a convolution is measured, one tensor in
    memory at a time; every other tensor is an entry along ``skipped`` with its reason. Recurrent weights are split by
    gate, fused projections of attention in q, k and v; a tensor with two names is measured once. A convolution is
    measured as the matrix (out, in x taps) that maps a patch of the input to one position of the output, kind "conv2d
    patches": the image size is unknown. Its squared singular values are the eigenvalues of the covariance of the output
    channels for white noise as input, by Parseval the mean over frequencies of K^(w) K^(w)^*. The coordinates
    ``layer_kind`` and ``layer_shape`` tell what a matrix is; :func:`describe` lists the rest.

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
    import xarray as xr

    if x is None:
        validation.expect(y is None, "y", "targets without x", "them together with samples x")
        parts = choices.Choice.of(what)
        wanted = repr(what) if isinstance(what, str) else what
        on_images = "'weights' without x: 'operators' measures convolutions on images, whose size x gives"
        validation.expect("operators" not in parts, "what", wanted, on_images)
        validation.expect("weights" in parts, "what", wanted, "'weights' without x: the others are measured on samples")
        limits: dict[str, Any] = {"max_values": max_values, "max_minutes": max_minutes, "progress": progress}
        return _described(weights.weights(net, atol=atol, rtol=weight_rtol, **limits))
    if not isinstance(net, nn.Module):
        expected = "a torch.nn.Module where x is given: tensors alone cannot be run"
        raise TypeError(f"net: got {validation.describe(net)}, expected {expected}")
    choice, deadline = choices.Choice.of(what), Deadline(max_minutes)
    x = example(net, x, inputs=True)
    settings = Settings(
        atol=validation.number(atol, "atol", 0.0),
        weight_rtol=validation.rtol(weight_rtol, "weight_rtol"),
        chunk_size=validation.integer(chunk_size, "chunk_size"),
        samples=evenly_spaced(len(x), validation.integer(max_jacobian_samples, "max_jacobian_samples")),
        max_values=validation.integer(max_values, "max_values"),
        deadline=deadline,
        progress=progress,
        dtype=dtype,
    )
    reading = read(net, x, dtype=settings.dtype)
    shape, is_random = _tried(Functional(net, dtype), x[:2])  # no copy of the weights is kept
    target = None if y is None else _target(y, len(x), shape)
    check_finite(net)
    found = measure(net, x, choice, reading, math.prod(shape), settings)
    lengths = found.lengths
    length = min(max(lengths), settings.max_values)
    variables = _variables(found, settings.weight_rtol, length)
    if target is not None:
        loss = "mse" if target.is_floating_point() else "cross_entropy"
        cost = _cost(Functional(net, dtype), x, target, settings.chunk_size)
        variables["cost"] = xr.DataArray(cost, attrs={"loss": loss})
    about = {
        "title": f"profile of {type(net).__name__}",
        "samples": len(x),
        "index_cut": int(max(lengths[:-1], default=0) > settings.max_values),
        "what": sorted(choice.parts),
    }
    coords = {
        "layer": np.arange(1, len(found.layers) + 1),
        "layer_name": ("layer", np.array([layer.name for layer in found.layers], dtype=str)),
        "layer_kind": ("layer", np.array([layer.kind for layer in found.layers], dtype=str)),
        "index": np.arange(1, length + 1),
        "sample": settings.samples.numpy(),
    }
    dataset = xr.Dataset(variables, coords, about | _attrs(found, settings))
    noisy = is_random and "activations" in choice
    dataset = remarks.attach(dataset, "skipped", [*map(vars, found.skipped), *found.samples.skipped])
    dataset = remarks.attach(dataset, "note", [*found.notes, *([RANDOM] if noisy else [])])
    return _described(with_frequencies(dataset, found.reading, found.bottleneck))


def _tried(function: Functional, x: Samples) -> tuple[tuple[int, ...], bool]:
    """Return the shape of the output for one sample, and whether the output is random."""
    with torch.no_grad():
        return tuple(function(x).shape[1:]), function.is_random(x)


def _variables(found: Found, weight_rtol: float, length: int) -> dict[str, Any]:
    """Return the variables of a profile over layers and samples, with ``length`` singular values."""
    layers, every = found.layers, found.reading.weights
    variables: dict[str, Any] = {
        name: (("layer", "index"), _padded(rows, length)) for name, rows in found.spectra.items()
    }
    columns = {
        "nonlinearity": [layer.nonlinearity for layer in layers],
        "weight_rank": [math.nan if layer.count is None else float(layer.count) for layer in layers],
        **weights.ranks([layer.singular_values for layer in layers], weight_rtol, [one.squared_norm for one in layers]),
    }
    unused = LayerUse(0, (math.nan, math.nan), 0)
    uses = [found.used.get(layer.name, unused) for layer in layers]
    for i, share in enumerate(("95", "99")):
        columns[f"dimension_{share}"] = [float(use.dimensions[i]) for use in uses]
    columns["units"] = [float(use.units) if use.units else math.nan for use in uses]
    columns["dead_units"] = [float(use.dead) if use.units else math.nan for use in uses]
    columns["subnormals"] = [float(usage.subnormals(layer.weight)) for layer in every]
    columns["parameter_norm"] = [_squared_norm(layer) for layer in every]
    variables |= {name: ("layer", column) for name, column in columns.items()}
    samples = found.samples
    variables["jacobian_singular_values"] = ("sample", "index"), _padded(samples.jacobian_singular_values, length)
    variables["log_pseudo_determinant"] = "sample", samples.log_pseudo_determinant.numpy()
    variables["ntk_trace"] = "sample", samples.ntk_trace.numpy()
    return variables


def _attrs(found: Found, settings: Settings) -> dict[str, Any]:
    """Return the tolerances and settings of a profile, and its bottleneck."""
    bottleneck, chunk_size = found.bottleneck, settings.chunk_size
    attrs: dict[str, Any] = {
        "rtol": RTOL,
        "weight_rtol": settings.weight_rtol,
        "atol": bottleneck.atol,
        "near_one": list(bottleneck.near_one),
        "min_layers": bottleneck.min_layers,
        "chunk_size": chunk_size,
        "max_values": settings.max_values,
        "jacobian_samples": len(settings.samples),
        "method": METHOD,
        "floor": found.floor,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "bottleneck_reason": bottleneck.reason,
        "bnrank_version": __version__,
        "how": (
            f"forward passes in eval mode, at most {chunk_size} samples at a time; spectra in float64, activations and "
            f"preactivations by {METHOD} over blocks, not centered, values below {found.floor:g} of the largest "
            "are rounding noise"
        ),
    }
    for name in ("rank", "start", "end", "gap"):
        value = getattr(bottleneck, name)
        if value is not None and math.isfinite(value):
            attrs[f"bottleneck_{name}"] = value
    return attrs


def describe(profile: xr.Dataset) -> list[str]:
    """Return lines of text on the modules or tensors skipped by a profile, and on assumptions.

    Parameters
    ----------
    profile : xarray.Dataset
        The result of :func:`profile`.

    Returns
    -------
    list of str
        One line per skipped module and per note. Of a profile without samples: what it covers, one line per reason for
        which tensors were not measured, and one per note.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> ds = profile(nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)), torch.randn(50, 2))
    >>> describe(ds)
    ['skipped 1 (PReLU): activation with a learned slope and no weight matrix']
    """
    known = "bottleneck_reason" in getattr(profile, "attrs", ())
    validation.expect(known, "profile", "a dataset without 'bottleneck_reason'", "the result of bnrank.profile")
    if "tensors" in profile.attrs:
        return weights.summary(profile)
    skipped = [Skipped(**row) for row in remarks.rows(profile, "skipped")]
    notes = remarks.rows(profile, "note")
    return [f"skipped {part}" for part in skipped] + [f"{row['name']}: {row['note']}" for row in notes]


def _described(dataset: xr.Dataset) -> xr.Dataset:
    for name in dataset.variables:
        if name in _LONG_NAMES:
            units = {"units": "1"} if name in dataset.data_vars else {}
            dataset[name].attrs |= {"long_name": _LONG_NAMES[str(name)], **units}
    return dataset


def _padded(rows: Sequence[Tensor | None] | Tensor, length: int) -> np.ndarray:
    """Return rows of different lengths as (rows, length): cut, or padded with NaN; None is all NaN."""
    out = np.full((len(rows), length), np.nan)
    rows = rows.cpu() if isinstance(rows, Tensor) else rows
    for line, row in zip(out, rows, strict=True):
        if row is not None:
            line[: len(row)] = row[:length].cpu()
    return out


def _squared_norm(layer: Layer) -> float:
    given = (p.detach() for p in (layer.weight, layer.bias) if p is not None)
    return sum(float(torch.linalg.vector_norm(p, dtype=torch.float64)) ** 2 for p in given)


def _target(y: Data, n: int, shape: tuple[int, ...]) -> Tensor:
    """Return targets of n outputs of a shape: real numbers, (n, d_out), or class indices, one for each distribution."""
    d_out = math.prod(shape)
    try:
        if not isinstance(y, Tensor | list | tuple):
            y = validation.from_array(np.asanyarray(y), "y")
        y = validation.dense(torch.as_tensor(y), "y")
    except (TypeError, ValueError, RuntimeError) as error:
        if str(error).startswith("y: "):
            raise
        expected = "targets, floating point of shape (N, d_out), or class indices"
        raise TypeError(f"y: got {validation.describe(y)}, expected {expected}") from error
    if y.is_floating_point():
        y = validation.targets(y, d_out)
        y = validation.samples(y, "y", ndim=None if y.ndim > 2 else 2).flatten(1)
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


def _cost(function: Functional, x: Samples, y: Tensor, chunk_size: int) -> float:
    regression = y.is_floating_point()
    loss, dtype = (nn.functional.mse_loss, torch.float64) if regression else (nn.functional.cross_entropy, torch.int64)
    total = 0.0
    with torch.no_grad():
        for part, target in zip(x.split(chunk_size), y.split(chunk_size), strict=True):
            out, target = function(part).flatten(1).double(), target.to(function.device, dtype)
            if not regression:
                out, target = out.reshape(target.numel(), -1), target.flatten()
            total += float(loss(out, target, reduction="sum"))
    return total / (len(y) if regression else y.numel())
