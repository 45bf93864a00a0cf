"""Sums of squares of weights per channel; each weight is read once for any number of quantities."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from bnrank.theory.invariants.conserved import Conserved, Tensors

Array = np.ndarray[Any, np.dtype[np.float64]]
Weight = tuple[Tensor, Tensor | None, Tensor | None]  # values, what is subtracted from them, and where they are copied

CHUNK = 1 << 17  # squares that are held at a time: they stay in the cache, and nothing is allocated


class Forms:
    """Conserved quantities as one vector of all their entries, float64.

    One pass over every weight gives the sums of squares, without a full copy of it. Matrices need products.
    """

    def __init__(self, quantities: Sequence[Conserved]) -> None:
        self.quantities = tuple(quantities)
        self.sizes = [math.prod(q.shape) for q in self.quantities]
        self._ends = np.cumsum([0, *self.sizes])
        self._scratch = Scratch()
        squares = [q for q in self.quantities if q.kind != "matrix"]  # a matrix needs products
        self._squares = len(squares)
        wanted = [(q, True) for q in squares] + [(q, False) for q in self.quantities]  # in - out, then in + out
        ends = np.cumsum([0, *(1 if q.kind == "layer" else q.size for q, _ in wanted)])
        self._parts = [slice(i, j) for i, j in itertools.pairwise(ends.tolist())]
        lengths: dict[tuple[str, int], dict[int, int]] = {}  # of the sums needed: by parameter and groups, by axis
        for piece in (piece for q, _ in wanted for term in q.terms for piece in term.pieces):
            rows, columns = (*piece.shape, 1)[:2]
            along = {0: rows, 1: columns * piece.groups, -1: math.prod(piece.shape)}
            lengths.setdefault((piece.parameter, piece.groups), {})[piece.axis] = along[piece.axis]
        self._places: dict[tuple[str, int], dict[int, slice]] = {key: {} for key in lengths}
        width = 0
        for key, axes in lengths.items():
            for axis, length in axes.items():
                self._places[key][axis] = slice(width, width + length)
                width += length
        self._matrix = self._put_together(wanted, (int(ends[-1]), width))

    def _put_together(self, wanted: Sequence[tuple[Conserved, bool]], shape: tuple[int, int]) -> csr_array:
        rows, columns, values = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0)]
        for (q, is_signed), part in zip(wanted, self._parts, strict=True):
            for term in q.terms:
                for piece in term.pieces:
                    # one piece alone covers all places in order
                    members = np.arange(len(piece.channels)) if len(term.pieces) == 1 else piece.members
                    members = np.zeros_like(members) if q.kind == "layer" else members
                    start = self._places[piece.parameter, piece.groups][piece.axis].start
                    rows.append(part.start + np.repeat(members, piece.channels.shape[1]))
                    columns.append(start + piece.channels.ravel())
                    values.append(np.full(piece.channels.size, float(term.sign if is_signed else 1)))
        return csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=shape)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters that enter."""
        return tuple(dict.fromkeys(name for q in self.quantities for name in q.parameters))

    def of(self, parameters: Tensors) -> Array:
        """Return all Q(theta), squares summed in the parameters' own precision (float32 at least)."""
        return self._values(parameters, self._sums(parameters) if self._squares else [])

    def of_step(self, before: Tensors, after: Tensors, keep: Mapping[str, float]) -> Array:
        """Return all Q(after - keep before), as :meth:`of`; sums of squares without forming the difference."""
        sums = self._sums(after, less=before, factors=keep) if self._squares else []
        products = {name for q in self.quantities if q.kind == "matrix" for name in q.parameters}
        difference = {n: after[n].detach().sub(before[n], alpha=keep[n]) for n in products}
        return self._values(difference, sums)

    def measure(self, parameters: Tensors, copies: Tensors | None = None) -> tuple[Array, Array]:
        """Return all Q(theta), summed in float64, and per quantity the norm of in + out, (quantities,).

        In the same pass, the parameters are copied to ``copies``, contiguous tensors of the same shapes.
        """
        sums = self._sums(parameters, torch.float64, copies=copies) if self.quantities else []
        # of a matrix the entries are sqrt(s_u s_v), whose norm is the sum of s
        parts = zip(self.quantities, sums[self._squares :], strict=True)
        scales = [math.sqrt(part @ part) if q.kind == "vertex" else part.sum() for q, part in parts]
        return self._values(parameters, sums), np.array(scales)

    def _sums(
        self,
        parameters: Tensors,
        dtype: torch.dtype | None = None,
        *,
        less: Tensors | None = None,
        factors: Mapping[str, float] | None = None,
        copies: Tensors | None = None,
    ) -> list[Array]:
        """Return in - out of all but matrices, and in + out of all; with ``less``, of parameters less factors times it.

        Each is (n,), of a "layer" (1,).
        """
        used = [parameters[name].detach() for name, _ in self._places]
        dtype = dtype or reduce(torch.promote_types, (weight.dtype for weight in used), torch.float32)
        sums = self._scratch.flat(self._matrix.shape[1], dtype, used[0].device)
        for ((name, groups), places), weight in zip(self._places.items(), used, strict=True):
            room = {axis: sums[place].to(weight.device) for axis, place in places.items()}
            tensors = (weight, less[name] if less else None, copies[name] if copies else None)
            self._scratch.along(tensors, factors[name] if factors else 1.0, groups, room)
            for axis, place in places.items() if weight.device != sums.device else ():
                sums[place].copy_(room[axis])
        flat = self._matrix @ sums.cpu().numpy().astype(np.float64, copy=False)
        return [flat[part] for part in self._parts]

    def _values(self, parameters: Tensors, sums: list[Array]) -> Array:
        rest = iter(sums)
        values = [
            q.of(parameters).flatten().cpu().numpy() if q.kind == "matrix" else next(rest) for q in self.quantities
        ]
        return np.concatenate([np.zeros(0), *values])

    def sums(self, flat: Array) -> Array:
        """Return sums over every quantity's entries, (..., quantities)."""
        return np.add.reduceat(flat, self._ends[:-1], axis=-1) if self.sizes else np.zeros((*flat.shape[:-1], 0))

    def split(self, flat: Array) -> dict[str, Tensor]:
        """Return the entries by the names of the quantities, in their own shapes."""
        parts = zip(self.quantities, np.split(flat, self._ends[1:-1]), strict=False)
        return {q.name: torch.from_numpy(part.copy()).view(q.shape) for q, part in parts}


class Scratch:
    """Memory of sums of squares, kept between calls: allocating it again costs more than the sums."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": {}}

    def flat(self, size: int, dtype: torch.dtype, device: torch.device, name: str = "flat") -> Tensor:
        """Return memory for a number of entries, initially ones."""
        key = (name, dtype, device)
        if key not in self._held or len(self._held[key]) < size:
            self._held[key] = torch.ones(size, dtype=dtype, device=device)
        return self._held[key][:size]

    def along(self, weight: Weight, factor: float, groups: int, out: Mapping[int, Tensor]) -> None:
        """Write sums of squares of a weight, less a factor times another, along axes: rows 0, columns 1, entries -1."""
        if -1 in out:
            less, copy = (None if w is None else w.reshape(-1) for w in weight[1:])
            self._sums((weight[0].reshape(-1), less, copy), factor, range(weight[0].numel()), out[-1], None)
        rows, columns = out.get(0), out.get(1)
        if rows is None and columns is None:
            return
        height, width = weight[0].shape[0] // groups, weight[0].shape[1]
        whole = None if columns is None else self.flat(weight[0][0].numel(), columns.dtype, columns.device, "columns")
        for g in range(groups):
            self._sums(weight, factor, range(g * height, (g + 1) * height), rows, whole)
            if columns is not None and whole is not None:
                torch.sum(whole.view(width, -1), 1, out=columns[g * width : (g + 1) * width])

    def _sums(self, weight: Weight, factor: float, span: range, rows: Tensor | None, columns: Tensor | None) -> None:
        """Write the sums of squares of some rows, and of the columns in them, those that are requested."""
        values, less, copy = weight
        width = values[0].numel()
        device, dtype = values.device, (rows if rows is not None else columns).dtype  # type: ignore[union-attr]
        step = min(len(span), max(1, CHUNK // max(1, width)))
        room = self.flat(step * width, dtype, device, "squares")
        ones = self.flat(max(step, width), dtype, device, "ones")
        if columns is not None:
            columns.zero_()
        for start in span[::step]:
            here = slice(start, min(start + step, span.stop))
            part = values[here].reshape(-1, width)
            squares = room[: part.numel()].view(part.shape)
            if less is None and part.dtype == dtype:
                torch.mul(part, part, out=squares)
            elif less is None:
                squares.copy_(part).mul_(squares)
            elif part.dtype == dtype:
                torch.sub(part, less[here].reshape(-1, width), alpha=factor, out=squares).mul_(squares)
            else:
                squares.copy_(part).sub_(less[here].reshape(-1, width), alpha=factor).mul_(squares)
            if copy is not None:
                copy[here].copy_(values[here])
            if rows is not None:
                torch.mv(squares, ones[:width], out=rows[here])
            if columns is not None:
                columns.addmv_(squares.T, ones[: len(part)])
