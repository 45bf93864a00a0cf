"""Weights of two networks, tensor by tensor: their spectra, and the rank and size of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.measures import similarity
from bnrank.measures import weights as spectra
from bnrank.measures.comparing.matching import Pair
from bnrank.measures.weights import Measured
from bnrank.networks.reading.matrices import Matrix, matrices_in
from bnrank.networks.reading.stored import Stored

if TYPE_CHECKING:
    import xarray as xr

OTHER_SHAPE = "the shapes differ: ranks and spectra only"
GROUPS = "several matrices together: no angles"
LONG_NAMES = {
    "change": "||W_b - W_a||_F / ||W_a||_F",
    "update_norm": "||W_b - W_a||_F",
    "update_singular_values": "singular values of W_b - W_a",
    "update_rank": "number of singular values of W_b - W_a above the rounding of stored entries",
    "update_relative_rank": "number of singular values of W_b - W_a above weight_rtol times the largest",
    "update_stable_rank": "stable rank of W_b - W_a, ||.||_F^2 / ||.||_op^2",
    "update_entropy_rank": "entropy rank of W_b - W_a, exp of the entropy of s_i / sum_j s_j",
    "update_share": "share of ||W_b - W_a||_F^2 in the largest singular values, as many as `top`",
    "left_angles": "principal angles in radians of the leading left singular subspaces of W_a and W_b",
    "right_angles": "principal angles in radians of the leading right singular subspaces of W_a and W_b",
    "subspace": "dimension of these subspaces",
    "tensor_change": "||t_b - t_a|| / ||t_a|| of a tensor that is no matrix",
}


@dataclass(frozen=True)
class Update:
    """The difference of two matrices: its singular values, its norm over that of a, and what rounding can do to it."""

    values: Tensor
    change: float
    rounding: float
    left: Sequence[float] = ()
    right: Sequence[float] = ()


@dataclass
class Weights:
    """What was measured of pairs of tensors."""

    a: list[Measured] = field(default_factory=list)
    b: list[Measured] = field(default_factory=list)
    updates: list[Update | None] = field(default_factory=list)
    others: list[tuple[str, float]] = field(default_factory=list)
    storage: dict[str, list[str]] = field(default_factory=lambda: {"layer": [], "tensor": []})
    skipped: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    seen: set[tuple[object, object]] = field(default_factory=set)

    def add(self, pair: Pair, shapes: tuple[dict[str, Any], dict[str, Any]], top: int) -> None:
        """Measure a pair of tensors, or note why it is not measured."""
        key = tuple(e.storage if e.storage is not None else e.name for e in (pair.a, pair.b))
        if (key[0], key[1]) in self.seen:
            self._skip(pair.a.name, "tied in both networks, compared once")
            return
        self.seen.add((key[0], key[1]))
        (pieces, why), (others, why_b) = matrices_in(pair.a, shapes[0]), matrices_in(pair.b, shapes[1])
        reason = "" if pieces and others else why if not pieces else why_b
        if not reason and len(pieces) != len(others):
            reason = f"read as {len(pieces)} matrices in a and as {len(others)} in b"
        if reason and pair.a.shape != pair.b.shape:
            self._skip(pair.a.name, f"{reason}, of different shapes")
            return
        loaded = [_loaded(stored) for stored in (pair.a, pair.b)]
        if reason and not all(e.floating and _is_plain(t) for e, t in zip((pair.a, pair.b), loaded, strict=True)):
            self._skip(pair.a.name, reason)
            return
        tensor, other = loaded[0], loaded[1].to(loaded[0].device)
        bad = [f"in {name}, {text}" for name, text in zip("ab", map(_unfit, (tensor, other)), strict=True) if text]
        if bad:
            self._skip(pair.a.name, "; ".join(bad))
        elif reason:
            self.others.append((pair.a.name, _change(tensor, other)))
            self.storage["tensor"].append(_coarse(pair).dtype)
        else:
            self._measure(pair, list(zip(pieces, others, strict=True)), (tensor, other), top)

    def _measure(self, pair: Pair, pieces: list[tuple[Matrix, Matrix]], both: tuple[Tensor, Tensor], top: int) -> None:
        coarse = _coarse(pair)
        for piece, other in pieces:
            a, b = piece.blocks(both[0]), other.blocks(both[1])
            self.a.append(spectra.of_matrix(piece, a))
            self.b.append(spectra.of_matrix(other, b))
            self.storage["layer"].append(coarse.dtype)
            if a.shape != b.shape:
                self.updates.append(None)
                self.notes.append({"name": piece.name, "note": OTHER_SHAPE})
                continue
            self.updates.append(_update(a, b, self.a[-1].values, self.b[-1].values, eps(coarse.dtype), top))
            if a.ndim == 3 and len(a) > 1:
                self.notes.append({"name": piece.name, "note": GROUPS})

    def _skip(self, name: str, reason: str) -> None:
        self.skipped.append({"name": name, "reason": reason})

    def dataset(self, atol: float, rtol: float, top: int, max_values: int) -> xr.Dataset:
        """Return the measurements over (network, layer, index) and (layer)."""
        import xarray as xr

        count = len(self.a)
        found = xr.Dataset(coords={"layer": np.arange(1, count + 1)})
        kept: dict[str, Any] = {
            f"{name}_storage": (name, np.array(dtypes, dtype=str)) for name, dtypes in self.storage.items()
        }
        if count:
            made = [spectra.tabulated(parts, atol, rtol, max_values) for parts in (self.a, self.b)]
            about = [f"layer_{key}" for key in ("name", "kind", "shape")]
            plain = [one.drop_vars([*about, "full_rank"]) for one in made]
            found = xr.concat(plain, xr.DataArray(["a", "b"], dims="network", name="network"), join="outer")
            sizes = np.stack([one["full_rank"].values for one in made])
            found["full_rank"] = ("network", "layer"), sizes
            for key in about:
                texts = {"": made[0][key].values, "_b": made[1][key].values}
                found = found.assign_coords({f"{key}{end}": ("layer", values) for end, values in texts.items()})
            found = found.assign(self._updates(rtol, top, found.sizes["index"]))
        names = np.array([name for name, _ in self.others], dtype=str)
        return found.assign_coords(kept | {"tensor": names}).assign(
            tensor_change=("tensor", np.array([value for _, value in self.others], dtype=float))
        )

    def _updates(self, rtol: float, top: int, length: int) -> dict[str, Any]:
        rows = [None if update is None else update.values for update in self.updates]
        ranks = {
            name.replace("weight_", ""): values
            for name, values in spectra.ranks(rows, rtol).items()
            if name != "full_rank"
        }
        table = np.full((len(rows), length), math.nan)
        widest = max((len(update.left) for update in self.updates if update is not None), default=0)
        angles = np.full((2, len(rows), max(widest, 1)), math.nan)
        columns: dict[str, list[float]] = {
            name: [] for name in ("change", "update_norm", "update_rank", "update_share")
        }
        for i, update in enumerate(self.updates):
            if update is None:
                for column in columns.values():
                    column.append(math.nan)
                continue
            size, kept = float(update.values.norm()), update.values[:length]
            table[i, : len(kept)] = kept
            for side, values in enumerate((update.left, update.right)):
                angles[side, i, : len(values)] = values
            columns["change"].append(update.change)
            columns["update_norm"].append(size)
            columns["update_rank"].append(float((update.values > update.rounding).sum()))
            top_values = update.values[:top] / update.values[:1]  # squares of small numbers vanish
            share = float(top_values.square().sum() / (update.values / update.values[:1]).square().sum())
            columns["update_share"].append(share)
        found: dict[str, Any] = {name: ("layer", np.array(values)) for name, values in columns.items()}
        found |= {f"update_{name}": ("layer", np.array(values)) for name, values in ranks.items()}
        found["update_singular_values"] = ("layer", "index"), table
        found["left_angles"] = ("layer", "angle"), angles[0]
        found["right_angles"] = ("layer", "angle"), angles[1]
        found["subspace"] = "layer", np.isfinite(angles[0]).sum(1).astype(float)
        return found


def _update(a: Tensor, b: Tensor, own: Tensor, other: Tensor, spacing: float, top: int) -> Update:
    """Return the difference of two matrices, or of several together, and the angles of their leading subspaces."""
    difference = _wide(b) - _wide(a)
    values = spectra.singular_values(
        difference, gram=min(difference.shape[-2:]) > spectra.GRAM and spacing > 1e-10
    ).cpu()
    sizes = float(own.norm()), float(other.norm())
    change = float(values.norm()) / sizes[0] if sizes[0] > 0 else 0.0 if sizes[1] == 0 else math.inf
    single = a.ndim == 2 or len(a) == 1
    found = Update(values, change, max(_rounding(t.reshape(t.shape[-2:]) if single else t, spacing) for t in (a, b)))
    if not single:
        return found
    k = min(top, int(linalg.rank(own)), int(linalg.rank(other)), min(a.shape[-2:]) // 2)
    if not k:
        return found
    (u, v), (w, z) = (_leading(matrix.reshape(matrix.shape[-2:]), k) for matrix in (a, b))
    return replace(found, left=_angles(u, w), right=_angles(v, z))


def _leading(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k leading left and right singular vectors, by the Gram matrix of the shorter side."""
    matrix = _wide(matrix)
    matrix = matrix / matrix.abs().max()
    tall = matrix.shape[0] >= matrix.shape[1]
    matrix = matrix if tall else matrix.mH
    vectors = torch.linalg.eigh(matrix.mH @ matrix)[1][:, -k:]
    left = torch.linalg.qr(matrix @ vectors)[0]
    return (left, vectors) if tall else (vectors, left)


def _angles(u: Tensor, v: Tensor) -> list[float]:
    if u.is_complex():
        return torch.linalg.svdvals(u.mH @ v).clamp(max=1).acos().cpu().tolist()
    return similarity.principal_angles(u, v).tolist()


def _wide(matrix: Tensor) -> Tensor:
    return matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)


def _change(a: Tensor, b: Tensor) -> float:
    a, b = _wide(a), _wide(b)
    size, moved = float(a.norm()), float((b - a).norm())
    return moved / size if size > 0 else 0.0 if moved == 0 else math.inf


def _unfit(tensor: Tensor) -> str:
    return spectra.unfit(tensor) if tensor.numel() else "empty"


def _loaded(stored: Stored) -> Tensor:
    tensor = stored.load().detach()
    return tensor.float() if tensor.element_size() == 1 and stored.floating else tensor


def _is_plain(tensor: Tensor) -> bool:
    return not (tensor.is_meta or tensor.is_quantized or tensor.is_nested) and tensor.layout == torch.strided


def _rounding(matrix: Tensor, spacing: float) -> float:
    """Return an operator norm that rounding every entry of a matrix once does not reach.

    For errors of at most half the relative spacing e: at most e / 2 times the Frobenius norm; for independent ones
    about e / (2 sqrt(3)) times the sum of the largest norms of a row and of a column.
    """
    sizes = matrix.abs().to(torch.float64)
    bounds = [sizes.norm()] + ([sizes.norm(dim=1).max() + sizes.norm(dim=0).max()] if sizes.ndim == 2 else [])
    return spacing * float(min(bounds))


def _coarse(pair: Pair) -> Stored:
    """Return the tensor of a pair whose numbers are stored with the larger relative spacing."""
    return max(pair.a, pair.b, key=lambda entry: eps(entry.dtype))


def eps(name: str) -> float:
    """Return the relative spacing of numbers of a type, of float32 where it is no floating-point type.

    Examples
    --------
    >>> eps("bfloat16"), eps("int8") == eps("float32")
    (0.0078125, True)
    """
    dtype = getattr(torch, name, torch.float32)
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else torch.finfo(torch.float32).eps
