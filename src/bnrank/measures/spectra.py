"""Singular values of weights, activations and preactivations."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import heap, validation
from bnrank._core.deadline import Deadline
from bnrank._core.linalg import effective_rank, entropy_rank, rank, stable_rank, stable_rank_from
from bnrank.measures.accumulating import METHODS, Accumulator
from bnrank.measures.convolution import conv_singular_values, per_dimension
from bnrank.measures.operators import operator_values
from bnrank.networks.functional import Functional, example
from bnrank.networks.inputs import Example, Samples
from bnrank.networks.reading import Reading, Taker, leaving_out, named, read_function, read_or, stream
from bnrank.networks.reasons import Skipped, only_weight

__all__ = ["Accumulator", "Spectra", "activation_singular_values", "conv_singular_values", "effective_rank", "rank"]
__all__ += ["entropy_rank", "singular_values", "stable_rank", "weight_singular_values"]

WHICH = ("activations", "preactivations")
MAX_ENTRIES = 2**27  # entries of one R factor or Gram matrix: 1 GiB
MAX_TOGETHER = 2**24  # entries of all those in memory at a time, if there are several: 128 MiB
Key = tuple[str, int]  # "activations" or "preactivations", and the number of a layer from 0


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

    def __init__(
        self,
        values: Mapping[str, Tensor],
        skipped: Sequence[Skipped] = (),
        notes: Mapping[str, str] | None = None,
        floor: float = 0.0,
        squared_norms: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(values)
        self.skipped = tuple(skipped)
        self.notes = dict(notes or {})
        self.floor = floor
        self.squared_norms = dict(squared_norms or {})

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


def singular_values(matrix: Tensor, name: str = "matrix") -> Tensor:
    """Return the singular values of (batches of) real or complex matrices in float64, descending.

    NaN and infinity are refused by name.

    Examples
    --------
    >>> import torch, bnrank
    >>> bnrank.spectra.singular_values(torch.diag(torch.tensor([3.0, 4.0]))).tolist()
    [4.0, 3.0]
    """
    name = validation.text(name, "name")
    expected = "numbers (..., n_out, n_in)"
    if validation.kind(matrix, name, Tensor).is_complex():
        parts = validation.real(torch.view_as_real(matrix.detach().resolve_conj()), name, expected)
        matrix = torch.view_as_complex(parts.to(torch.float64).contiguous())
    else:
        matrix = validation.real(matrix, name, expected).to(torch.float64)
    validation.expect(matrix.ndim >= 2, name, f"shape {tuple(matrix.shape)}", expected)
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
    values: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    norms: dict[str, float] = {}
    skipped = list(reading.unread)
    for layer in reading.weights:
        name, norm, note = layer.name, None, ""
        if layer.is_convolution or layer.is_transposed:
            spectrum, norm, note = operator_values(layer, size)
        else:
            spectrum = singular_values(layer.weight, f"net: the weight of layer {name!r}")
        if spectrum is None:
            skipped.append(Skipped.part(name, layer.module, f"weight_singular_values: {note}"))
            continue
        values[name] = spectrum
        norms |= {} if norm is None else {name: norm}
        if note or layer.reason:
            notes[name] = "; ".join(filter(None, [note, layer.reason and only_weight(layer.reason)]))
    return Spectra(values, skipped, notes, floor=1e-15, squared_norms=norms)


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
    passes: dict[str, Any] = {"method": method, "chunk_size": chunk_size}
    found, _ = leaving_out(
        function, given, reading, lambda reading: activation_spectra(function, given, reading, (which,), **passes)
    )
    return found.values[which]


@dataclass(frozen=True)
class Passes:
    """The result of passes over the data.

    Attributes
    ----------
    values : dict
        Spectra by "activations" and "preactivations".
    late : dict
        Why there is none of a layer for lack of time, by these names and the number of the layer.
    samples : int
        Number of samples for which the further measures were run.
    """

    values: dict[str, Spectra]
    late: dict[Key, str]
    samples: int


class _Blocks(Taker):
    """The spectra of as many of some layers as fit in memory together; one always does, if not too large by itself.

    ``pieces`` has those that are measured, ``too_large`` why others never are.
    """

    def __init__(self, keys: Iterable[Key], method: str, samples: int) -> None:
        self.keys, self.method, self.samples, self.room = set(keys), method, samples, MAX_TOGETHER
        self.pieces: dict[Key, Accumulator] = {}
        self.too_large: dict[Key, str] = {}

    def activations(self, layer: int, values: Tensor) -> None:
        self._add(("activations", layer), values.flatten(1))

    def preactivations(self, layer: int, values: Tensor) -> None:
        self._add(("preactivations", layer), values.flatten(1))

    def _add(self, key: Key, rows: Tensor) -> None:
        if key in self.keys and key not in self.pieces and key not in self.too_large:  # the first block
            width = rows.shape[1]
            held = width * (width if self.method == "gram" else min(width, self.samples))
            if held > MAX_ENTRIES:
                need = f"{width} features for {self.samples} samples need {held} numbers"
                self.too_large[key] = f"{need}, the limit is {MAX_ENTRIES}"
            elif held <= self.room or not self.pieces:
                self.pieces[key] = Accumulator(self.method)
                self.room -= held
        if key in self.pieces:
            self.pieces[key].add(rows)


def activation_spectra(
    function: Functional,
    x: Samples,
    reading: Reading,
    which: Sequence[str] = WHICH,
    *,
    method: str = "qr",
    chunk_size: int = 4096,
    also: Sequence[Taker] = (),
    deadline: Deadline | None = None,
) -> Passes:
    """Return spectra of activations and preactivations, and run other measures in the same passes over the data.

    Layers are measured together as long as what is held of them fits in 128 MiB; a single one may have eight times as
    much. A pass that is cut off gives no spectra.

    Parameters
    ----------
    function, x : Functional, Tensor or Inputs
        The network and all samples.
    reading, method, chunk_size
        As for :func:`activation_singular_values`.
    which : sequence of str
        Some of "activations" and "preactivations".
    also : sequence of Taker
        Further measures, in the first pass, which is theirs alone where there is a deadline.
    deadline : Deadline, optional
        The time that may be used.
    """
    deadline, samples, layers = deadline or Deadline(), len(x), reading.layers
    keys = [(kind, i) for i in range(len(layers)) for kind in which]
    spectra: dict[Key, Tensor] = {}
    late: dict[Key, str] = {}
    too_large: dict[Key, str] = {}
    rest, ran = list(keys), samples
    while rest or also:
        blocks = _Blocks([] if also and deadline.is_set else rest, method, samples)
        takers: list[Taker] = [blocks, *also]
        passes: dict[str, Any] = {"chunk_size": chunk_size, "over": deadline.over}
        done = 0 if deadline.over() else stream(function, x, reading, takers, **passes)
        heap.give_back()
        for kind, i in sorted(blocks.pieces, key=lambda key: (key[1], key[0] == "activations")):
            if done < samples or deadline.over():
                late[kind, i] = deadline.cut(done if done < samples else 0, samples)
                continue
            try:  # errors name the first layer
                spectra[kind, i] = blocks.pieces.pop((kind, i)).singular_values() / math.sqrt(samples)
                heap.give_back()
            except ValueError as error:
                text = str(error).removeprefix("piece: ")
                raise ValueError(f"net: {named(layers, i, kind)}: {text}") from error
        ran, also = (done if also else ran), ()
        too_large |= blocks.too_large
        rest = [key for key in rest if key not in spectra and key not in late and key not in too_large]
        if done < samples:
            late |= dict.fromkeys(rest, deadline.missed)
            rest = []
    floor = max(1e-8 if method == "gram" else 1e-15, torch.finfo(function.dtype).eps)
    values = {}
    for kind in which:
        measured = {layer.name: spectra[kind, i] for i, layer in enumerate(layers) if (kind, i) in spectra}
        wide = [
            Skipped.part(layer.name, layer.module, f"{kind}: {too_large[kind, i]}")
            for i, layer in enumerate(layers)
            if (kind, i) in too_large
        ]
        values[kind] = Spectra(measured, [*reading.skipped, *wide], floor=floor)
    return Passes(values, late, ran)
