"""What a watch measures of a weight and of the activations that enter a layer."""

import math

import torch
from torch import Tensor

from bnrank._core import linalg
from bnrank.measures.usage import SHARES, subnormals, variance_dimension
from bnrank.training.watching.divergence import shortened

LARGEST = 10  # singular values kept
TAIL = 0.1  # fraction of singular values outside of the tail
MAX_SIDE = 1024  # of the smaller side of a matrix, beyond which the whole spectrum is too expensive
ITERATIONS = 30  # of the power method, for larger ones

WEIGHTS = {
    "stable_rank": "||W||_F^2 / ||W||_op^2",
    "effective_rank": "effective rank (sum of singular values)^2 / sum of their squares, of W",
    "weight_dimension_95": "number of singular values of W with 95 percent of ||W||_F^2",
    "weight_dimension_99": "number of singular values of W with 99 percent of ||W||_F^2",
    "tail": "share of ||W||_F^2 outside the largest tenth of singular values",
    "norm": "||W||_F",
    "operator_norm": "||W||_op",
    "nonfinite": "number of entries of W that are NaN or infinite",
}
ACTIVATIONS = {
    "dimension_95": "dimension of the centered inputs of the layer at 95 percent of their variance",
    "dimension_99": "dimension of the centered inputs of the layer at 99 percent of their variance",
    "dead_units": "number of inputs of the layer that are 0 on all rows",
    "constant_units": "number of inputs of the layer with the same value on all rows, dead ones among them",
    "nonfinite_units": "number of inputs of the layer that are NaN or infinite on some row",
    "units": "number of inputs of the layer",
    "rows": "number of rows (samples, and places or times) of the dimension",
}
SUBNORMALS = {"subnormals": "number of subnormal entries of W"}
CHANGES = {
    "change": "||W - W_0||_F / ||W_0||_F, W_0 of the first checkpoint",
    "change_since": "||W - W'||_F / ||W'||_F, W' of the checkpoint before",
    "update_stable_rank": "stable rank of W - W_0",
    "update_effective_rank": "effective rank (sum of singular values)^2 / sum of their squares, of W - W_0",
    "full_rank": "number of singular values of W",
    "update_share": "share of ||W - W_0||_F^2 in the largest singular values, as many as `top`",
}
SIMILARITY = {
    "cka": "linear CKA of the activations with those of the first network",
    "cka_debiased": "the same by the unbiased estimator of HSIC",
}
QUANTITIES = {
    "weights": WEIGHTS,
    "activations": ACTIVATIONS,
    "subnormals": SUBNORMALS,
    "changes": CHANGES,
    "similarity": SIMILARITY,
}
"""Quantities by what is measured, with their definitions."""
LONG_NAMES = {**WEIGHTS, **ACTIVATIONS, **SUBNORMALS, **CHANGES, **SIMILARITY}


def of_weight(weight: Tensor) -> tuple[dict[str, float], list[float]]:
    """Return the quantities of a matrix, or of the blocks (n, rows, columns) of one, and its largest singular values.

    All but "nonfinite" is NaN where an entry is NaN or infinite. Of a block with both sides above 1024, only the norms
    and the stable rank are measured, the operator norm by the power method, which gives a lower bound.

    Examples
    --------
    >>> found, values = of_weight(torch.diag(torch.tensor([2.0, 1.0])))
    >>> found["stable_rank"], found["effective_rank"], values
    (1.25, 1.8, [2.0, 1.0])
    """
    found = dict.fromkeys(WEIGHTS, math.nan) | {"nonfinite": 0.0}
    matrix = _double(weight.detach())
    matrix = matrix if matrix.ndim == 3 else matrix[None]
    matrix = matrix.mT if matrix.shape[1] > matrix.shape[2] else matrix
    size = float(matrix.abs().max())
    if not math.isfinite(size):
        return found | {"nonfinite": float((~torch.isfinite(matrix)).sum())}, []
    if size == 0:
        zero = dict.fromkeys(WEIGHTS, 0.0)
        return zero | {"stable_rank": math.nan, "tail": math.nan}, [0.0] * min(LARGEST, _full_rank(matrix))
    matrix = matrix / size  # squares of what is large or small overflow or vanish
    found["norm"] = size * float(matrix.norm())
    if matrix.shape[1] > MAX_SIDE:
        top = _operator_norm(matrix)
        found |= {"operator_norm": size * top, "stable_rank": float(matrix.square().sum()) / top**2}
        return found, [size * top]
    squares = torch.linalg.eigvalsh(matrix @ matrix.mT).clamp(min=0).flatten().sort(descending=True).values.cpu()
    values = squares.sqrt()
    kept = max(1, round(TAIL * len(values)))
    sums = variance_dimension(squares, len(squares) + 1, len(squares), SHARES, corrected=False)
    found |= {
        "stable_rank": float(linalg.stable_rank(values)),
        "effective_rank": float(linalg.effective_rank(values)),
        "weight_dimension_95": float(sums[0]),
        "weight_dimension_99": float(sums[1]),
        "tail": float(squares[kept:].sum() / squares.sum()),
        "operator_norm": size * float(values[0]),
    }
    return found, [size * value for value in values[:LARGEST].tolist()]


def of_change(weight: Tensor, first: Tensor, before: Tensor, top: int) -> dict[str, float]:
    """Return the quantities of a weight's change since the first checkpoint.

    They are NaN where an entry is not finite or the first one has another shape; "change_since" also where the one
    before has.

    Examples
    --------
    >>> of_change(torch.diag(torch.tensor([3.0, 2.0])), torch.eye(2), torch.eye(2), 1)["update_stable_rank"]
    1.25
    """
    found = dict.fromkeys(CHANGES, math.nan) | {"full_rank": float(_full_rank(weight))}
    now, start, last = (_double(t.detach()) for t in (weight, first, before))
    if now.shape == last.shape and math.isfinite(size := float((now - last).norm())):
        found["change_since"] = _ratio(size, float(last.norm()))
    if now.shape != start.shape:
        return found
    moved, values = of_weight(now - start)
    if math.isnan(moved["norm"]):
        return found
    found["change"] = _ratio(moved["norm"], float(start.norm()))
    if moved["norm"] > 0:
        found["update_stable_rank"] = moved["stable_rank"]
        found["update_effective_rank"] = moved["effective_rank"]
        if len(values) >= min(top, _full_rank(now)):
            found["update_share"] = sum((value / moved["norm"]) ** 2 for value in values[:top])
    return found


class Changes:
    """The changes of weights along checkpoints, of which the first and the last one of every layer are kept.

    Examples
    --------
    >>> changes = Changes(top=1)
    >>> [changes.of("0", step, torch.eye(size))["change"] for step, size in enumerate((2, 3, 2))], changes.notes
    ([0.0, nan, 0.0], ['change not measured at 0 in step 1: the shape is not that of the first'])
    """

    def __init__(self, top: int) -> None:
        self.top = top
        self._first: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._apart: dict[str, list[str]] = {}  # steps of another shape

    def of(self, layer: str, step: int, weight: Tensor) -> dict[str, float]:
        """Return what :func:`of_change` does of the next weight of a layer."""
        first = self._first.setdefault(layer, weight)
        before = self._before.get(layer, first)
        self._before[layer] = weight
        if weight.shape != first.shape:
            self._apart.setdefault(layer, []).append(str(step))
        return of_change(weight, first, before, self.top)

    @property
    def notes(self) -> list[str]:
        """Which layers have another shape than the first in which steps."""
        found: dict[tuple[str, ...], list[str]] = {}
        for layer, steps in self._apart.items():
            found.setdefault(tuple(steps), []).append(layer)
        return [
            f"change not measured at {shortened(layers)} in step{'s' * (len(steps) > 1)} {shortened(list(steps))}: "
            "the shape is not that of the first"
            for steps, layers in found.items()
        ]


def _full_rank(weight: Tensor) -> int:
    """Return the number of singular values of a matrix, or of one with blocks (n, rows, columns)."""
    return math.prod(weight.shape[:-2]) * min(weight.shape[-2:])


def _ratio(moved: float, size: float) -> float:
    return moved / size if size > 0 else 0.0 if moved == 0 else math.inf


def of_rows(rows: Tensor, corrected: bool = True) -> dict[str, float]:
    """Return the dimensions of centered rows (n, units) at 95 and 99 percent of variance; NaN where they are unknown.

    Examples
    --------
    >>> of_rows(torch.eye(4).repeat(50, 1))
    {'dimension_95': 3.0, 'dimension_99': 3.0}
    """
    nothing = dict.fromkeys(("dimension_95", "dimension_99"), math.nan)
    if len(rows) < 2 or not bool(torch.isfinite(rows).all()):
        return nothing
    rows = _double(rows)
    centered = rows - rows.mean(0)
    centered[:, (rows == rows[:1]).all(0)] = 0.0  # the mean can differ from equal entries by rounding
    size = float(centered.abs().max())
    if size == 0:
        return dict.fromkeys(nothing, 0.0)
    centered = centered / size
    n, d = centered.shape
    gram = centered @ centered.T if d > n else centered.T @ centered
    values = torch.linalg.eigvalsh(gram).clamp(min=0).flip(0)[: min(n - 1, d)].cpu()
    found = variance_dimension(values, n, d, SHARES, corrected=corrected)
    return {"dimension_95": float(found[0]), "dimension_99": float(found[1])}


def of_entries(weight: Tensor) -> dict[str, float]:
    """Return the number of subnormal entries of a weight.

    Examples
    --------
    >>> of_entries(torch.tensor([1.0, 1e-40]))
    {'subnormals': 1.0}
    """
    return {"subnormals": float(subnormals(weight.detach()))}


def _double(values: Tensor) -> Tensor:
    """Return values in float64, on the CPU where their device has none."""
    return (values.cpu() if values.device.type == "mps" else values).to(torch.float64)


def _operator_norm(matrix: Tensor) -> float:
    """Return the largest operator norm of blocks by the power method, from below."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(*matrix.shape[:2], 1, dtype=torch.float64, generator=generator).to(matrix.device)
    for _ in range(ITERATIONS):
        vector = matrix @ (matrix.mT @ vector)
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return float((matrix.mT @ vector).norm(dim=1).max())
