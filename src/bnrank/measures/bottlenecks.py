"""The bottleneck: a run of layers with k singular values near 1 and the others small."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table, remarks
from bnrank._core.results import Printed
from bnrank._core.validation import Data
from bnrank.measures import contraction, spectra
from bnrank.measures.nonlinearities import Ratio
from bnrank.networks.functional import Functional, check_finite, example
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading import Reading, check_read, leaving_out, read_function
from bnrank.networks.reasons import Skipped

__all__ = ["Bottleneck", "LayerStructure", "Structure", "bottleneck", "detect", "ranks"]


@dataclass(frozen=True)
class Bottleneck(Printed):
    """A run of layers with the same clear gap in their singular values.

    Attributes
    ----------
    rank : int or None
        k, the number of singular values near 1 in every layer of the run; 0 where all weights of the run are small;
        None where no run is long enough (undetermined).
    start, end : int or None
        First and last layer of the run, counted from 1.
    gap : float or None
        s_k / s_{k+1} in the middle layer, (start + end) // 2; s_0 counts as 1; infinite where s_{k+1} is 0 or does not
        exist.
    values : tuple of float
        All singular values of the middle layer.
    counts : tuple of int
        Number of singular values above ``atol`` in every layer.
    atol, near_one, min_layers
        The tolerances of the search.
    reason : str
        Why the rank is undetermined; empty if it is determined.
    """

    rank: int | None
    start: int | None
    end: int | None
    gap: float | None
    values: tuple[float, ...]
    counts: tuple[int, ...]
    atol: float
    near_one: tuple[float, float]
    min_layers: int
    reason: str = ""

    def __str__(self) -> str:
        if self.rank is None:
            return self.reason
        small = "" if self.rank else f" (no singular value above {self.atol:g})"
        return f"rank {self.rank}{small}, layers {self.start} to {self.end}"


def detect(
    values: Data | Mapping[str, Tensor] | Sequence[Any],
    *,
    atol: float = 0.1,
    near_one: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
) -> Bottleneck:
    """Return the longest run of layers in which k singular values are near 1 and the others small (T27).

    A layer is clear, with rank k, if its k largest singular values lie in ``near_one`` and all others are at most
    ``atol``. The bottleneck is the longest run of clear layers with the same k; ties go to the smaller rank, then to
    the earlier run.

    Parameters
    ----------
    values : array of shape (layer, index), mapping, or one sequence per layer
        Singular values of the weights, such as ``profile.weight_singular_values`` or the result of
        :func:`~bnrank.measures.spectra.weight_singular_values`. NaN is padding; a layer of NaN only is not clear.
    atol : float
        Values up to ``atol`` are small (Jacot2023b figure 1 uses 0.1).
    near_one : tuple of float
        Range of values near 1.
    min_layers : int
        Minimum length of a run, at most the depth: a single layer, such as a narrow last one, is not sufficient
        evidence.

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
    rows, limits = _rows(values), limits_of(atol, near_one, min_layers)
    return _longest(rows, limits, len(rows), [False] * len(rows))


class Limits(NamedTuple):
    """The tolerances of a search, see :func:`detect`."""

    atol: float
    near_one: tuple[float, float] = (0.5, 2.0)
    min_layers: int = 2


def limits_of(atol: float, near_one: tuple[float, float], min_layers: int) -> Limits:
    """Return the tolerances of a search, see :func:`detect`; raise TypeError or ValueError if one is out of range."""
    atol = validation.number(atol, "atol", 0.0)
    if not isinstance(near_one, tuple | list) or len(near_one) != 2:
        raise TypeError(f"near_one: got {validation.describe(near_one)}, expected two numbers, (lowest, highest)")
    low, high = (validation.number(v, f"near_one[{i}]", 0.0, strict=True) for i, v in enumerate(near_one))
    ordered = atol < low <= 1 <= high
    validation.expect(ordered, "near_one", f"{(low, high)}", f"atol = {atol:g} < lowest <= 1 <= highest")
    return Limits(atol, (low, high), validation.integer(min_layers, "min_layers"))


def of_network(
    function: Functional, x: Samples, reading: Reading, values: Mapping[str, Tensor], limits: Limits, chunk_size: int
) -> Bottleneck:
    """Return the bottleneck among the layers that were read in order, or all weights where none was, see `detect`.

    The other weights belong to the depth: a single layer in order is no evidence beside them. Layers of full rank, all
    of whose singular values are near 1, show a narrow place only where each reads what the one before returns; side by
    side, as several heads, they are no run.

    Small weights let nothing pass a chain of layers, but not a residual path beside them. So rank 0 needs samples at
    which all that enters later layers, and the outputs, vary by at most ``atol`` times what enters the first of these
    layers. Else the other runs count. Where what enters them does not vary, the data show neither: it is undetermined.

    Parameters
    ----------
    function, x : Functional, Tensor or Inputs
        The network and samples.
    reading : Reading
        The layers.
    values : mapping
        Singular values by the name of a layer, descending; one without them is not clear.
    limits : Limits
        The tolerances.
    chunk_size
        Samples per forward pass, at most.
    """
    counted = reading.layers or reading.weights
    rows = [values.get(layer.name, torch.zeros(0)).cpu().numpy() for layer in counted]
    longest = partial(_longest, limits=limits, depth=len(reading.weights), apart=[layer.apart for layer in counted])
    nearest = longest(rows)
    if nearest.rank != 0 or nearest.start is None:
        return nearest
    varied = contraction.variations(function, x, reading, nearest.start, chunk_size)
    without_small = longest([row if (row > limits.atol).any() else row[:0] for row in rows])
    return _confirmed(nearest, without_small, varied)


def _confirmed(small: Bottleneck, without_small: Bottleneck, varied: contraction.Variations) -> Bottleneck:
    """Return a bottleneck of rank 0 if what varies before and after its layers confirms it.

    Else return the one without layers of small weights, or one of rank None, with the reason, where there is none or
    the samples show neither.
    """
    if varied.before and varied.after <= small.atol * varied.before:
        return small
    if without_small.rank and varied.before:
        return without_small
    if varied.before:
        why = (
            f"what follows them varies with x, {varied.after / varied.before:.2g} times as much as what enters them: "
            "it passes beside their weights, or is scaled up"
        )
    else:
        why = (
            f"the samples do not differ where layer {small.start} begins, so they do not show whether anything passes "
            "beside these weights; pass an x with samples that differ there"
        )
    reason = f"no singular value of layers {small.start} to {small.end} is above {small.atol:g}, but {why}"
    return replace(small, rank=None, start=None, end=None, gap=None, values=(), reason=reason)


def _longest(rows: Sequence[np.ndarray], limits: Limits, depth: int, apart: Sequence[bool]) -> Bottleneck:
    """Return the longest run of clear layers, whose values descend, in a network of ``depth`` layers, these and others.

    Layers of full rank end a run if ``apart``: the next reads other values.
    """
    counts = tuple(int((row > limits.atol).sum()) for row in rows)
    low, high = limits.near_one
    lengths = [0] * len(rows)  # of the run that ends with a layer
    for i, (row, k) in enumerate(zip(rows, counts, strict=True)):
        if len(row) and ((row[:k] >= low) & (row[:k] <= high)).all():
            beside = apart[i - 1] and len(rows[i - 1]) == len(row) == k
            lengths[i] = 1 + (lengths[i - 1] if i > 0 and counts[i - 1] == k and not beside else 0)
    end = min(range(len(rows)), key=lambda i: (-lengths[i], counts[i]))
    length, shortest = lengths[end], min(limits.min_layers, depth)
    if length < shortest:
        plural = "" if length == 1 else "s"
        reason = f"the longest run of layers with the same clear gap has {length} layer{plural}, expected {shortest}"
        return Bottleneck(None, None, None, None, (), counts, *limits, reason if length else "no layer has a clear gap")
    rank, start = counts[end], end - length + 1
    middle = rows[(start + end) // 2]
    above = middle[rank - 1] if rank else 1.0
    below = middle[rank] if rank < len(middle) else 0.0
    gap = float(above / below) if below > 0 else float("inf")
    return Bottleneck(rank, start + 1, end + 1, gap, tuple(map(float, middle)), counts, *limits)


def ranks(
    values: Data, *, atol: float = 0.1, near_one: tuple[float, float] = (0.5, 2.0), min_layers: int = 2
) -> np.ndarray:
    """Return the bottleneck rank along all leading dimensions of (..., layer, index), such as (member, step).

    Parameters
    ----------
    values : array of shape (..., layer, index)
        Singular values of the weights; NaN is padding.
    atol, near_one, min_layers
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
    validation.expect(array.ndim >= 2, "values", f"shape {array.shape}", "(..., layer, index)")
    out = np.full(array.shape[:-2], np.nan)
    for at in np.ndindex(out.shape):
        found = detect(array[at], atol=atol, near_one=near_one, min_layers=min_layers).rank
        out[at] = np.nan if found is None else found
    return out


@dataclass(frozen=True)
class LayerStructure:
    """One layer compared with the bottleneck.

    Attributes
    ----------
    index, name, kind
        As in :class:`~bnrank.networks.reading.Layer`.
    inside : bool
        Whether the layer is in the bottleneck.
    singular_values : Tensor or None
        Singular values of W_l, descending; for a convolution, of the operator on images of its input size
        (T28). None where they cannot be computed.
    count : int or None
        Number of singular values above the tolerance.
    distance : float
        ||W_l - U V^T||_F for the nearest partial isometry U V^T of rank min(k, n_l, n_{l-1}): U and V are the first k
        singular vectors, the distance is (sum_{i<=k} (s_i - 1)^2 + sum_{i>k} s_i^2)^{1/2}. NaN where no k was found.
    rest : float
        s_{k+1}, the operator norm of W_l without its first k singular values; 0 where it has k or fewer.
    bias_norm : float
        ||b_l||; 0 without a bias.
    nonlinearity : float
        ||Z_l - sigma(Z_l)||_F / ||Z_l||_F over the sample, Z_l the preactivations; NaN for the last layer.
    preactivation_values, activation_values : Tensor or None
        Singular values of N^{-1/2} a~_l(X) and N^{-1/2} a_l(X), descending.
    note : str
        Assumptions and omissions.
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

    @property
    def has_rest(self) -> bool:
        """Whether s_{k+1} exists: a layer of k inputs or outputs has no more than k singular values."""
        values = self.singular_values
        return values is not None and len(values) > 0 and float(values[-1]) <= self.rest


@dataclass(frozen=True)
class Structure(Printed):
    """The bottleneck of a network and all of its layers; ``print`` shows a table.

    Attributes
    ----------
    kind : str
        A high-rank part consists of layers with more than k singular values above the tolerance. "full": one before and
        one after the bottleneck, and k < min(d_in, d_out); "half": before only, or k >= d_out; "reversed half": after
        only, or k >= d_in; "uniform": neither; "collapsed": k = 0, where what follows the bottleneck varies by at most
        ``atol`` times what enters it, and that does vary over the samples; or "undetermined".
    layers : tuple of LayerStructure
        One per layer that was read, in order.
    bottleneck : Bottleneck
        The run of layers, with the tolerances.
    d_in, d_out : int
        Numbers of inputs and outputs.
    skipped : tuple of Skipped
        Modules with parameters that were not read, and layers without one of the measures, each with the reason.
    """

    kind: str
    layers: tuple[LayerStructure, ...]
    bottleneck: Bottleneck
    d_in: int
    d_out: int
    skipped: tuple[Skipped, ...]

    @property
    def rank(self) -> int | None:
        """k, or None if undetermined (see ``bottleneck.reason``)."""
        return self.bottleneck.rank

    @property
    def start(self) -> int | None:
        """First layer of the bottleneck, counted from 1."""
        return self.bottleneck.start

    @property
    def end(self) -> int | None:
        """Last layer of the bottleneck, counted from 1."""
        return self.bottleneck.end

    def _content(self) -> list[Part]:
        rows = [
            {
                "layer": f"{layer.index}{'*' * layer.inside}",
                "above": layer.count,
                "distance": layer.distance,
                "s_k+1": layer.rest if layer.has_rest else None,
                "bias": layer.bias_norm,
                "nonlinearity": layer.nonlinearity,
                "name": layer.name,
            }
            for layer in self.layers
        ]
        shown: list[Part] = [f"bottleneck: {self.kind}, {self.bottleneck}", Table("Layers (* in the bottleneck)", rows)]
        return shown + remarks((f"skipped {part}" for part in self.skipped), "skipped")


def bottleneck(
    net: nn.Module,
    x: Example,
    *,
    rank: int | None = None,
    atol: float = 0.1,
    near_one: tuple[float, float] = (0.5, 2.0),
    min_layers: int = 2,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
) -> Structure:
    """Return the bottleneck of a network and the distance of every layer from its ideal form (T27).

    The ideal bottleneck layer is a partial isometry: k singular values 1, the others 0, no bias, and preactivations
    that the nonlinearity leaves unchanged (T21; Jacot2023a figure 1, Jacot2023b theorem 6).

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers; it is not modified.
    x : Tensor or ndarray
        Samples, (N, ...).
    rank : int, optional
        Use this rank for distances instead of the detected one.
    atol, near_one, min_layers
        Tolerances, see :func:`detect`.
    chunk_size, dtype
        As in :func:`bnrank.spectra.activation_singular_values`.

    Returns
    -------
    Structure
        Rank, first and last layer, whether it is a full or half bottleneck, and the measures of every layer.

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
    >>> found = bottleneck(net, torch.rand(10, 3))
    >>> found.rank, found.start, found.end, found.kind
    (1, 2, 3, 'full')
    >>> [round(layer.distance, 2) for layer in found.layers]            # (2^2 + 3^2 + 3^2)^{1/2} outside
    [4.69, 0.0, 0.0, 4.69]
    """
    check_finite(net)
    samples = example(net, x, inputs=True)
    limits = limits_of(atol, near_one, min_layers)
    rank = validation.optional(validation.integer, rank, "rank", 0)
    function = Functional(net, dtype, whole=samples)
    reading = read_function(function, samples)
    check_read(function, reading, layers=not reading.weights)
    d_in, d_out = samples[0].numel(), function(samples[:2])[0].numel()

    def measured(reading: Reading) -> tuple[spectra.ActivationSpectra, dict[str, float]]:
        ratio, acting = Ratio(reading), spectra.ActivationSpectra(function, samples, reading)
        return acting.measure([ratio], chunk_size), ratio.ratios()

    (acting, ratios), reading = leaving_out(function, samples, reading, measured)
    weights = spectra.weight_singular_values(net, reading=reading)
    place = of_network(function, samples, reading, weights, limits, chunk_size)
    inside = range(place.start or 1, (place.end or 0) + 1)
    unobserved = {layer.name for layer in reading.unobserved}
    skipped = [s for part in (weights.skipped, *acting.skipped.values()) for s in part if s.name not in unobserved]
    before, after = acting.values["preactivations"], acting.values["activations"]
    layers = []
    for layer in reading.weights:
        name, values = layer.name, weights.get(layer.name)
        identity = (layer.index, name, layer.kind, layer.index in inside)
        count = None if values is None else int((values > limits.atol).sum())
        of_weight = (values, count, *_distance(values, place.rank if rank is None else rank))
        bias_norm = 0.0 if layer.bias is None else float(layer.bias.detach().double().norm())
        of_data = (ratios.get(name, math.nan), before.get(name), after.get(name))
        notes = [weights.notes.get(name), *(s.reason for s in skipped if s.name == name)]
        note = "; ".join(filter(None, notes))
        layers.append(LayerStructure(*identity, *of_weight, bias_norm, *of_data, note))
    return Structure(_kind(place, inside, d_in, d_out), tuple(layers), place, d_in, d_out, tuple(skipped))


def _distance(values: Tensor | None, rank: int | None) -> tuple[float, float]:
    """Return the distance to the nearest partial isometry of a rank and s_{k+1}."""
    if values is None or rank is None:
        return math.nan, math.nan
    ideal = (torch.arange(len(values), device=values.device) < rank).double()
    return float((values - ideal).norm()), float(values[rank]) if rank < len(values) else 0.0


def _kind(place: Bottleneck, inside: range, d_in: int, d_out: int) -> str:
    if not place.rank:
        return "undetermined" if place.rank is None else "collapsed"
    before = place.rank < d_in and any(count > place.rank for count in place.counts[: inside.start - 1])
    after = place.rank < d_out and any(count > place.rank for count in place.counts[inside.stop - 1 :])
    return {(True, True): "full", (True, False): "half", (False, True): "reversed half"}.get((before, after), "uniform")


def _rows(values: Any) -> list[np.ndarray]:
    values = list(values.values()) if isinstance(values, Mapping) else values
    if isinstance(values, list | tuple):
        rows = [_array(row) for row in values]
    else:
        array = _array(values)
        validation.expect(array.ndim == 2, "values", f"shape {array.shape}", "(layer, index)")
        rows = list(array)
    if not rows or any(row.ndim != 1 for row in rows):
        raise ValueError("values: expected (layer, index), at least one layer with a list of singular values each")
    validation.expect(not any(bool((row < 0).any()) for row in rows), "values", "negative entries", "singular values")
    return [np.sort(row[~np.isnan(row)])[::-1] for row in rows]


def _array(values: Any) -> np.ndarray:
    return np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)
