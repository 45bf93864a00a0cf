"""Weights of two networks, matrix by matrix: their spectra, and the rank and size of the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bnrank._core import linalg
from bnrank._core.deadline import Deadline
from bnrank.measures import weights as spectra
from bnrank.measures.comparing.matching import Pair
from bnrank.measures.weights import Measured
from bnrank.networks.reading.stored import Stored, UnreadableError

if TYPE_CHECKING:
    import xarray as xr

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
SPECTRUM = ("weight_singular_values", "weight_relative_rank", "stable_rank", "entropy_rank")  # of the difference
NUMBERS = ("change", "update_norm", "update_rank", "update_share")
TEXTS = ("layer_name", "layer_kind", "layer_shape")
Row = dict[str, Any]  # what is measured of two matrices, or of two tensors that hold none


def measured(pair: Pair, top: int, deadline: Deadline) -> list[Row]:
    """Return a row for each two matrices of a pair of tensors, or one with the change of tensors that hold none.

    Raises
    ------
    UnreadableError
        If the time is over, a tensor cannot be read or is not finite, or it is no matrix and has another shape in b.
    """
    if deadline.over():
        raise UnreadableError(deadline.missed)
    a, b = _loaded(pair.a, "a"), _loaded(pair.b, "b")
    row = {"name": pair.a.name, "storage": max(pair.a.dtype, pair.b.dtype, key=eps)}  # the coarser type of the two
    b = b.to(a.device)
    if not pair.matrices and a.shape != b.shape:
        raise UnreadableError("no matrix, and of different shapes")
    if not pair.matrices:
        return [row | {"change": _ratio(float((_wide(b) - _wide(a)).norm()), float(_wide(a).norm()))}]
    rows = []
    for one, other in pair.matrices:
        first, second = one.blocks(a), other.blocks(b)
        both = {"a": spectra.of_matrix(one, first), "b": spectra.of_matrix(other, second)}
        rows.append(row | both | _update(first, second, both["a"], both["b"], eps(row["storage"]), top))
    return rows


def dataset(rows: Sequence[Row], atol: float, rtol: float, max_values: int) -> xr.Dataset:
    """Return measurements over (network, layer, index), (layer, index), (layer) and (tensor)."""
    import xarray as xr

    matrices, others = [row for row in rows if "a" in row], [row for row in rows if "a" not in row]
    data = xr.Dataset({"tensor_change": ("tensor", np.array([row["change"] for row in others], dtype=float))})
    data = data.assign_coords(tensor=np.array([row["name"] for row in others], dtype=str))
    data = data.assign_coords(layer=np.arange(1, len(matrices) + 1))
    for dimension, measured in (("layer", matrices), ("tensor", others)):
        data[f"{dimension}_storage"] = dimension, np.array([row["storage"] for row in measured], dtype=str)
    if not matrices:
        return data
    tables = [spectra.tabulated([row[key] for row in matrices], atol, rtol, max_values) for key in ("a", "b", "update")]
    a, b, update = (table.drop_vars(TEXTS) for table in tables)
    both = xr.concat([a, b], xr.DataArray(["a", "b"], dims="network", name="network"), join="outer")
    data = both.merge(data)
    for name in TEXTS:
        data = data.assign_coords({name: tables[0][name], f"{name}_b": ("layer", tables[1][name].values)})
    for name in SPECTRUM:
        data[f"update_{name.removeprefix('weight_')}"] = update[name]
    for name in NUMBERS:
        data[name] = "layer", np.array([row.get(name, math.nan) for row in matrices])
    for name in ("left_angles", "right_angles"):
        angles = [torch.tensor(row.get(name, (math.nan,)), dtype=torch.float64) for row in matrices]
        data[name] = ("layer", "angle"), pad_sequence(angles, True, math.nan).numpy()
    return data.assign(subspace=data["left_angles"].notnull().sum("angle").astype(float))


def _update(a: Tensor, b: Tensor, own: Measured, other: Measured, spacing: float, top: int) -> Row:
    """Return the difference of two matrices, or of several together, and the angles of their leading subspaces."""
    if a.shape != b.shape:
        return {"update": Measured(own.matrix, torch.zeros(0, dtype=torch.float64), 0.0, 0)}
    difference = _wide(b) - _wide(a)
    by_gram = min(difference.shape[-2:]) > spectra.GRAM and spacing > 1e-10
    values = spectra.singular_values(difference, gram=by_gram).cpu()
    norm, shares = float(values.norm()), (values / values[:1]).square()  # squares of small numbers vanish
    row = {
        "update": Measured(own.matrix, values, norm**2, 0),
        "change": _ratio(norm, float(own.values.norm())),
        "update_norm": norm,
        "update_rank": float((values > max(_rounding(a, spacing), _rounding(b, spacing))).sum()),
        "update_share": float(shares[:top].sum() / shares.sum()),
    }
    k = min(top, int(linalg.rank(own.values)), int(linalg.rank(other.values)), min(a.shape[-2:]) // 2)
    if len(a) == 1 and k:
        (u, v), (w, z) = _leading(a[0], k), _leading(b[0], k)
        row |= {"left_angles": _angles(u, w), "right_angles": _angles(v, z)}
    return row


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
    from scipy.linalg import subspace_angles

    angles: list[float] = subspace_angles(u.cpu().numpy(), v.cpu().numpy())[::-1].tolist()
    return angles


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _ratio(change: float, norm: float) -> float:
    return change / norm if norm > 0 else math.inf if change > 0 else 0.0


def _loaded(stored: Stored, network: str) -> Tensor:
    """Return a tensor, if it has a finite number for each entry."""
    tensor, reason = stored.load().detach(), "empty"
    if tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
        reason = stored.reason
    elif tensor.numel():
        tensor = tensor.float() if tensor.element_size() == 1 else tensor
        reason = spectra.unfit(tensor)
    if reason:
        raise UnreadableError(f"in {network}, {reason}")
    return tensor


def _rounding(blocks: Tensor, spacing: float) -> float:
    """Return an operator norm that rounding every entry of a matrix once does not reach.

    For errors of at most half the relative spacing e: at most e / 2 times the Frobenius norm; for independent ones
    about e / (2 sqrt(3)) times the sum of the largest norms of a row and of a column.
    """
    sizes = blocks.abs().to(torch.float64)
    bounds = [sizes.norm()]
    if len(sizes) == 1:
        bounds.append(sizes[0].norm(dim=1).max() + sizes[0].norm(dim=0).max())
    return spacing * float(min(bounds))


def eps(name: str) -> float:
    """Return the relative spacing of numbers of a type, of float32 where it is no floating-point type.

    Examples
    --------
    >>> eps("bfloat16"), eps("int8") == eps("float32")
    (0.0078125, True)
    """
    dtype = getattr(torch, name, torch.float32)
    return torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else torch.float32).eps
