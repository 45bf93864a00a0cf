"""What a watch measures of a weight and of the activations that enter a layer."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.measures.usage import count_subnormals, dimensions, uncorrected
from bnrank.networks.reading import Matrix

Row = dict[str, float]

LARGEST = 10  # singular values kept
TAIL = 0.1  # fraction of singular values outside of the tail
MAX_SIDE = 1024  # of the smaller side of a matrix, beyond which the whole spectrum is too expensive
ITERATIONS = 30  # of the power method, for larger ones

QUANTITIES = {
    "weights": {
        "stable_rank": "||W||_F^2 / ||W||_op^2",
        "effective_rank": "effective rank (sum of singular values)^2 / sum of their squares, of W",
        "weight_dimension_95": "number of singular values of W with 95 percent of ||W||_F^2",
        "weight_dimension_99": "number of singular values of W with 99 percent of ||W||_F^2",
        "tail": "share of ||W||_F^2 outside the largest tenth of singular values",
        "norm": "||W||_F",
        "operator_norm": "||W||_op",
        "nonfinite": "number of entries of W that are NaN or infinite",
    },
    "activations": {
        "dimension_95": "dimension of the centered inputs of the layer at 95 percent of their variance",
        "dimension_99": "dimension of the centered inputs of the layer at 99 percent of their variance",
        "dead_units": "number of inputs of the layer that are 0 on all rows",
        "constant_units": "number of inputs of the layer with the same value on all rows, dead ones among them",
        "nonfinite_units": "number of inputs of the layer that are NaN or infinite on some row",
        "units": "number of inputs of the layer",
        "rows": "number of rows (samples, and places or times) of the dimension",
    },
    "subnormals": {"subnormals": "number of subnormal entries of W"},
    "changes": {
        "change": "||W - W_0||_F / ||W_0||_F, W_0 of the first checkpoint",
        "change_since": "||W - W'||_F / ||W'||_F, W' of the checkpoint before",
        "update_stable_rank": "stable rank of W - W_0",
        "update_effective_rank": "effective rank (sum of singular values)^2 / sum of their squares, of W - W_0",
        "full_rank": "number of singular values of W",
        "update_share": "share of ||W - W_0||_F^2 in the largest singular values, as many as `top`",
    },
    "similarity": {
        "cka": "linear CKA of the activations with those of the first network",
        "cka_debiased": "the same by the unbiased estimator of HSIC",
    },
}
"""Quantities by what is measured, with their definitions."""
LONG_NAMES = {name: text for quantities in QUANTITIES.values() for name, text in quantities.items()}
NONFINITE = {"nonfinite": "weights of", "nonfinite_units": "activations at"}
"""Numbers of values that are NaN or infinite, and what they are of."""


def of_matrices(matrices: Iterable[Matrix], what: Collection[str]) -> Iterator[tuple[str, Tensor, Row, list[float]]]:
    """Iterate over names, blocks, quantities and largest singular values of matrices.

    Parameters
    ----------
    matrices : iterable of Matrix
        Weights; a tensor that holds several is loaded once.
    what : collection of str
        "weights", "subnormals" or both.
    """
    for stored, parts in itertools.groupby(matrices, lambda matrix: matrix.stored):
        tensor = stored.load()
        for matrix in parts:
            blocks = matrix.blocks(tensor)
            row, values = of_weight(blocks) if "weights" in what else ({}, [])
            row |= {"subnormals": float(count_subnormals(blocks))} if "subnormals" in what else {}
            yield matrix.name, blocks, row, values


def of_weight(weight: Tensor) -> tuple[dict[str, float], list[float]]:
    """Return the quantities of a matrix, or of the blocks (n, rows, columns) of one, and its largest singular values.

    Of one with NaN or infinite entries, only their number is returned. Of a block with both sides above 1024, only the
    norms and the stable rank are measured, the operator norm by the power method, which gives a lower bound.

    Examples
    --------
    >>> row, values = of_weight(torch.diag(torch.tensor([2.0, 1.0])))
    >>> row["stable_rank"], row["effective_rank"], values
    (1.25, 1.8, [2.0, 1.0])
    """
    matrix = double(weight.detach()).reshape(-1, *weight.shape[-2:])
    matrix = matrix.mT if matrix.shape[1] > matrix.shape[2] else matrix
    size = float(matrix.abs().max()) or 1.0
    if not math.isfinite(size):
        return {"nonfinite": float((~torch.isfinite(matrix)).sum())}, []
    matrix = matrix / size  # squares of what is large or small overflow or vanish
    if matrix.shape[1] > MAX_SIDE:
        return _of_large(matrix, size)
    squares = torch.linalg.eigvalsh(matrix @ matrix.mH).clamp(min=0).flatten().sort(descending=True).values.cpu()
    values, largest = squares.sqrt(), max(1, round(TAIL * len(squares)))
    relative, (low, high) = values / values[0], uncorrected(squares.numpy())
    row = {
        "nonfinite": 0.0,
        "norm": size * float(matrix.norm()),
        "stable_rank": float(relative.square().sum()),
        "effective_rank": float(relative.sum().square() / relative.square().sum()) if low else 0.0,
        "weight_dimension_95": float(low),
        "weight_dimension_99": float(high),
        "tail": float(squares[largest:].sum() / squares.sum()),
        "operator_norm": size * float(values[0]),
    }
    return row, (size * values[:LARGEST]).tolist()


def _of_large(matrix: Tensor, size: float) -> tuple[dict[str, float], list[float]]:
    """Return norms and the stable rank of blocks, ``size`` times a matrix, and the largest singular value."""
    norm, top = float(matrix.norm()), _operator_norm(matrix)
    row = {"nonfinite": 0.0, "norm": size * norm, "stable_rank": linalg.stable_rank_from(norm**2, top)}
    return row | {"operator_norm": size * float(top)}, [size * float(top)]


def _operator_norm(matrix: Tensor) -> Tensor:
    """Return the largest singular value of blocks by the power method, a lower bound, (1,)."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(*matrix.shape[:2], 1, dtype=torch.float64, generator=generator).to(matrix)
    for _ in range(ITERATIONS):
        vector = matrix @ (matrix.mH @ vector)
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return (matrix.mH @ vector).norm(dim=1).amax(0)


def of_change(weight: Tensor, first: Tensor, before: Tensor, top: int) -> dict[str, float]:
    """Return the quantities of a weight's change since the first checkpoint, and since the one before.

    They are missing where an entry is not finite or shapes differ.

    Examples
    --------
    >>> of_change(torch.diag(torch.tensor([3.0, 2.0])), torch.eye(2), torch.eye(2), 1)["update_stable_rank"]
    1.25
    """
    row = {"full_rank": float(math.prod(weight.shape[:-2]) * min(weight.shape[-2:]))}
    now, start, last = (double(t.detach()) for t in (weight, first, before))
    if now.shape == last.shape and math.isfinite(size := float((now - last).norm())):
        row["change_since"] = _ratio(size, float(last.norm()))
    moved, values = of_weight(now - start) if now.shape == start.shape else ({}, [])
    if "norm" in moved:
        row["change"] = _ratio(moved["norm"], float(start.norm()))
    if moved.get("norm", 0.0) > 0:
        row["update_stable_rank"] = moved["stable_rank"]
        row["update_effective_rank"] = moved.get("effective_rank", math.nan)
        if len(values) >= min(top, row["full_rank"]):
            row["update_share"] = sum((value / moved["norm"]) ** 2 for value in values[:top])
    return row


def _ratio(moved: float, size: float) -> float:
    return moved / size if size > 0 else 0.0 if moved == 0 else math.inf


def of_rows(rows: Tensor) -> dict[str, float]:
    """Return the dimensions of centered rows (n, units) at 95 and 99 percent of variance; NaN where they are unknown.

    Examples
    --------
    >>> of_rows(torch.eye(4).repeat(50, 1))
    {'dimension_95': 3.0, 'dimension_99': 3.0}
    """
    rows = double(rows)
    centered = rows - rows.mean(0)
    centered[:, (rows == rows[:1]).all(0)] = 0.0  # the mean can differ from equal entries by rounding
    centered = centered / (float(centered.abs().max()) or 1.0)
    n, d = centered.shape
    values = torch.linalg.eigvalsh(centered @ centered.T if d > n else centered.T @ centered).clamp(min=0)
    return dict(zip(("dimension_95", "dimension_99"), map(float, dimensions(values, n, d)), strict=True))


def double(values: Tensor) -> Tensor:
    """Return values in double precision, on the CPU where their device has none."""
    values = values.cpu() if values.device.type == "mps" else values
    return values.to(torch.complex128 if values.is_complex() else torch.float64)
