"""Spectra of the weights of a network: of a module, a state dict or a file, and of the layers of one that is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import usage
from bnrank.measures.accumulating import Pieces
from bnrank.measures.operators import operator_values
from bnrank.networks.reading import Layer
from bnrank.networks.reading.matrices import Matrix, Source, listing
from bnrank.networks.reading.stored import Stored, UnreadableError

if TYPE_CHECKING:
    import xarray as xr

Row = dict[str, Any]  # of a layer in a table, by variable: a text, a number, or singular values

GRAM = 2048  # columns beyond which spectra of numbers in at most 32 bits come from the Gram matrix
GRAM_FLOOR = 1e-7
ROWS = 4096  # rows of a tall matrix that are decomposed at a time, at least
RANKS = ("weight_rank", "weight_relative_rank", "full_rank", "stable_rank", "entropy_rank")  # as `row_of` has them
TEXTS = ("layer_name", "layer_kind", "layer_shape")
MAX_WORK = 10**10  # frequencies x c_out x c_in x min(c_out, c_in) of all convolutions, without "operators"

NOT_FINITE = "entries are NaN or infinite"
PATCHES = (
    "kernels as (out, in x taps) matrices, which map a patch of the input to one position of the output. Without an "
    "image size these are not the singular values of the convolution on images; their squares are the eigenvalues of "
    "the covariance of the output channels where the input is white noise. For kernels of one tap both agree"
)
EXPENSIVE = 'its operator on images is expensive; what=("operators", ...) measures the operator'
GRAM_NOTE = (
    f"singular values from the Gram matrix in float64: those below {GRAM_FLOOR:g} of the largest are rounding noise, "
    "as they are in a float32 matrix"
)
LONG_NAMES = {
    "weight_relative_rank": "number of singular values of W_l above weight_rtol times the largest",
    "full_rank": "number of singular values of W_l",
    "stable_rank": "||W_l||_F^2 / ||W_l||_op^2",
    "entropy_rank": "entropy rank exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j (Roy and Vetterli, 2007)",
    "subnormals": "number of subnormal entries of W_l",
}


@dataclass(frozen=True)
class Measured:
    """What is measured of one weight.

    Attributes
    ----------
    matrix : Matrix
        The weight.
    values : Tensor
        Its singular values; empty where they were not measured.
    kind : str
        The kind of the matrix; a kernel with taps that is measured as a matrix has the word "patches".
    parameter_norm, subnormals : float
        ||W||_F^2 + ||b||^2, and the number of subnormal entries of W.
    squared_norm : float, optional
        ||W||_F^2 where the values below the largest are bounds.
    note : str
        What else to know of the values.
    reason : str
        Why it was not measured; empty if it was.
    """

    matrix: Matrix
    values: Tensor
    kind: str = ""
    parameter_norm: float = math.nan
    subnormals: float = math.nan
    squared_norm: float | None = None
    note: str = ""
    reason: str = ""

    @classmethod
    def none(cls, matrix: Matrix, reason: str = "") -> Measured:
        """Return the record of a weight that is not measured."""
        return cls(matrix, torch.zeros(0), matrix.kind, reason=reason)


def of_matrix(matrix: Matrix, blocks: Tensor, values: Tensor | None = None) -> Measured:
    """Return what is measured of a matrix, given as its blocks (groups, rows, columns), or with other values."""
    patches = values is None and math.prod(matrix.shape[2:]) > 1
    in_single = matrix.stored.dtype != "float64" and not matrix.stored.dtype.startswith("complex")
    by_gram = values is None and in_single and min(matrix.size) > GRAM
    values, bias = singular_values(blocks, by_gram).cpu() if values is None else values.cpu(), matrix.bias()
    tensors = [blocks] if bias is None else [blocks, bias]
    norm = sum(float(torch.linalg.vector_norm(t, dtype=_exact(t))) ** 2 for t in tensors)
    kind = f"{matrix.kind} patches" if patches else matrix.kind
    return Measured(matrix, values, kind, norm, usage.count_subnormals(blocks), note=GRAM_NOTE if by_gram else "")


def _exact(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def singular_values(matrix: Tensor, gram: bool = False) -> Tensor:
    """Return all singular values of one matrix, or of several together, descending; tall ones in blocks of rows."""
    matrix = matrix[0] if matrix.ndim == 3 and len(matrix) == 1 else matrix
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    pieces = Pieces("gram" if gram else "qr")
    for rows in tall.split(max(ROWS, 2 * tall.shape[-1]), -2):
        pieces.add(rows.to(_exact(rows)) if rows.is_complex() else rows)
    return pieces.singular_values().flatten().sort(descending=True).values


def unfit(tensor: Tensor) -> str:
    """Return how many entries of a tensor are NaN or infinite, in words, or an empty text."""
    if not tensor.is_complex() and all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist())):
        return ""  # without a copy
    bad = int((~torch.isfinite(tensor)).sum())
    return f"{bad} of {tensor.numel()} {NOT_FINITE}" if bad else ""


def measured(
    layers: Sequence[Layer], deadline: Deadline, tell: Callable[[float, str], object], max_work: float = 0.0
) -> list[Measured]:
    """Measure weights from the cheapest to the most expensive; return them in order, also those that are not measured.

    Convolutions are measured as operators on the images that the layers were read with, until their work exceeds
    ``max_work``, else by their kernels. ``tell`` takes the share of the work that is done, and a text that names the
    next one.
    """
    costs = [_work(layer.matrix) + operator_work(layer) for layer in layers]
    parts: dict[int, Measured] = {}
    done, stored, tensor = 0.0, None, torch.zeros(0)
    for i in sorted(range(len(layers)), key=costs.__getitem__):
        layer, matrix = layers[i], layers[i].matrix
        tell(done / sum(costs), f"weights: {matrix.name[-40:]}")
        done, max_work = done + costs[i], max_work - operator_work(layer)
        try:
            if deadline.over():
                raise UnreadableError(deadline.missed)
            if matrix.stored is not stored:  # a tensor with several matrices is loaded once, and no other with it
                stored, tensor = None, torch.zeros(0)
                tensor, stored = _loaded(matrix.stored), matrix.stored
            blocks, on_images = matrix.blocks(tensor), "conv" in layer.kind and layer.input_shape is not None
            parts[i] = _on_images(layer, blocks, max_work >= 0) if on_images else of_matrix(matrix, blocks)
        except UnreadableError as error:
            parts[i] = Measured.none(matrix, str(error))
    return [parts[i] for i in range(len(layers))]


def _loaded(stored: Stored) -> Tensor:
    """Return a tensor, float8 as float32; raise UnreadableError if an entry is not finite."""
    tensor = stored.load()
    tensor = tensor.float() if tensor.element_size() == 1 else tensor
    if reason := unfit(tensor):
        raise UnreadableError(reason)
    return tensor


def _on_images(layer: Layer, blocks: Tensor, is_affordable: bool) -> Measured:
    """Return what is measured of a convolution, with its operator where it is affordable and known."""
    values, norm, why = operator_values(layer) if is_affordable else (None, None, EXPENSIVE)
    part = of_matrix(layer.matrix, blocks, values)
    if values is None:
        why = f"the kernel as a matrix (out, in x taps) that maps a patch to one position, since {why}"
    return replace(part, squared_norm=norm, note=why)


def _work(matrix: Matrix) -> float:
    return float(max(matrix.size)) * min(matrix.size) ** 2 * matrix.groups


def operator_work(layer: Layer) -> float:
    """Return the operations of the spectrum of a convolution at all frequencies; 0 for other layers."""
    shape = layer.matrix.shape
    if "conv" not in layer.kind or layer.input_shape is None or max(shape[2:]) == 1:
        return 0.0
    return float(math.prod(layer.input_shape[2 - len(shape) :]) * math.prod(shape[:2]) * min(shape[:2]))


def limits_of(atol: float, rtol: float, max_values: int) -> dict[str, Any]:
    """Return the limits of :func:`tabulated`, checked."""
    limits: dict[str, Any] = {"atol": validation.number(atol, "atol", 0.0)}
    limits["rtol"] = validation.rtol(rtol, "weight_rtol")
    return limits | {"max_values": validation.integer(max_values, "max_values")}


def weights(source: Source, limits: Mapping[str, Any], max_minutes: float | None, progress: bool) -> xr.Dataset:
    """Return the spectra of all matrices and kernels among tensors, one tensor in memory at a time.

    It is :func:`bnrank.profile` without samples, where the arguments and the result are described.
    """
    deadline, progress = Deadline(max_minutes), validation.flag(progress, "progress")
    with listing(source, "net") as held, bar(progress, "weights", 1, counted=False) as tell:
        layers = [Layer(i, matrix) for i, matrix in enumerate(held.matrices, 1)]
        found = measured(layers, deadline, tell)
    parts = [part for part in found if not part.reason]
    reasons = {part.matrix.stored.name: part.reason for part in found if part.reason}
    late = [stored for stored in held.records if stored.name in reasons]
    skipped = [vars(other) for other in held.others]
    for stored in late:
        kind = f"{stored.dtype} {' x '.join(map(str, stored.shape))}"
        skipped.append({"name": stored.name, "type": kind, "reason": reasons[stored.name]})
    if not parts:
        sizes = {stored.name: math.prod(stored.shape) for stored in held.records}
        largest = sorted(skipped, key=lambda row: -sizes[row["name"]])[:3]
        why = "; ".join(f"{row['name']}: {row['reason']}" for row in largest)
        raise ValueError(f"net: found no matrix and no kernel of a convolution in {held.title} ({why}), expected some")
    tensors = {id(part.matrix.stored): part.matrix.stored for part in parts}.values()
    about = {
        "title": f"weights of {held.title}",
        "tensors": held.tensors[1],
        "tensors_measured": len(tensors),
        "entries": held.entries[1],
        "entries_measured": sum(math.prod(tensor.shape) for tensor in tensors),
        "bottleneck_reason": "tensors alone do not say in which order they act; give the module and samples",
        "bnrank_version": __version__,
    }
    dataset = remarks.attach(tabulated(parts, **limits).assign_attrs(about), "skipped", skipped)
    notes = dict.fromkeys((p.matrix.stored.name, text) for p in parts for text in (p.matrix.note, p.note) if text)
    kernels = sum(part.kind.endswith("patches") for part in parts)
    notes |= {(f"convolutions ({kernels})", PATCHES): None} if kernels else {}
    return remarks.attach(dataset, "note", [{"name": name, "note": note} for name, note in notes])


# Tables ---------------------------------------------------------------------------------------------------------------


def tabulated(
    parts: Sequence[Measured], atol: float, rtol: float, max_values: int, more: Sequence[Row] = (), width: int = 0
) -> xr.Dataset:
    """Return measured matrices as a dataset over (layer, index), with more columns, and ``width`` values at least."""
    import xarray as xr

    rows = [row_of(part, atol, rtol) | other for part, other in zip(parts, more or [{}] * len(parts), strict=True)]
    spectra = [key for key, value in rows[0].items() if isinstance(value, Tensor)]
    longest = max(len(row[key]) for row in rows for key in spectra)
    length = min(max(longest, width, 1), max_values)
    attrs = {"atol": atol, "weight_rtol": rtol, "max_values": max_values, "index_cut": int(longest > length)}
    data = xr.Dataset(coords={"layer": np.arange(1, len(parts) + 1), "index": np.arange(1, length + 1)}, attrs=attrs)
    for key in rows[0]:
        column = [row[key] for row in rows]
        data[key] = (("layer", "index"), padded(column, length)) if key in spectra else ("layer", np.array(column))
    return data.set_coords(TEXTS)


def row_of(part: Measured, atol: float, rtol: float) -> Row:
    """Return the row of a weight in a table: what it is, numbers, and singular values; NaN where it has none.

    Examples
    --------
    >>> with listing({"a.weight": torch.eye(3)}) as held:
    ...     part = of_matrix(held.matrices[0], torch.diag(torch.tensor([2.0, 1.0, 0.0]))[None])
    >>> row_of(part, 0.1, 0.01)["stable_rank"]
    1.25
    """
    values, norm = part.values, part.squared_norm
    texts = (part.matrix.name, part.kind, " x ".join(map(str, part.matrix.size)))
    row: Row = {**dict(zip(TEXTS, texts, strict=True)), **dict.fromkeys(RANKS, math.nan)}
    row |= {"parameter_norm": part.parameter_norm, "subnormals": part.subnormals, "weight_singular_values": values}
    if not len(values):
        return row
    top = values[0]
    validation.expect(torch.isfinite(top), "net", f"a norm of {part.matrix.name} beyond the range", "smaller weights")
    relative = values / top  # NaN where all are 0
    stable = relative.square().sum() if norm is None else linalg.stable_rank_from(norm, values)
    entropy = torch.special.entr(relative / relative.sum()).sum().exp().nan_to_num()
    ranks = (values > atol).sum(), (values > rtol * top).sum(), len(values), stable, entropy
    return row | dict(zip(RANKS, map(float, ranks), strict=True))


def padded(rows: Sequence[Tensor], length: int) -> np.ndarray:
    """Return rows of different lengths as (rows, length): cut, or padded with NaN."""
    out = np.full((len(rows), length), np.nan)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row[:length].cpu()
    return out
