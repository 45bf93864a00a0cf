"""The comparison of two networks: of their weights, matrix by matrix, and of what they do on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bnrank._core import linalg, remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import weights
from bnrank.measures.comparing import matching, representations
from bnrank.measures.comparing.result import Comparison
from bnrank.networks.reading import Listing, Matrix, listing
from bnrank.networks.reading.matrices import Source
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
Row = dict[str, Any]  # what is measured of two matrices, or of two tensors that hold none


def compared(
    a: Source,
    b: Source,
    x: Any,
    *,
    top: int,
    limits: dict[str, Any],
    passes: dict[str, Any],
    progress: bool,
    deadline: Deadline,
) -> Comparison:
    """Return the comparison of two networks, as :func:`bnrank.compare` describes it, which groups its arguments.

    ``limits`` are atol, rtol and max_values, ``passes`` max_samples, chunk_size and dtype.
    """
    views = []
    if x is not None:
        views = [representations.View(net, x, name, **passes) for net, name in ((a, "a"), (b, "b"))]
        alike = len(views[0].samples) == len(views[1].samples)
        validation.expect(alike, "x", "samples of two kinds", "as many for both")
    with listing(a, "a") as first, listing(b, "b") as second, bar(progress, "tensors", 1, counted=False) as tell:
        data = _tensors(first, second, top, limits, deadline, tell)
    if views:
        similar, notes = representations.dataset(*(view.seen(deadline) for view in views))
        data = data.merge(similar, combine_attrs="override").assign_attrs(similar.attrs)
        data = remarks.attach(data, "note", notes)
    names = [str(net) if isinstance(net, str | Path) else held.title for net, held in ((a, first), (b, second))]
    about = {"title": " and ".join(names), "name_a": names[0], "name_b": names[1], "top": top}
    data = data.assign_attrs(about, dtype=str(passes["dtype"]).removeprefix("torch."), bnrank_version=__version__)
    for key, text in (LONG_NAMES | representations.LONG_NAMES | weights.LONG_NAMES).items():
        if key in data:
            data[key].attrs |= {"long_name": text, "units": "1"}
    found = Comparison(data)
    if not views and not data.sizes["layer"] and not data.sizes["tensor"]:
        name = "max_minutes" if deadline.over() else "a, b"
        raise ValueError(f"{name}: got no tensors to compare ({'; '.join(found.notes[:6])}), expected some")
    return found


def _tensors(
    a: Listing, b: Listing, top: int, limits: dict[str, Any], deadline: Deadline, tell: Callable[[float, str], object]
) -> xr.Dataset:
    """Return what differs between the tensors of two networks, and which ones are not compared."""
    pairs, alone = matching.matched(a, b)
    rows: list[Row] = []
    reasons: dict[str, str] = {}  # by the tensor that is not compared
    for i, pair in enumerate(pairs):
        tell(i / len(pairs), f"tensors: {pair.a.name[-40:]}")
        try:
            rows += _measured(pair, top, deadline)
        except UnreadableError as error:
            reasons[pair.a.name] = str(error)
    unread = {t.name for held in (a, b) for t in held.records if not (t.is_tensor and t.floating)}
    reasons |= {other.name: other.reason for held in (a, b) for other in held.others if other.name in unread}
    unmatched = [
        {"name": tensor.name, "shape": " x ".join(map(str, tensor.shape)), "network": network}
        for network, tensors in alone.items()
        for tensor in tensors
    ]
    data = remarks.attach(_dataset(rows, **limits), "note", matching.notes(pairs, alone))
    data = remarks.attach(data, "skipped", [{"name": name, "reason": text} for name, text in reasons.items()])
    return remarks.attach(data, "unmatched", unmatched)


def _measured(pair: matching.Pair, top: int, deadline: Deadline) -> list[Row]:
    """Return a row for each two matrices of a pair of tensors, or one with the change of tensors that hold none."""
    if deadline.over():
        raise UnreadableError(deadline.missed)
    a, b = _loaded(pair.a, "a"), _loaded(pair.b, "b")
    b = b.to(a.device)
    dtype = max(pair.a.dtype, pair.b.dtype, key=_eps)  # the coarser one
    if pair.matrices:
        return [_compared(one, other, one.blocks(a), other.blocks(b), dtype, top) for one, other in pair.matrices]
    if a.shape != b.shape:
        raise UnreadableError("no matrix, and of different shapes")
    change = _ratio(float((_wide(b) - _wide(a)).norm()), float(_wide(a).norm()))
    return [{"name": pair.a.name, "change": change, "rounding": _eps(dtype)}]


def _dataset(rows: Sequence[Row], atol: float, rtol: float, max_values: int) -> xr.Dataset:
    """Return measurements over (network, layer, index), (layer, index), (layer) and (tensor)."""
    import xarray as xr

    matrices, others = [row for row in rows if "a" in row], [row for row in rows if "a" not in row]
    data = xr.Dataset(coords={"layer": np.arange(1, len(matrices) + 1)})
    data.coords["tensor"] = np.array([row["name"] for row in others], dtype=str)
    data.coords["tensor_rounding"] = "tensor", np.array([row["rounding"] for row in others], dtype=float)
    data["tensor_change"] = "tensor", np.array([row["change"] for row in others], dtype=float)
    if not matrices:
        return data
    parts = [row[key] for key in ("a", "b", "update") for row in matrices]
    table = weights.tabulated(parts, atol, rtol, max_values)
    data = data.assign_attrs(table.attrs).assign_coords(network=["a", "b"], index=table["index"].values)
    for name in ("layer_name", "layer_kind", "layer_shape"):
        a, b, _ = np.split(table[name].values, 3)
        data = data.assign_coords({name: ("layer", a), f"{name}_b": ("layer", b)})
    data.coords["layer_storage"] = "layer", np.array([row["storage"] for row in matrices], dtype=str)
    for key, column in table.data_vars.items():
        name = str(key)
        a, b, update = np.split(column.values, 3)
        data[name] = ("network", *column.dims), np.stack([a, b])
        if name in SPECTRUM:
            data[f"update_{name.removeprefix('weight_')}"] = column.dims, update
    for name in ("change", "update_norm", "update_rank", "update_share"):
        data[name] = "layer", np.array([row.get(name, math.nan) for row in matrices])
    for name in ("left_angles", "right_angles"):
        angles = [torch.tensor(row.get(name, (math.nan,)), dtype=torch.float64) for row in matrices]
        data[name] = ("layer", "angle"), pad_sequence(angles, True, math.nan).numpy()
    for name in ("update_relative_rank", "update_stable_rank", "update_entropy_rank"):
        data[name] = data[name].where(data["update_norm"] > 0)
    return data.assign(subspace=data["left_angles"].notnull().sum("angle").astype(float))


def _compared(a: Matrix, b: Matrix, first: Tensor, second: Tensor, dtype: str, top: int) -> Row:
    """Return what is measured of two matrices, given as blocks, of their difference, and of their leading subspaces."""
    own, other = weights.of_matrix(a, first), weights.of_matrix(b, second)
    row = {"storage": dtype, "a": own, "b": other, "update": replace(own, values=own.values[:0])}
    if first.shape != second.shape:
        return row
    difference, spacing = _wide(second) - _wide(first), _eps(dtype)
    by_gram = min(difference.shape[-2:]) > weights.GRAM and spacing > 1e-10
    values = weights.singular_values(difference, gram=by_gram).cpu()
    norm, shares = float(values.norm()), (values / values[:1]).square()  # squares of small numbers vanish
    row |= {
        "update": replace(own, values=values),
        "change": _ratio(norm, float(own.values.norm())),
        "update_norm": norm,
        "update_rank": float((values > max(_rounding(first, spacing), _rounding(second, spacing))).sum()),
        "update_share": float(shares[:top].sum() / shares.sum()),
    }
    k = min(top, int(linalg.rank(own.values)), int(linalg.rank(other.values)), min(first.shape[-2:]) // 2)
    if len(first) == 1 and k:
        (u, v), (w, z) = _leading(first[0], k), _leading(second[0], k)
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
        reason = weights.unfit(tensor)
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


def _eps(name: str) -> float:
    """Return the relative spacing of numbers of a type, of float32 where it is no floating-point type.

    Examples
    --------
    >>> _eps("bfloat16"), _eps("int8") == _eps("float32")
    (0.0078125, True)
    """
    dtype = getattr(torch, name, torch.float32)
    return torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else torch.float32).eps
