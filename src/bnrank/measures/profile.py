"""Everything measured of a network on data, in one dataset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._version import __version__
from bnrank.measures import bottleneck, kinks, nonlinearity, ntk, spectra
from bnrank.measures.frequencies import profiled
from bnrank.measures.jacobian import KINK_RTOL, Jacobian
from bnrank.networks.functional import Functional, example, is_plain_mlp, unwrap
from bnrank.networks.reading import Reading, Skipped, capture, read

__all__ = ["describe", "profile"]

MAX_JACOBIAN_WORK = 10**11  # samples x d_in x d_out x min(d_in, d_out)
MAX_NTK_WORK = 2 * 10**10  # samples x d_out x parameters, for modules other than MLP

T = TypeVar("T")

_LONG_NAMES = {
    "weight_singular_values": "singular values of W_l (convolutions: of the circular operator)",
    "activation_singular_values": "singular values of a_l(X) / sqrt(N)",
    "preactivation_singular_values": "singular values of the preactivations a~_l(X) / sqrt(N)",
    "nonlinearity": "||Z_l - sigma(Z_l)||_F / ||Z_l||_F",
    "weight_rank": "number of singular values of W_l above the threshold",
    "parameter_norm": "||W_l||_F^2 + ||b_l||^2",
    "jacobian_singular_values": "singular values of Jf(x)",
    "log_pseudo_determinant": "log |Jf(x)|_+, the sum of the logs of the non-zero singular values",
    "ntk_trace": "Tr Theta(x, x) over all parameters",
    "cost": "cost of the network on (x, y)",
}


@dataclass(frozen=True)
class _Settings:
    rtol: float
    threshold: float
    near: tuple[float, float]
    chunk: int
    jacobian_samples: int
    keep: int
    method: str
    dtype: torch.dtype


def profile(
    net: nn.Module,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    *,
    rtol: float = 1e-6,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    chunk: int = 4096,
    jacobian_samples: int = 100,
    keep: int = 4096,
    method: str = "qr",
    dtype: torch.dtype = torch.float64,
) -> xr.Dataset:
    """Measure a network on data, layer by layer and sample by sample.

    Parameters
    ----------
    net : torch.nn.Module
        An MLP or any module with linear or convolutional layers. It is left as it was.
    x : Tensor or ndarray
        Samples, (N, ...), at least 2.
    y : Tensor or ndarray, optional
        (N, d_out) for the mean squared error (1/N) sum_i ||f(x_i) - y_i||^2, or class numbers, (N,), for the mean
        cross-entropy: adds the variable ``cost``.
    rtol : float
        Singular values of a Jacobian above ``rtol`` times its largest count as non-zero.
    threshold : float
        Singular values of a weight above it count for ``weight_rank`` and the bottleneck.
    near : tuple of float
        What counts as near 1 for the bottleneck, see :func:`~bnrank.measures.bottleneck.detect`.
    chunk : int
        Samples per forward pass; bounds the memory.
    jacobian_samples : int
        The variables over ``sample`` are computed at no more than this many samples, spread evenly over x.
    keep : int
        At most this many singular values per layer are kept, the largest; ranks are counted before.
    method : "qr" or "gram"
        How spectra are put together over chunks, see :class:`~bnrank.measures.spectra.Accumulator`.
    dtype : torch.dtype
        Precision of forward and backward passes; spectra are computed in float64 in any case.

    Returns
    -------
    xarray.Dataset
        Over (layer, index): ``weight_singular_values``, ``activation_singular_values``,
        ``preactivation_singular_values`` (the last two over sqrt(N)). Over layer: ``nonlinearity``, ``weight_rank``,
        ``parameter_norm`` (squared). Over (sample, index): ``jacobian_singular_values``. Over sample:
        ``log_pseudo_determinant``, ``ntk_trace``. Coordinates: ``layer`` (1..L), ``layer_name``, ``layer_kind``,
        ``index`` (from 1), ``sample`` (row of x). NaN is padding, or what is not defined or was skipped. Attributes
        hold tolerances, N, ``skipped`` and ``notes`` (JSON lists), and ``bottleneck`` (JSON object with rank, start,
        end and gap, null where undetermined; an infinite gap is null too).

        Where a layer is a circular convolution also ``frequency_singular_values`` (layer, frequency, channel) and
        ``frequency_rank`` (layer, frequency), as :mod:`bnrank.frequencies` has them, with coordinates ``multiplicity``
        and ``modulus``, and attribute ``kept_frequencies``, a JSON object with start, end, rank, frequencies and reason
        (:class:`~bnrank.measures.frequencies.Kept`).

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, there are less than 2 samples, no layer is found, or the module cannot be run
        on x.

    Examples
    --------
    >>> import torch, bnrank
    >>> ds = profile(bnrank.MLP([3, 8, 8, 2], seed=0), torch.eye(3))
    >>> dict(ds.sizes)
    {'layer': 3, 'index': 8, 'sample': 3}
    >>> ds.weight_rank.values
    array([3., 7., 2.])
    """
    x = example(net, x, minimum=2)
    settings = _Settings(
        validation.rtol(rtol),
        validation.number(threshold, "threshold", 0.0),
        near,
        validation.integer(chunk, "chunk"),
        validation.integer(jacobian_samples, "jacobian_samples"),
        validation.integer(keep, "keep"),
        validation.choice(method, "method", spectra.METHODS),
        dtype,
    )
    reading = read(net, x)
    probe = next(iter(capture(net, x[:2], reading, 2, dtype)))  # also the error where there is no layer to read
    d_out = int(probe.output[0].numel())
    target = None if y is None else _target(y, x.shape[0], d_out)
    by_layer, attrs = _by_layer(net, x, reading, settings)
    by_sample, unmeasured, notes = _by_sample(net, x, d_out, settings)
    attrs["skipped"] = json.dumps([*json.loads(attrs["skipped"]), *[vars(s) for s in unmeasured]])
    attrs["notes"] = json.dumps([*json.loads(attrs["notes"]), *notes])
    if target is not None:
        by_sample["cost"] = _cost(net, x, target, settings)
    dataset = _assemble(reading, by_layer, by_sample, attrs, _sample_rows(x, settings), settings.keep)
    return profiled.add(dataset, reading)


def describe(profile: xr.Dataset) -> list[str]:
    """Say in lines of text what was left out of a profile, why, and what was assumed.

    Parameters
    ----------
    profile : xarray.Dataset
        What :func:`profile` returned.

    Returns
    -------
    list of str
        One line per module skipped and per note; empty if there is nothing to say.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> ds = profile(nn.Sequential(nn.Linear(2, 3), nn.PReLU(), nn.Linear(3, 1)), torch.eye(2))
    >>> describe(ds)
    ['skipped 1 (PReLU): activation with a learned slope and no weight matrix']
    """
    lines = [
        f"skipped {s['name'] or 'the module itself'} ({s['type']}): {s['reason']}" for s in _json(profile, "skipped")
    ]
    return lines + [f"{n['name']}: {n['note']}" for n in _json(profile, "notes")]


def _json(profile: xr.Dataset, key: str) -> list[dict[str, str]]:
    if key not in profile.attrs:
        raise ValueError(f"profile: got a dataset without the attribute {key!r}, expected what bnrank.profile returns")
    return list(json.loads(profile.attrs[key]))


def _sample_rows(x: Tensor, settings: _Settings) -> np.ndarray:
    count = min(x.shape[0], settings.jacobian_samples)
    return np.linspace(0, x.shape[0] - 1, count).round().astype(np.int64)


def _by_layer(
    net: nn.Module, x: Tensor, reading: Reading, settings: _Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    names = [layer.name for layer in reading.layers]
    weights = spectra.weight_singular_values(net, reading=reading)
    through: dict[str, Any] = {"method": settings.method, "chunk": settings.chunk, "dtype": settings.dtype}
    activations = spectra.activation_singular_values(net, x, reading=reading, **through)
    preactivations = spectra.preactivation_singular_values(net, x, reading=reading, **through)
    ratios = nonlinearity.ratio(net, x, chunk=settings.chunk, dtype=settings.dtype, reading=reading)
    measured = {
        "weight_singular_values": [weights.get(name) for name in names],
        "activation_singular_values": [activations.get(name) for name in names],
        "preactivation_singular_values": [preactivations.get(name) for name in names],
        "nonlinearity": [ratios[name] for name in names],
        "weight_rank": [
            float((weights[name] > settings.threshold).sum()) if name in weights else math.nan for name in names
        ],
        "parameter_norm": [_squared_norm(layer.weight) + _squared_norm(layer.bias) for layer in reading.layers],
    }
    rows = [weights.get(name, torch.zeros(0)) for name in names]
    found = bottleneck.detect(rows, threshold=settings.threshold, near=settings.near)
    skipped = [*reading.skipped, *_new(weights, reading), *_new(activations, reading), *_new(preactivations, reading)]
    version = __version__
    attrs = {
        "title": f"profile of {type(net).__name__}",
        "samples": x.shape[0],
        "rtol": settings.rtol,
        "threshold": settings.threshold,
        "near": list(found.near),
        "min_layers": found.min_layers,
        "chunk": settings.chunk,
        "keep": settings.keep,
        "method": settings.method,
        "floor": activations.floor,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "skipped": json.dumps([vars(s) for s in skipped]),
        "notes": json.dumps([{"name": name, "note": note} for name, note in weights.notes.items()]),
        "bottleneck": json.dumps(
            {
                "rank": found.rank,
                "start": found.start,
                "end": found.end,
                "gap": None if found.gap is None or math.isinf(found.gap) else found.gap,
                "reason": found.reason,
            }
        ),
        "bnrank_version": version,
        "how": (
            f"forward passes in eval mode, {settings.chunk} samples at a time; spectra in float64, activations and "
            f"preactivations by {settings.method} over chunks, not centered, values below {activations.floor:g} of the "
            "largest are rounding noise"
        ),
    }
    return measured, attrs


def _new(found: spectra.Spectra, reading: Reading) -> list[Skipped]:
    return [s for s in found.skipped if s not in reading.skipped]


def _by_sample(
    net: nn.Module, x: Tensor, d_out: int, settings: _Settings
) -> tuple[dict[str, Any], list[Skipped], list[dict[str, str]]]:
    numbers = _sample_rows(x, settings)
    rows = x[torch.from_numpy(numbers).to(x.device)]
    n, d_in = rows.shape[0], rows[0].numel()
    count = sum(p.numel() for p in net.parameters())
    work = n * d_in * d_out * min(d_in, d_out)
    missing = np.full((n, 1), np.nan)
    measured: dict[str, Any] = {
        "jacobian_singular_values": missing,
        "log_pseudo_determinant": missing[:, 0],
        "ntk_trace": missing[:, 0],
    }
    skipped: list[Skipped] = []
    notes: list[dict[str, str]] = []
    closed = is_plain_mlp(unwrap(net))
    values: Tensor | None = None
    traces: Tensor | None = None
    if not x.is_floating_point():
        skipped.append(
            _unmeasured(net, "jacobian_singular_values: x holds integers, there is nothing to differentiate by")
        )
    elif work > MAX_JACOBIAN_WORK:
        skipped.append(_too_much(net, "jacobian_singular_values", work, MAX_JACOBIAN_WORK, n))
    else:
        name = "jacobian_singular_values"

        def differentiate() -> tuple[Jacobian, Tensor | None, Tensor]:
            J = Jacobian(net, rows, dtype=settings.dtype, kink_rtol=None)
            return J, J.ntk_trace if closed else None, J.singular_values

        found = _attempt(net, skipped, name, differentiate)
        if found is not None:
            J, traces, values = found
            note = kinks.describe(J.near_kinks().cpu(), KINK_RTOL, numbers)
            notes += [{"name": name, "note": note}] if note else []
    if traces is None and not closed and n * d_out * count > MAX_NTK_WORK:
        skipped.append(_too_much(net, "ntk_trace", n * d_out * count, MAX_NTK_WORK, n))
    elif traces is None:
        traces = _attempt(net, skipped, "ntk_trace", lambda: ntk.trace(net, rows, dtype=settings.dtype))
    if values is not None:
        measured["jacobian_singular_values"] = values.cpu().numpy()
        determinant = linalg.log_pseudo_determinant(values, rtol=settings.rtol)
        measured["log_pseudo_determinant"] = determinant.cpu().numpy()
    if traces is not None:
        measured["ntk_trace"] = traces.cpu().numpy()
    return measured, skipped, notes


def _attempt(net: nn.Module, skipped: list[Skipped], what: str, measure: Callable[[], T]) -> T | None:
    """Measure, or report what is not defined for this module (no derivative, samples that depend on each other)."""
    try:
        return measure()
    except ValueError as error:
        skipped.append(_unmeasured(net, f"{what}: {error}"))
        return None


def _unmeasured(net: nn.Module, reason: str) -> Skipped:
    return Skipped("", type(net).__name__, reason)


def _too_much(net: nn.Module, what: str, work: int, limit: int, n: int) -> Skipped:
    most = limit // (work // n)
    hint = f"jacobian_samples={most} stays below it" if most else "one sample exceeds it"
    return _unmeasured(net, f"{what}: {n} samples are {work:.1e} operations, the limit is {limit:.0e}; {hint}")


def _squared_norm(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float((tensor.detach().double() ** 2).sum())


def _target(y: Tensor | np.ndarray, n: int, d_out: int) -> Tensor:
    y = torch.as_tensor(y)
    if y.is_floating_point():
        y = validation.samples(y, "y", ndim=None if y.ndim > 2 else 2).flatten(1)
        if y.shape[1] != d_out:
            raise ValueError(f"y: got {y.shape[1]} outputs per sample, expected {d_out} as in the network's output")
    elif y.ndim != 1 or y.dtype == torch.bool or y.is_complex():
        raise TypeError(f"y: got {validation.describe(y)}, expected (N, d_out) floating point or (N,) class numbers")
    elif y.numel() and (int(y.min()) < 0 or int(y.max()) >= d_out):
        raise ValueError(f"y: got class numbers from {int(y.min())} to {int(y.max())}, expected 0 to {d_out - 1}")
    if y.shape[0] != n:
        raise ValueError(f"y: got {y.shape[0]} samples, expected {n} as in x")
    return y


def _cost(net: nn.Module, x: Tensor, y: Tensor, settings: _Settings) -> xr.DataArray:
    function = Functional(net, settings.dtype)
    total = 0.0
    with torch.no_grad():
        for part, target in zip(x.split(settings.chunk), y.split(settings.chunk), strict=True):
            out = function(part).flatten(1).double()
            target = target.to(out.device)
            if y.is_floating_point():
                total += float(((out - target.double()) ** 2).sum())
            else:
                total += float(nn.functional.cross_entropy(out, target.long(), reduction="sum"))
    loss = "mse" if y.is_floating_point() else "cross_entropy"
    return xr.DataArray(total / x.shape[0], attrs={"loss": loss})


def _assemble(
    reading: Reading,
    by_layer: dict[str, Any],
    by_sample: dict[str, Any],
    attrs: dict[str, Any],
    rows: np.ndarray,
    keep: int,
) -> xr.Dataset:
    spectral = [name for name in by_layer if name.endswith("singular_values")]
    lengths = [len(v) for name in spectral for v in by_layer[name] if v is not None]
    length = min(max([*lengths, by_sample["jacobian_singular_values"].shape[1]]), keep)
    attrs["index_cut"] = int(max(lengths) > keep)
    attrs["jacobian_samples"] = len(rows)
    variables: dict[str, Any] = {}
    for name, values in by_layer.items():
        if name in spectral:
            variables[name] = (("layer", "index"), spectra.pad(values, length))
        else:
            variables[name] = ("layer", np.asarray(values, dtype=np.float64))
    for name, values in by_sample.items():
        if name == "cost":
            variables[name] = values
        elif name == "jacobian_singular_values":
            variables[name] = (("sample", "index"), spectra.pad(list(values), length))
        else:
            variables[name] = ("sample", values)
    dataset = xr.Dataset(
        variables,
        coords={
            "layer": np.arange(1, len(reading.layers) + 1),
            "layer_name": ("layer", np.array([layer.name for layer in reading.layers], dtype=str)),
            "layer_kind": ("layer", np.array([layer.kind for layer in reading.layers], dtype=str)),
            "index": np.arange(1, length + 1),
            "sample": rows,
        },
        attrs=attrs,
    )
    for variable in dataset.data_vars:
        dataset[variable].attrs.update({"long_name": _LONG_NAMES[str(variable)], "units": "1"})
    for name, text in (("layer", "layer, 1..L"), ("index", "index of the singular value"), ("sample", "row of x")):
        dataset[name].attrs["long_name"] = text
    return dataset
