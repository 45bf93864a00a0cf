"""The bottleneck: k singular values near 1 in a run of layers, the others small, and what is around it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import nonlinearity, spectra
from bnrank.networks.functional import check_finite, example
from bnrank.networks.reading import Layer, Skipped, capture, read

__all__ = ["Bottleneck", "LayerStructure", "Structure", "detect", "find", "ranks"]


@dataclass(frozen=True)
class Bottleneck:
    """A run of layers with the same clear gap in their singular values.

    Attributes
    ----------
    rank : int or None
        k, the number of singular values near 1 in every layer of the run; 0 for a collapsed network; None where no
        run is long enough (undetermined).
    start, end : int or None
        First and last layer of the run, counted from 1.
    gap : float or None
        s_k / s_{k+1} in the middle layer, (start + end) // 2; s_0 counts as 1; infinite where s_{k+1} is 0 or there
        is none.
    values : tuple of float
        All singular values of the middle layer.
    counts : tuple of int
        For every layer the number of singular values above the threshold.
    threshold, near, min_layers
        The tolerances it was found with.
    reason : str
        Why the rank is undetermined; empty where it is not.
    """

    rank: int | None
    start: int | None
    end: int | None
    gap: float | None
    values: tuple[float, ...]
    counts: tuple[int, ...]
    threshold: float
    near: tuple[float, float]
    min_layers: int
    reason: str = ""


def detect(
    values: Tensor | np.ndarray | Mapping[str, Tensor] | Sequence[Any],
    *,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
) -> Bottleneck:
    """Find the longest run of layers in which k singular values are near 1 and the others small (T27).

    A layer is clear, with rank k, if its k largest singular values lie in ``near`` and all others are at most
    ``threshold``. The bottleneck is the longest run of clear layers of the same k; of several as long, the one of
    the least rank, then the first.

    Parameters
    ----------
    values : array of shape (layer, index), mapping, or one sequence per layer
        Singular values of the weights, such as ``profile.weight_singular_values`` or what
        :func:`~bnrank.measures.spectra.weight_singular_values` returns. NaN is padding; a layer of nothing else is
        not clear.
    threshold : float
        What counts as small (Jacot2023b figure 1 has 0.1).
    near : tuple of float
        What counts as near 1.
    min_layers : int
        Least length of a run, at most the depth: one layer alone, such as a narrow last one, shows nothing.

    Returns
    -------
    Bottleneck
        With rank None where no run is long enough.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or the array has another shape.

    Examples
    --------
    >>> found = detect([[3.0, 1.1, 0.4], [1.1, 1.0, 0.02], [1.0, 0.9, 0.01], [2.5, 0.7, 0.3]])
    >>> found.rank, found.start, found.end, round(found.gap)
    (2, 2, 3, 50)
    """
    threshold, near, min_layers = _validate_tolerances(threshold, near, min_layers)
    rows = _rows(values)
    counts = tuple(int((row > threshold).sum()) for row in rows)
    clear = [_is_clear(row, count, near) for row, count in zip(rows, counts, strict=True)]
    runs: list[tuple[int, int, int]] = []  # length, start, rank
    start = 0
    for key, group in itertools.groupby(zip(clear, counts, strict=True)):
        length = len(list(group))
        if key[0]:
            runs.append((length, start, key[1]))
        start += length
    needed = min(min_layers, len(rows))
    settings = counts, threshold, near, min_layers
    if not runs:
        return Bottleneck(None, None, None, None, (), *settings, "no layer has a clear gap")
    length, first, rank = min(runs, key=lambda run: (-run[0], run[2], run[1]))
    if length < needed:
        reason = f"the longest run of layers with the same clear gap has {length} layer(s), expected {needed}"
        return Bottleneck(None, None, None, None, (), *settings, reason)
    middle = rows[(first + 1 + first + length) // 2 - 1]
    above = middle[rank - 1] if rank else 1.0
    below = middle[rank] if rank < len(middle) else 0.0
    gap = float(above / below) if below > 0 else float("inf")
    return Bottleneck(rank, first + 1, first + length, gap, tuple(map(float, middle)), *settings)


def ranks(
    values: Tensor | np.ndarray,
    *,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
) -> np.ndarray:
    """Detect the bottleneck rank along all leading dimensions of (..., layer, index), such as (member, step).

    Parameters
    ----------
    values : array of shape (..., layer, index)
        Singular values of the weights; NaN is padding.
    threshold, near, min_layers
        As in :func:`detect`.

    Returns
    -------
    ndarray
        (...), float64; NaN where undetermined.

    Raises
    ------
    TypeError, ValueError
        As :func:`detect`.

    Examples
    --------
    >>> ranks(np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.3], [1.0, 0.3]]]))
    array([ 1., nan])
    """
    array = _array(values)
    if array.ndim < 2:
        raise ValueError(f"values: got shape {array.shape}, expected (..., layer, index)")
    out = np.full(array.shape[:-2], np.nan)
    for at in np.ndindex(out.shape):
        found = detect(array[at], threshold=threshold, near=near, min_layers=min_layers).rank
        out[at] = np.nan if found is None else found
    return out


@dataclass(frozen=True)
class LayerStructure:
    """One layer, seen from the bottleneck.

    Attributes
    ----------
    index, name, kind
        As in :class:`~bnrank.networks.reading.Layer`.
    inside : bool
        Whether the layer is in the bottleneck.
    singular_values : Tensor or None
        Of W_l, descending; of a convolution those of the circular operator on images of its size (T28). None where
        they cannot be had.
    count : int or None
        How many of them are above the threshold.
    distance : float
        ||W_l - U V^T||_F for the nearest partial isometry U V^T of rank k, or min(n_l, n_{l-1}) where that is less: U
        and V are the first k singular vectors, the distance is (sum_{i<=k} (s_i - 1)^2 + sum_{i>k} s_i^2)^{1/2}.
        NaN where no k was found.
    rest : float
        s_{k+1}, the operator norm of what is left of W_l without its first k singular values.
    bias_norm : float
        ||b_l||; 0 without one.
    nonlinearity : float
        ||Z_l - sigma(Z_l)||_F / ||Z_l||_F over the sample, Z_l the preactivations; NaN for the last layer.
    preactivation_values, activation_values : Tensor or None
        Singular values of N^{-1/2} a~_l(X) and N^{-1/2} a_l(X), descending.
    note : str
        What was assumed or left out.
    """

    index: int
    name: str
    kind: str
    inside: bool
    singular_values: Tensor | None
    count: int | None
    distance: float
    rest: float
    bias_norm: float
    nonlinearity: float
    preactivation_values: Tensor | None
    activation_values: Tensor | None
    note: str


@dataclass(frozen=True)
class Structure:
    """The bottleneck of a network, and all of its layers seen from there; ``print`` shows a table.

    Attributes
    ----------
    rank : int or None
        k; None where it is undetermined, ``bottleneck.reason`` says why.
    start, end : int or None
        First and last layer of the bottleneck, counted from 1.
    kind : str
        A high-rank part is layers with more than k singular values above the threshold. "full": there is one before
        and one after the bottleneck, and k < min(d_in, d_out); "half": before only, or k >= d_out; "reversed half":
        after only, or k >= d_in; "uniform": neither; "collapsed": k = 0; or "undetermined".
    layers : tuple of LayerStructure
        One per layer that could be read, in order.
    bottleneck : Bottleneck
        How it was found, with the tolerances.
    d_in, d_out : int
        Numbers of inputs and outputs.
    skipped : tuple of Skipped
        Modules with parameters that are not among the layers, each with the reason.
    """

    rank: int | None
    start: int | None
    end: int | None
    kind: str
    layers: tuple[LayerStructure, ...]
    bottleneck: Bottleneck
    d_in: int
    d_out: int
    skipped: tuple[Skipped, ...]

    def __str__(self) -> str:
        found = f"rank {self.rank}, layers {self.start} to {self.end}" if self.start else self.bottleneck.reason
        lines = [f"bottleneck: {self.kind}, {found}", "layer  above  distance   s_k+1    bias  nonlinearity  name"]
        for layer in self.layers:
            mark = "*" if layer.inside else " "
            numbers = f"{layer.distance:9.3g} {layer.rest:8.3g} {layer.bias_norm:7.3g} {layer.nonlinearity:13.3g}"
            count = "-" if layer.count is None else layer.count
            lines.append(f"{layer.index:4d}{mark} {count:>6} {numbers}  {layer.name}")
        return "\n".join(lines + [f"skipped {s.name or s.type}: {s.reason}" for s in self.skipped])


def find(
    net: nn.Module,
    x: Tensor | np.ndarray,
    *,
    rank: int | None = None,
    threshold: float = 0.1,
    near: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
    chunk: int = 4096,
) -> Structure:
    """Find the bottleneck of a network and measure how far every layer is from its ideal form (T27).

    The ideal bottleneck layer is a partial isometry: k singular values 1, the others 0, no bias, and preactivations
    that the nonlinearity leaves as they are (T21; Jacot2023a figure 1, Jacot2023b theorem 6).

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers; it is left as it was.
    x : Tensor or ndarray
        Samples, (N, ...).
    rank : int, optional
        Measure distances to this rank in place of the one found.
    threshold, near, min_layers
        What counts as small, as near 1, and as long enough: see :func:`detect`.
    chunk : int
        Samples per forward pass.

    Returns
    -------
    Structure
        Rank, first and last layer, whether it is a full or half bottleneck, and the numbers of every layer.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, parameters are not finite, no layer is found, or the module cannot be run on x.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 4, 4, 4, 3], bias=False)
    >>> with torch.no_grad():
    ...     for weight in net.weights:
    ...         _ = weight.copy_(3 * torch.eye(*weight.shape))
    ...     for weight in net.weights[1:3]:
    ...         _ = weight.copy_(torch.eye(4) * torch.tensor([1.0, 0, 0, 0]))
    >>> found = find(net, torch.rand(10, 3))
    >>> found.rank, found.start, found.end, found.kind
    (1, 2, 3, 'full')
    >>> [round(layer.distance, 2) for layer in found.layers]            # (2^2 + 3^2 + 3^2)^{1/2} outside
    [4.69, 0.0, 0.0, 4.69]
    """
    check_finite(net)
    x = example(net, x)
    chunk = validation.integer(chunk, "chunk")
    given = None if rank is None else validation.integer(rank, "rank", 0)
    reading = read(net, x)
    d_out = next(iter(capture(net, x[:1], reading))).output[0].numel()
    weights = spectra.weight_singular_values(net, reading=reading)
    preactivations = spectra.preactivation_singular_values(net, x, reading=reading, chunk=chunk)
    activations = spectra.activation_singular_values(net, x, reading=reading, chunk=chunk)
    ratios = nonlinearity.ratio(net, x, reading=reading, chunk=chunk)
    rows = [weights.get(layer.name, torch.zeros(0)) for layer in reading.layers]
    found = detect(rows, threshold=threshold, near=near, min_layers=min_layers)
    left_out = {s.name: s.reason for part in (weights, preactivations, activations) for s in part.skipped}

    def seen(layer: Layer) -> LayerStructure:
        values = weights.get(layer.name)
        distance, rest = _distance(values, found.rank if given is None else given)
        return LayerStructure(
            layer.index,
            layer.name,
            layer.kind,
            found.start is not None and found.end is not None and found.start <= layer.index <= found.end,
            values,
            None if values is None else found.counts[layer.index - 1],
            distance,
            rest,
            0.0 if layer.bias is None else float(layer.bias.detach().double().norm()),
            ratios[layer.name],
            preactivations.get(layer.name),
            activations.get(layer.name),
            "; ".join(note for note in (weights.notes.get(layer.name), left_out.get(layer.name)) if note),
        )

    d_in = x[0].numel()
    layers = tuple(seen(layer) for layer in reading.layers)
    kind = _kind(found, d_in, d_out)
    return Structure(found.rank, found.start, found.end, kind, layers, found, d_in, d_out, reading.skipped)


def _distance(values: Tensor | None, rank: int | None) -> tuple[float, float]:
    """Return the distance to the nearest partial isometry of a rank and s_{k+1}."""
    if values is None or rank is None:
        return float("nan"), float("nan")
    rest = values[rank:]
    distance = ((values[:rank] - 1) ** 2).sum() + (rest**2).sum()
    return float(distance.sqrt()), float(rest[0]) if len(rest) else 0.0


def _kind(found: Bottleneck, d_in: int, d_out: int) -> str:
    if found.rank is None or found.start is None or found.end is None:
        return "undetermined"
    if found.rank == 0:
        return "collapsed"
    before = found.rank < d_in and any(count > found.rank for count in found.counts[: found.start - 1])
    after = found.rank < d_out and any(count > found.rank for count in found.counts[found.end :])
    return {(True, True): "full", (True, False): "half", (False, True): "reversed half"}.get((before, after), "uniform")


def _validate_tolerances(threshold: object, near: Any, min_layers: object) -> tuple[float, tuple[float, float], int]:
    threshold = validation.number(threshold, "threshold", 0.0)
    if not isinstance(near, tuple | list) or len(near) != 2:
        raise TypeError(f"near: got {validation.describe(near)}, expected two numbers, (lowest, highest)")
    low, high = (validation.number(v, f"near[{i}]", 0.0, strict=True) for i, v in enumerate(near))
    if not threshold < low <= 1 <= high:
        raise ValueError(f"near: got {(low, high)}, expected threshold = {threshold:g} < lowest <= 1 <= highest")
    return threshold, (low, high), validation.integer(min_layers, "min_layers")


def _rows(values: Any) -> list[np.ndarray]:
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        rows = [_array(row) for row in values]
    else:
        array = _array(values)
        if array.ndim != 2:
            raise ValueError(f"values: got shape {array.shape}, expected (layer, index)")
        rows = list(array)
    if not rows or any(row.ndim != 1 for row in rows):
        raise ValueError("values: expected (layer, index), at least one layer with a list of singular values each")
    if any(bool((row < 0).any()) for row in rows):
        raise ValueError("values: got negative entries, expected singular values")
    return [np.sort(row[~np.isnan(row)])[::-1] for row in rows]


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


def _is_clear(row: np.ndarray, count: int, near: tuple[float, float]) -> bool:
    return len(row) > 0 and bool(((row[:count] >= near[0]) & (row[:count] <= near[1])).all())
