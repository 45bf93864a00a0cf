"""Singular values of weights, activations and preactivations."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.linalg import effective_rank, entropy_rank, rank, stable_rank
from bnrank.measures.convolution import conv_singular_values, per_dimension
from bnrank.measures.operators import layer_singular_values
from bnrank.networks.functional import example
from bnrank.networks.inputs import Example
from bnrank.networks.reading import Reading, capture, read_or
from bnrank.networks.reasons import Skipped

__all__ = ["Accumulator", "Spectra", "activation_singular_values", "conv_singular_values", "effective_rank", "rank"]
__all__ += ["entropy_rank", "singular_values", "stable_rank", "weight_singular_values"]

METHODS = ("qr", "gram")
WHICH = ("activations", "preactivations")
MAX_ENTRIES = 2**27  # entries of one R factor or Gram matrix, and of all those in memory at a time: 1 GiB


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
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        skipped: Sequence[Skipped] = (),
        notes: Mapping[str, str] | None = None,
        floor: float = 0.0,
    ) -> None:
        super().__init__(values)
        self.skipped = tuple(skipped)
        self.notes = dict(notes or {})
        self.floor = floor

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
        return tuple(float(stable_rank(values)) for values in self.values())


def singular_values(matrix: Tensor, name: str = "matrix") -> Tensor:
    """Return the singular values of (batches of) matrices in float64, descending; refuse NaN and infinity by name."""
    name = validation.text(name, "name")
    expected = "real numbers (..., n_out, n_in)"
    matrix = validation.real(validation.kind(matrix, name, Tensor), name, expected).to(torch.float64)
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
    skipped = list(reading.unread)
    for layer in reading.weights:
        if layer.is_convolution or layer.is_transposed:
            found, note = layer_singular_values(layer, size)
        else:
            found, note = singular_values(layer.weight, f"net: the weight of layer {layer.name!r}"), ""
        if found is None:
            skipped.append(Skipped.part(layer.name, layer.module, f"weight_singular_values: {note}"))
            continue
        values[layer.name] = found
        remarks = [note, f"only its weight is measured: {layer.reason}" if layer.reason else ""]
        if any(remarks):
            notes[layer.name] = "; ".join(filter(None, remarks))
    return Spectra(values, skipped, notes, floor=1e-15)


class Accumulator:
    """Singular values of a tall matrix that is given in blocks and never stored as a whole.

    Parameters
    ----------
    method : "qr" or "gram"
        "qr" keeps the R factor of all rows so far (R <- R factor of [R; piece]): as accurate as the SVD of the whole
        matrix. "gram" adds up piece^T piece: faster for wide layers, but it squares the condition number, so that
        values below about 1e-8 of the largest are noise.

    Examples
    --------
    >>> import torch
    >>> z = torch.randn(100, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> pieces = Accumulator()
    >>> for piece in z.split(30):
    ...     pieces.add(piece)
    >>> torch.allclose(pieces.singular_values(), torch.linalg.svdvals(z))
    True
    """

    def __init__(self, method: str = "qr") -> None:
        self.method = validation.choice(method, "method", METHODS)
        self.rows = 0
        self._state: Tensor | None = None

    def add(self, piece: Tensor) -> None:
        """Add rows, (n, features), or to each of several matrices, (..., n, features); complex ones for "qr" only."""
        piece = validation.dense(validation.kind(piece, "piece", Tensor), "piece").detach()
        piece = piece if piece.is_complex() else piece.to(torch.float64)
        ndim, features = piece.ndim, None if self._state is None else self._state.shape[-1]
        fits = (ndim == 2 if self.method == "gram" else ndim >= 2) and features in (None, piece.shape[-1])
        expected = f"(n, {'features' if features is None else features})"
        validation.expect(fits, "piece", f"shape {tuple(piece.shape)}", expected)
        real = self.method == "qr" or not piece.is_complex()
        validation.expect(real, "piece", "complex numbers", "real ones for the method 'gram'", TypeError)
        self.rows += piece.shape[-2]
        if self.method == "gram":
            gram = piece.T @ piece
            self._state = gram if self._state is None else self._state + gram
        else:
            rows = piece if self._state is None else torch.cat([self._state, piece], -2)
            tall = rows.shape[-2] > rows.shape[-1]
            self._state = _scaled(lambda matrix: torch.linalg.qr(matrix, mode="r")[1], rows) if tall else rows

    def singular_values(self) -> Tensor:
        """Return the min(rows, features) singular values of all rows so far, descending."""
        if self._state is None:
            return torch.zeros(0, dtype=torch.float64)
        if not bool(torch.isfinite(self._state).all()):
            raise ValueError("piece: got NaN, infinite or too large entries, expected finite ones")
        if self.method == "gram":
            values: Tensor = torch.linalg.eigvalsh(self._state).clamp(min=0).sqrt().flip(0)
        else:
            values = _scaled(torch.linalg.svdvals, self._state)
        return values[..., : min(self.rows, self._state.shape[-1])]


def _scaled(decomposition: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """Return a homogeneous decomposition of matrices, by way of 2^600 or 2^-600 times them where squares need it."""
    found = decomposition(matrices)
    largest = found.abs().max() if found.numel() else 1.0
    if 1e-150 < largest < 1e150:  # usual, and quickly seen
        return found
    size = matrices.abs().amax((-2, -1), keepdim=True)
    scale = torch.ones_like(size)
    scale[(size > 0) & (size < 1e-150)] = 2.0**600
    scale[(size > 1e150) & (size < math.inf)] = 2.0**-600
    if bool((scale == 1).all()):
        return found
    found = decomposition(matrices * scale)
    return found / (scale if found.ndim == scale.ndim else scale.squeeze(-1))


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
    sum), and the module's output for the last one; a~_l is the output of the layer. Tensors with more dimensions are
    flattened to (N, features), so an image of C x H x W is one vector.

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
    reading = read_or(reading, net, given)
    samples = len(given)
    widths = [int(t[0].numel()) for t in getattr(next(iter(capture(net, given[:2], reading, 2, dtype))), which)]
    held = [width * (width if method == "gram" else min(width, samples)) for width in widths]
    skipped = list(reading.skipped)
    values: dict[str, Tensor] = {}
    waiting = [i for i, entries in enumerate(held) if entries <= MAX_ENTRIES]
    while waiting:  # as many layers per pass as fit in memory together
        count = int((np.cumsum([held[i] for i in waiting]) <= MAX_ENTRIES).sum())
        pieces = {i: Accumulator(method) for i in waiting[:count]}
        waiting = waiting[count:]
        for part in capture(net, given, reading, chunk_size, dtype):
            for i, accumulator in pieces.items():
                accumulator.add(getattr(part, which)[i].flatten(1))
        for i, accumulator in pieces.items():
            name = reading.layers[i].name
            try:
                values[name] = accumulator.singular_values() / math.sqrt(samples)
            except ValueError as error:
                raise ValueError(f"net: {which} of layer {name!r}: {str(error).removeprefix('piece: ')}") from error
    for layer, width, entries in zip(reading.layers, widths, held, strict=True):
        if entries > MAX_ENTRIES:
            need = f"{width} features for {samples} samples need {entries} numbers"
            skipped.append(Skipped.part(layer.name, layer.module, f"{which}: {need}, the limit is {MAX_ENTRIES}"))
    return Spectra(values, skipped, floor=max(1e-8 if method == "gram" else 1e-15, torch.finfo(dtype).eps))
