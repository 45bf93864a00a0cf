"""Singular values of weights, activations and preactivations."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from bnrank._core import heap, validation
from bnrank._core.deadline import Deadline
from bnrank._core.linalg import effective_rank, entropy_rank, rank, stable_rank, stable_rank_from
from bnrank.measures.accumulating import METHODS, Accumulator, Pieces
from bnrank.measures.convolution import Size, conv_singular_values, per_dimension
from bnrank.measures.operators import operator_values
from bnrank.networks.functional import Functional, example
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading import Layer, Reading, Taker, leaving_out, named, read_function, read_or, stream
from bnrank.networks.reasons import Skipped, only_weight

__all__ = ["Accumulator", "Spectra", "activation_singular_values", "conv_singular_values", "effective_rank", "rank"]
__all__ += ["entropy_rank", "singular_values", "stable_rank", "weight_singular_values"]

WHICH = ("activations", "preactivations")
MAX_ENTRIES = 2**27  # entries of one R factor or Gram matrix: 1 GiB
MAX_TOGETHER = 2**24  # entries of all those in memory at a time, if there are several: 128 MiB
NO_DEADLINE = Deadline()
Key = tuple[int, str]  # the number of a layer from 0, and "activations" or "preactivations"


class Spectra(dict[str, Tensor]):
    """Singular values per layer, ``{layer name: tensor}``, with skipped layers and assumptions.

    Attributes
    ----------
    skipped : tuple of Skipped
        Modules with parameters that were not measured, each with the reason.
    notes : dict
        Layer name -> assumption made for that layer.
    floor : float
        Values below ``floor`` times the largest of their layer are round-off.
    squared_norms : dict
        Layer name -> squared Frobenius norm, of layers whose values are bounds.
    """

    def __init__(self, values: Mapping[str, Tensor], skipped: Sequence[Skipped] = (), floor: float = 0.0) -> None:
        super().__init__(values)
        self.skipped, self.floor = tuple(skipped), floor
        self.notes: dict[str, str] = {}
        self.squared_norms: dict[str, float] = {}

    def ranks(self, rtol: float = 0.1) -> tuple[int, ...]:
        """Return the number of singular values above ``rtol`` times the largest of the layer, for every layer.

        Examples
        --------
        >>> Spectra({"a": torch.tensor([5.0, 1.0, 0.1]), "b": torch.ones(3)}).ranks()
        (2, 3)
        """
        return tuple(int(rank(values, rtol)) for values in self.values())

    def stable_ranks(self) -> tuple[float, ...]:
        """Return the stable rank ||W_l||_F^2 / ||W_l||_op^2 of every layer; NaN for a layer of zeros.

        Examples
        --------
        >>> Spectra({"a": torch.tensor([2.0, 1.0]), "b": torch.ones(2)}).stable_ranks()
        (1.25, 2.0)
        """
        norms = self.squared_norms
        return tuple(
            stable_rank_from(norms[name], values) if name in norms else float(stable_rank(values))
            for name, values in self.items()
        )


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of (batches of) real or complex matrices in float64, descending.

    Examples
    --------
    >>> import torch, bnrank
    >>> bnrank.spectra.singular_values(torch.diag(torch.tensor([3.0, 4.0]))).tolist()
    [4.0, 3.0]
    """
    return _svdvals(matrix, "matrix")


def _svdvals(matrix: Tensor, name: str) -> Tensor:
    matrix, expected = validation.dense(validation.kind(matrix, name, Tensor), name).detach(), "(..., n_out, n_in)"
    validation.expect(matrix.dtype != torch.bool, name, matrix, f"numbers {expected}", TypeError)
    validation.expect(matrix.ndim >= 2, name, f"shape {tuple(matrix.shape)}", f"numbers {expected}")
    matrix = validation.finite(matrix, name).to(torch.complex128 if matrix.is_complex() else torch.float64)
    values: Tensor = torch.linalg.svdvals(matrix)
    return values


def weight_singular_values(
    net: nn.Module, x: Example | None = None, size: int | Sequence[int] | None = None, reading: Reading | None = None
) -> Spectra:
    """Return the singular values of the weight of every layer.

    Linear layers, projections of attention, gates of recurrent layers and embeddings: of W_l, min(n_l, n_{l-1}) values;
    of a parametrized layer, of the effective weight. Convolutions: of the operator on images of the size of
    the layer's input, with the padding that it has, see :func:`~bnrank.measures.operators.layer_singular_values`:
    exact where affordable, else upper bounds, which ``notes`` names. A flattened kernel counts once for each patch
    where patches do not overlap, and is not used otherwise.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers.
    x : Tensor or ndarray, optional
        Samples, (N, ...): gives the order of the layers and the sizes of the images.
    size : int or sequence of int, optional
        Size of the images in every convolution, where ``x`` is not given.
    reading : Reading, optional
        The result of ``read(net, x)``.

    Returns
    -------
    Spectra
        ``{layer name: (K,) tensor}``, float64, descending. Convolutions of unknown image size and unread modules are in
        ``.skipped``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or a weight is not finite.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 5, 2], init=0.0)
    >>> weight_singular_values(net)["layers.1"]
    tensor([0., 0.], dtype=torch.float64)
    """
    if size is not None:
        per_dimension(size, "size")
    reading = read_or(reading, net, x)
    spectra = Spectra({}, reading.unread, floor=1e-15)
    for layer in reading.weights:
        name, note = layer.name, ""
        if "conv" in layer.kind:
            note = _add_operator(spectra, layer, size)
        else:
            spectra[name] = _svdvals(layer.weight, f"net: the weight of layer {name!r}")
        if name in spectra and (note or layer.reason):
            spectra.notes[name] = "; ".join(filter(None, [note, layer.reason and only_weight(layer.reason)]))
    return spectra


def _add_operator(spectra: Spectra, layer: Layer, size: Size | None) -> str:
    """Add the singular values of a convolution, or the reason why there are none; return a note on the values."""
    values, norm, note = operator_values(layer, size)
    if values is None:
        spectra.skipped += (Skipped.part(layer.name, layer.module, f"weight_singular_values: {note}"),)
        return ""
    spectra[layer.name] = values
    if norm is not None:
        spectra.squared_norms[layer.name] = norm
    return note


def activation_singular_values(
    net: nn.Module,
    x: Example,
    *,
    which: str = "activations",
    method: str = "qr",
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    reading: Reading | None = None,
) -> Spectra:
    """Return the singular values of N^{-1/2} a_l(X) or N^{-1/2} a~_l(X) for every layer l (T23).

    a_l(X), (N, n_l), has one sample per row and is not centered. In an MLP a_l = sigma(a~_l) and a_L = f(x). In any
    other module a_l is the tensor that enters the next layer read, after anything in between (normalization, pooling, a
    sum), and the module's output for the last one; a~_l is the output of the layer. Where the next layer reads
    something else, or the module's output does not follow from the last layer, or follows also by way of a layer
    without observed values, a_l is a~_l. Tensors with more dimensions are flattened to (N, features): an image of C x H
    x W is one vector, flattened in the module or not.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with linear or convolutional layers.
    x : Tensor or ndarray
        Samples, (N, ...).
    which : "activations" or "preactivations"
        a_l or a~_l.
    method : "qr" or "gram"
        How blocks of samples are combined, see :class:`Accumulator`. Both need memory for min(N, n_l) x n_l (qr) or
        n_l x n_l (gram) numbers, not for N x n_l.
    chunk_size : int
        Samples per forward pass.
    dtype : torch.dtype
        Precision of the forward pass; the spectra are computed in float64 in any case.
    reading : Reading, optional
        The result of ``read(net, x)``.

    Returns
    -------
    Spectra
        ``{layer name: (min(N, n_l),) tensor}``, float64, descending; ``.floor`` is 1e-15 for "qr" and 1e-8 for
        "gram", and at least the resolution of ``dtype``. Layers too wide for 2^27 numbers are in ``.skipped``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, no layer is found, or the module cannot be run on x in ``dtype``.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 6, 2], seed=0)
    >>> {name: len(s) for name, s in activation_singular_values(net, torch.ones(20, 3)).items()}
    {'layers.0': 6, 'layers.1': 2}
    """
    validation.choice(which, "which", WHICH)
    validation.choice(method, "method", METHODS)
    given = example(net, x, inputs=True)
    function = Functional(net, dtype, whole=given)
    reading = read_function(function, given) if reading is None else validation.kind(reading, "reading", Reading)

    def measured(reading: Reading) -> ActivationSpectra:
        return ActivationSpectra(function, given, reading, (which,), method).measure(chunk_size=chunk_size)

    found, reading = leaving_out(function, given, reading, measured)
    return Spectra(found.values[which], (*reading.skipped, *found.skipped[which]), found.floor)


class ActivationSpectra(Taker):
    """Spectra of activations and preactivations, in as many passes over the data as the memory needs.

    Layers are measured together as long as what is held of them fits in 128 MiB; a single one may have eight times as
    much. A pass that is cut off gives no spectra.

    Parameters
    ----------
    function, x : Functional, Tensor or Inputs
        The network and all samples.
    reading, method
        As for :func:`activation_singular_values`.
    which : sequence of str
        Some of "activations" and "preactivations".

    Attributes
    ----------
    values, skipped : dict
        For "activations" and "preactivations", singular values by the name of the layer, and the layers that are too
        large by themselves.
    late : dict
        Why there are no values of a layer for lack of time, by the number of the layer and these names.
    floor : float
        As of :class:`Spectra`.
    samples : int
        Number of samples for which the further measures of :meth:`measure` were run.
    """

    def __init__(
        self, function: Functional, x: Samples, reading: Reading, which: Sequence[str] = WHICH, method: str = "qr"
    ) -> None:
        self.function, self.x, self.reading, self.method, self.samples = function, x, reading, method, len(x)
        self.floor = max(1e-8 if method == "gram" else 1e-15, torch.finfo(function.dtype).eps)
        self.values: dict[str, dict[str, Tensor]] = {kind: {} for kind in which}
        self.skipped: dict[str, list[Skipped]] = {kind: [] for kind in which}
        self._waiting = {(i, kind) for i in range(len(reading.layers)) for kind in which}
        self._pieces: dict[Key, Pieces] = {}  # of those that this pass measures

    def measure(self, also: Sequence[Taker] = (), chunk_size: int = 4096, deadline: Deadline = NO_DEADLINE) -> Self:
        """Compute the spectra, and let further measures, ``also``, take the values of the first pass; return this.

        With a deadline that pass is theirs alone. Without layers there is no pass.
        """
        samples, layers, found = len(self.x), self.reading.layers, dict[Key, Tensor]()
        passes: dict[str, Any] = {"chunk_size": chunk_size, "over": deadline.over}
        also, done = also if layers else (), samples
        while (self._waiting or also) and done == samples:
            takers: list[Taker] = [*also] if also and deadline.is_set else [self, *also]
            self._room = MAX_TOGETHER
            done = 0 if deadline.over() else stream(self.function, self.x, self.reading, takers, **passes)
            self.samples, also = (done if also else self.samples), ()
            for i, kind in sorted(self._pieces, key=lambda key: (key[0], key[1] == "activations")):
                if done < samples or deadline.over():
                    break
                try:  # errors name the first layer
                    found[i, kind] = self._pieces.pop((i, kind)).singular_values() / math.sqrt(samples)
                except ValueError as error:
                    raise ValueError(str(error).replace("piece", f"net: {named(layers, i, kind)}", 1)) from error
                heap.give_back()
            self._waiting -= found.keys()
        for i, kind in sorted(found):
            self.values[kind][layers[i].name] = found[i, kind]
        waiting = [(key, self._pieces.pop(key, None)) for key in sorted(self._waiting)]
        self.late = {key: deadline.cut(done if begun else 0, samples) for key, begun in waiting}
        return self

    def activations(self, layer: int, values: Tensor) -> None:
        """Add a block of activations."""
        self._add((layer, "activations"), values.flatten(1))

    def preactivations(self, layer: int, values: Tensor) -> None:
        """Add a block of preactivations."""
        self._add((layer, "preactivations"), values.flatten(1))

    def _add(self, key: Key, rows: Tensor) -> None:
        if key in self._waiting and key not in self._pieces:  # it may wait for another pass
            width = rows.shape[1]
            held = width * (width if self.method == "gram" else min(width, len(self.x)))
            if held > MAX_ENTRIES:
                self._skip(key, f"{width} features for {len(self.x)} samples need {held} numbers")
            elif held <= self._room or not self._pieces:
                self._pieces[key] = Pieces(self.method)
                self._room -= held
        if key in self._pieces:
            self._pieces[key].add(rows)

    def _skip(self, key: Key, need: str) -> None:
        """Note that a layer is too large by itself."""
        self._waiting.remove(key)
        layer, kind = self.reading.layers[key[0]], key[1]
        reason = f"{kind}: {need}, the limit is {MAX_ENTRIES}"
        self.skipped[kind].append(Skipped.part(layer.name, layer.module, reason))
