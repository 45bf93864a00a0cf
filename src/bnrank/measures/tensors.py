"""Spectra of weights without code: of a state dict, a file, or a module that is not run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import usage
from bnrank.measures.spectra import Accumulator
from bnrank.networks import tensor_files, tensor_matrices, tensors
from bnrank.networks.tensor_matrices import Piece
from bnrank.networks.tensors import Entry

if TYPE_CHECKING:
    import xarray as xr

GRAM = 2048  # columns beyond which spectra of numbers in at most 32 bits come from the Gram matrix
GRAM_FLOOR = 1e-7
BLOCK = 2**22  # entries that are looked at together
ROWS = 4096  # rows of a tall matrix that are decomposed at a time, at least

NOT_FINITE = "entries are NaN or infinite"
_TIED = ("tied: the same tensor as ", ", counted once")  # around the name
LONG_NAMES = {
    "weight_relative_rank": "number of singular values of W_l above weight_rtol times the largest",
    "full_rank": "number of singular values of W_l",
    "stable_rank": "||W_l||_F^2 / ||W_l||_op^2",
    "entropy_rank": "entropy rank exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j (Roy and Vetterli, 2007)",
    "subnormals": "number of subnormal entries of W_l",
}


@dataclass(frozen=True)
class Measured:
    """One matrix: where it belongs, its singular values, and the number of its subnormal entries."""

    piece: Piece
    values: Tensor
    subnormals: int


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


Source = nn.Module | Mapping[str, Tensor] | str | os.PathLike[str]


@contextmanager
def opened(source: object, name: str) -> Iterator[tuple[str, list[Entry]]]:
    """Provide the title and the tensors of a file, a module or a state dict; ``name`` is the argument in errors."""
    if isinstance(source, str | os.PathLike):
        with tensor_files.opened(source, name) as entries:
            yield Path(source).name, entries
    elif isinstance(source, nn.Module):
        yield type(source).__name__, tensors.of_module(source)
    elif isinstance(source, Mapping):
        yield "a state dict", tensors.of_mapping(source, name)
    else:
        expected = "a torch.nn.Module, a state dict, or the path of a file of weights"
        raise TypeError(f"{name}: got {validation.describe(source)}, expected {expected}")


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
    with opened(source, "net") as (title, entries):
        measured, listed, notes = _measure(entries, deadline, progress)
    shapes = {found.name: found.shape for found in entries}
    if not measured:
        largest = sorted(listed, key=lambda row: math.prod(shapes[row[0]]), reverse=True)[:3]
        reasons = "; ".join(f"{name}: {reason}" for name, _, reason in largest)
        raise ValueError(f"net: found no matrix and no kernel of a convolution in {title} ({reasons}), expected some")
    own = [e for e in entries if not e.into]
    whole = [e for e in own if (e.floating and e.is_tensor) or tensor_matrices.is_matrix_of_integers(e, shapes)]
    dataset = tabulated([part for _, parts in measured for part in parts], atol, rtol, max_values)
    about = {
        "title": f"weights of {title}",
        "tensors": sum(found.is_tensor for found in tensors.once(own)),
        "tensors_measured": len(measured),
        "entries": tensors.numbers(whole),
        "entries_measured": tensors.numbers(found for found, _ in measured),
        "bottleneck_reason": "tensors alone do not say in which order they act; give the module and samples",
        "bnrank_version": __version__,
        "how": "spectra in float64, one tensor at a time; nothing is run",
    }
    rows = [{"name": name, "type": what, "reason": reason} for name, what, reason in listed]
    dataset = remarks.attach(dataset.assign_attrs(about), "skipped", rows)
    return remarks.attach(dataset, "note", [{"name": name, "note": note} for name, note in notes])


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
        if reason.startswith(_TIED[0]):
            name += f" = {reason.removeprefix(_TIED[0]).removesuffix(_TIED[1])}"
            reason = "another".join(_TIED)
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


def _measure(
    entries: Sequence[Entry], deadline: Deadline, progress: bool
) -> tuple[list[tuple[Entry, list[Measured]]], list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Measure tensors from the cheapest to the most expensive; return them in their order, the others, and notes."""
    shapes = {found.name: found.shape for found in entries}
    plans: dict[int, list[Piece]] = {}
    reasons: dict[int, str] = {}
    notes: dict[int, str] = {}
    seen: dict[object, str] = {}
    for i, found in enumerate(entries):
        first = seen.setdefault(found.storage, found.name) if found.storage is not None else found.name
        parts, text = tensor_matrices.pieces(found, shapes)
        if not parts:
            reasons[i] = text
        elif first != found.name:
            reasons[i] = first.join(_TIED)
        else:
            plans[i], notes[i] = parts, text
    work = {i: sum(map(_work, parts)) for i, parts in plans.items()}
    measured: dict[int, list[Measured]] = {}
    done = 0.0
    with bar(progress, "weights", sum(work.values()), counted=False) as tell:
        for i in sorted(plans, key=work.__getitem__):
            tell(done, f"weights: {entries[i].name[-40:]}")
            if deadline.over():
                reasons[i] = deadline.missed
            else:
                spectra, reason = _of_tensor(entries[i], plans[i])
                measured.update({i: spectra} if spectra else {})
                reasons.update({i: reason} if reason else {})
            done += work[i]
    patches = [part.piece.name for i in measured for part in measured[i] if part.piece.kind.endswith("patches")]
    told = [(entries[i].name, notes[i]) for i in sorted(measured) if notes[i]]
    told += [(entries[i].name, _GRAM_NOTE) for i in sorted(measured) if any(map(_by_gram(entries[i]), plans[i]))]
    told += [(f"convolutions ({len(patches)})", tensor_matrices.PATCHES)] if patches else []
    untold = sum(part.piece.kind.startswith("conv") for i in measured if not entries[i].role for part in measured[i])
    told += [(f"kernels ({untold})", tensor_matrices.UNTOLD)] if untold else []
    listed = [(entries[i].name, _type(entries[i]), reasons[i]) for i in sorted(reasons)]
    return [(entries[i], measured[i]) for i in sorted(measured)], listed, told


_GRAM_NOTE = (
    f"singular values from the Gram matrix in float64: those below {GRAM_FLOOR:g} of the largest are rounding noise, "
    "as they are in a float32 matrix"
)


def _work(piece: Piece) -> float:
    return float(max(piece.shape)) * min(piece.shape) ** 2


def loaded(found: Entry) -> Tensor:
    """Return a tensor of a file or module; float8, which few functions take, as float32."""
    tensor = found.load().detach()
    return tensor.float() if tensor.element_size() == 1 and found.floating else tensor


def unfit(tensor: Tensor) -> str:
    """Return how many entries of a tensor are NaN or infinite, in words, or an empty text."""
    if not tensor.is_complex() and all(map(math.isfinite, torch.stack(torch.aminmax(tensor)).tolist())):
        return ""  # without a copy
    bad = int((~torch.isfinite(tensor)).sum())
    return f"{bad} of {tensor.numel()} {NOT_FINITE}" if bad else ""


def _by_gram(found: Entry) -> Any:
    return lambda piece: min(piece.shape) > GRAM and found.dtype != "float64" and not found.dtype.startswith("complex")


def _type(found: Entry) -> str:
    return f"{found.dtype} {' x '.join(map(str, found.shape))}".strip()


def _of_tensor(found: Entry, parts: Sequence[Piece]) -> tuple[list[Measured], str]:
    """Return the spectra of a tensor's matrices, or the reason why it has none."""
    tensor = loaded(found)
    if reason := unfit(tensor):
        return [], reason
    return [of_matrix(piece, piece.take(tensor), gram=_by_gram(found)(piece)) for piece in parts], ""


def of_matrix(piece: Piece, matrix: Tensor, *, gram: bool = False) -> Measured:
    """Return the singular values of a matrix, or of several together, and the number of subnormal entries."""
    blocks = matrix.split(max(1, BLOCK // max(1, matrix[0].numel())))
    return Measured(piece, singular_values(matrix, gram=gram).cpu(), sum(map(usage.subnormals, blocks)))


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
        "parameter_norm": [float(row.square().sum()) for row in rows],
        "subnormals": [float(part.subnormals) for part in parts],
    }
    named = {
        "layer_name": [part.piece.name for part in parts],
        "layer_kind": [part.piece.kind for part in parts],
        "layer_shape": [" x ".join(map(str, part.piece.shape)) for part in parts],
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
