"""Spectra of the matrices of a network that is not run: of a module, a state dict or a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import usage
from bnrank.measures.spectra import Accumulator
from bnrank.networks.reading.matrices import TIED, Listing, Matrix, Source, listing
from bnrank.networks.reading.stored import UnreadableError

if TYPE_CHECKING:
    import xarray as xr

GRAM = 2048  # columns beyond which spectra of numbers in at most 32 bits come from the Gram matrix
GRAM_FLOOR = 1e-7
BLOCK = 2**22  # entries that are looked at together
ROWS = 4096  # rows of a tall matrix that are decomposed at a time, at least

NOT_FINITE = "entries are NaN or infinite"
PATCHES = (
    "kernels as (out, in x taps) matrices, which map a patch of the input to one position of the output. Without an "
    "image size these are not the singular values of the convolution on images; their squares are the eigenvalues of "
    "the covariance of the output channels where the input is white noise. For kernels of one tap both agree"
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
    """One matrix, its singular values, and the number of its subnormal entries."""

    matrix: Matrix
    values: Tensor
    squared_norm: float
    subnormals: int

    @property
    def kind(self) -> str:
        """The kind of the matrix, and that a kernel with taps is read as one on patches."""
        taps = math.prod(self.matrix.shape[2:])
        return f"{self.matrix.kind} patches" if taps > 1 else self.matrix.kind


def ranks(
    rows: Sequence[Tensor | None], rtol: float, squared_norms: Sequence[float | None] | None = None
) -> dict[str, list[float]]:
    """Return the numbers computed from singular values, by variable: relative, full, stable and entropy rank.

    Squared Frobenius norms are given where the values below the largest are bounds.

    Examples
    --------
    >>> ranks([torch.tensor([2.0, 1.0, 0.0]), None], rtol=0.01)["stable_rank"]
    [1.25, nan]
    """
    out: dict[str, list[float]] = {"weight_relative_rank": [], "full_rank": [], "stable_rank": [], "entropy_rank": []}
    for values, norm in zip(rows, squared_norms or [None] * len(rows), strict=True):
        found = [math.nan] * 4
        if values is not None and values.numel():
            stable = linalg.stable_rank(values) if norm is None else linalg.stable_rank_from(norm, values)
            entropy = linalg.entropy_rank(values)
            found = [float(linalg.rank(values, rtol)), float(len(values)), float(stable), float(entropy)]
        for column, number in zip(out.values(), found, strict=True):
            column.append(number)
    return out


def weights(
    source: Source,
    *,
    atol: float = 0.1,
    rtol: float = 0.01,
    max_values: int = 4096,
    max_minutes: float | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Return the spectra of all matrices and kernels among tensors, one tensor in memory at a time.

    It is :func:`bnrank.profile` without samples, where the arguments and the result are described.
    """
    atol, rtol = validation.number(atol, "atol", 0.0), validation.rtol(rtol, "weight_rtol")
    max_values, progress = validation.integer(max_values, "max_values"), validation.flag(progress, "progress")
    deadline = Deadline(max_minutes)
    with listing(source) as held:
        measured, skipped, notes = _measured(held, deadline, progress)
    if not measured:
        reasons = "; ".join(f"{row['name']}: {row['reason']}" for row in skipped[:3])
        raise ValueError(
            f"net: found no matrix and no kernel of a convolution in {held.title} ({reasons}), expected some"
        )
    dataset = tabulated(measured, atol, rtol, max_values)
    about = {
        "title": f"weights of {held.title}",
        "tensors": held.tensors[1],
        "tensors_measured": len({id(part.matrix.stored) for part in measured}),
        "entries": held.entries[1],
        "entries_measured": sum(
            math.prod(stored.shape) for stored in {id(m.matrix.stored): m.matrix.stored for m in measured}.values()
        ),
        "bottleneck_reason": "tensors alone do not say in which order they act; give the module and samples",
        "bnrank_version": __version__,
        "how": "spectra in float64, one tensor at a time; nothing is run",
    }
    dataset = remarks.attach(dataset.assign_attrs(about), "skipped", skipped)
    return remarks.attach(dataset, "note", notes)


def summary(profile: xr.Dataset) -> list[str]:
    r"""Return what a profile of weights covers, in a few lines: tensors that are not measured are grouped by reason.

    Examples
    --------
    >>> state = {"a.weight": torch.eye(3), "a.bias": torch.ones(3), "b.bias": torch.ones(2)}
    >>> print("\n".join(summary(weights(state))))
    1 of 3 tensors measured, with 9 of 14 entries
    not measured: 2 x bias (a.bias, b.bias)
    """
    counts = [profile.attrs[key] for key in ("tensors_measured", "tensors", "entries_measured", "entries")]
    lines = ["{:,} of {:,} tensors measured, with {:,} of {:,} entries".format(*counts)]
    groups: dict[str, list[str]] = {}
    for row in remarks.rows(profile, "skipped"):
        reason, name = row["reason"], row["name"]
        if reason.startswith(TIED[0]):
            name += f" = {reason.removeprefix(TIED[0]).removesuffix(TIED[1])}"
            reason = "another".join(TIED)
        groups.setdefault(reason, []).append(name)
    for reason, names in groups.items():
        lines.append(f"not measured: {_times(len(names))}{reason} ({_some(names)})")
    groups = {}
    for row in remarks.rows(profile, "note"):
        groups.setdefault(row["note"], []).append(row["name"])
    return lines + [f"{_some(names)}: {note}" for note, names in groups.items()]


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} others" if len(names) > 2 else "")


def _measured(
    held: Listing, deadline: Deadline, progress: bool
) -> tuple[list[Measured], list[dict[str, str]], list[dict[str, str]]]:
    """Measure matrices from the cheapest to the most expensive; return them in their order, the others, and notes."""
    work = [float(max(m.size)) * min(m.size) ** 2 * m.groups for m in held.matrices]
    measured: dict[int, Measured] = {}
    reasons: dict[str, str] = {}
    done, loaded = 0.0, _Loaded()
    with bar(progress, "weights", sum(work), counted=False) as tell:
        for i in sorted(range(len(work)), key=work.__getitem__):
            matrix = held.matrices[i]
            tell(done, f"weights: {matrix.name[-40:]}")
            try:
                if deadline.over():
                    reasons[matrix.stored.name] = deadline.missed
                elif reason := unfit(tensor := loaded.of(matrix)):
                    reasons[matrix.stored.name] = reason
                else:
                    measured[i] = of_matrix(matrix, matrix.blocks(tensor))
            except UnreadableError as error:
                reasons[matrix.stored.name] = str(error)
            done += work[i]
    found = [measured[i] for i in sorted(measured)]
    skipped = [vars(other) for other in held.others]
    skipped += [
        {
            "name": stored.name,
            "type": f"{stored.dtype} {' x '.join(map(str, stored.shape))}",
            "reason": reasons[stored.name],
        }
        for stored in held.records
        if stored.name in reasons
    ]
    order = {stored.name: i for i, stored in enumerate(held.records)}
    skipped.sort(key=lambda row: order[row["name"]])
    notes = dict.fromkeys((part.matrix.stored.name, part.matrix.note) for part in found if part.matrix.note)
    notes |= dict.fromkeys((part.matrix.stored.name, _GRAM_NOTE) for part in found if _by_gram(part.matrix))
    patches = sum(part.kind.endswith("patches") for part in found)
    notes |= {(f"convolutions ({patches})", PATCHES): None} if patches else {}
    return found, skipped, [{"name": name, "note": note} for name, note in notes]


class _Loaded:
    """The tensor that was loaded last: a tensor with several matrices is read once."""

    def __init__(self) -> None:
        self.key: object = None
        self.tensor = torch.zeros(0)

    def of(self, matrix: Matrix) -> Tensor:
        """Return the tensor that holds a matrix."""
        if self.key is not matrix.stored:
            self.tensor = torch.zeros(0)  # not two in memory
            self.key, tensor = matrix.stored, matrix.stored.load()
            self.tensor = tensor.float() if tensor.element_size() == 1 else tensor
        return self.tensor


_GRAM_NOTE = (
    f"singular values from the Gram matrix in float64: those below {GRAM_FLOOR:g} of the largest are rounding noise, "
    "as they are in a float32 matrix"
)


def unfit(tensor: Tensor) -> str:
    """Return how many entries of a tensor are NaN or infinite, in words, or an empty text."""
    if not tensor.is_complex() and all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist())):
        return ""  # without a copy
    bad = int((~torch.isfinite(tensor)).sum())
    return f"{bad} of {tensor.numel()} {NOT_FINITE}" if bad else ""


def _by_gram(matrix: Matrix) -> bool:
    dtype = matrix.stored.dtype
    return min(matrix.size) > GRAM and dtype != "float64" and not dtype.startswith("complex")


def of_matrix(matrix: Matrix, blocks: Tensor) -> Measured:
    """Return what is measured of a matrix, given as its blocks (groups, rows, columns)."""
    rows = blocks.split(max(1, BLOCK // max(1, blocks[0].numel())))
    values, bias = singular_values(blocks, gram=_by_gram(matrix)).cpu(), matrix.bias()
    norm = float(values.square().sum()) + (0.0 if bias is None else float(bias.double().square().sum()))
    return Measured(matrix, values, norm, sum(map(usage.subnormals, rows)))


def singular_values(matrix: Tensor, gram: bool = False) -> Tensor:
    """Return all singular values of one matrix, or of several together, descending; tall ones in blocks of rows."""
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    if matrix.ndim == 3 and len(matrix) == 1:
        tall = tall[0]
    if tall.ndim == 3 or tall.is_complex():
        values: Tensor = torch.linalg.svdvals(tall.to(torch.complex128 if tall.is_complex() else torch.float64))
        return values.flatten().sort(descending=True).values
    pieces = Accumulator("gram" if gram else "qr")
    for rows in tall.split(max(ROWS, 2 * tall.shape[1])):
        pieces.add(rows)
    return pieces.singular_values()


def tabulated(parts: Sequence[Measured], atol: float, rtol: float, max_values: int) -> xr.Dataset:
    """Return measured matrices as a dataset over (layer, index)."""
    import xarray as xr

    rows = [part.values for part in parts]
    length = min(max(map(len, rows)), max_values)
    values = np.full((len(rows), length), np.nan)
    for line, row in zip(values, rows, strict=True):
        line[: len(row)] = row[:length]
    columns = {
        "weight_rank": [float((row > atol).sum()) for row in rows],
        **ranks(rows, rtol),
        "parameter_norm": [part.squared_norm for part in parts],
        "subnormals": [float(part.subnormals) for part in parts],
    }
    named = {
        "layer_name": [part.matrix.name for part in parts],
        "layer_kind": [part.kind for part in parts],
        "layer_shape": [" x ".join(map(str, part.matrix.size)) for part in parts],
    }
    coords: dict[str, Any] = {"layer": np.arange(1, len(parts) + 1), "index": np.arange(1, length + 1)}
    coords |= {key: ("layer", np.array(texts, dtype=str)) for key, texts in named.items()}
    variables: dict[str, Any] = {"weight_singular_values": (("layer", "index"), values)}
    variables |= {key: ("layer", np.array(numbers)) for key, numbers in columns.items()}
    attrs = {
        "atol": atol,
        "weight_rtol": rtol,
        "max_values": max_values,
        "index_cut": int(max(map(len, rows)) > length),
    }
    return xr.Dataset(variables, coords, attrs)
