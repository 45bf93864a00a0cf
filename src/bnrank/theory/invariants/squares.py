"""Sums of squares of weights per channel, each weight read once whatever the number of quantities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from bnrank.theory.invariants.conserved import Conserved

Array = np.ndarray[Any, np.dtype[np.float64]]

CHUNK = 1 << 17  # squares that are held at a time: they stay in the cache, and nothing is allocated


class Forms:
    """Conserved quantities as one vector of all their entries, float64.

    Sums of squares come from one pass over every weight, without a copy of the whole of it. Matrices are products.
    """

    def __init__(self, quantities: Sequence[Conserved]) -> None:
        self.quantities = tuple(quantities)
        self.sizes = [math.prod(q.shape) for q in self.quantities]
        self._ends = np.cumsum([0, *self.sizes])
        self._scratch = Scratch()
        squares = [q for q in self.quantities if q.kind != "matrix"]  # a matrix needs products
        self._short = _Sums(squares, [])
        self._all = _Sums(squares, self.quantities)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all parameters that enter."""
        return tuple(dict.fromkeys(name for q in self.quantities for name in q.parameters))

    def of(self, parameters: Mapping[str, Tensor]) -> Array:
        """Return all Q(theta), squares summed in the parameters' own precision (float32 at least)."""
        return self._values(parameters, self._short.of(parameters, self._scratch))

    def of_step(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], keep: Mapping[str, float]) -> Array:
        """Return all Q(after - keep before), as :meth:`of`; sums of squares without forming the difference."""
        sums = self._short.of(after, self._scratch, less=before, factors=keep)
        return self._values(_Difference(before, after, keep), sums)

    def measure(
        self, parameters: Mapping[str, Tensor], copies: Mapping[str, Tensor] | None = None
    ) -> tuple[Array, Array]:
        """Return all Q(theta), summed in float64, and per quantity the norm of in + out, (quantities,).

        The parameters are copied to ``copies`` in passing, contiguous tensors of the same shapes.
        """
        sums = self._all.of(parameters, self._scratch, torch.float64, copies=copies)
        both = sums[len(self._short.parts) :]
        # of a matrix the entries are sqrt(s_u s_v), whose norm is the sum of s
        parts = zip(self.quantities, both, strict=True)
        scales = [math.sqrt(part @ part) if q.kind == "vertex" else part.sum() for q, part in parts]
        return self._values(parameters, sums), np.array(scales)

    def _values(self, parameters: Mapping[str, Tensor], sums: list[Array]) -> Array:
        rest = iter(sums)
        values = [
            q.of(parameters).flatten().cpu().numpy() if q.kind == "matrix" else next(rest) for q in self.quantities
        ]
        return np.concatenate(values) if values else np.zeros(0)

    def sums(self, flat: Array) -> Array:
        """Return sums over every quantity's entries, (..., quantities)."""
        return np.add.reduceat(flat, self._ends[:-1], axis=-1) if self.sizes else np.zeros((*flat.shape[:-1], 0))

    def split(self, flat: Array) -> dict[str, Tensor]:
        """Return the entries by the names of the quantities, in their own shapes."""
        ends = zip(self.quantities, self._ends[:-1], self._ends[1:], strict=True)
        return {q.name: torch.from_numpy(flat[i:j].copy()).view(q.shape) for q, i, j in ends}


class _Sums:
    """Sums of squares put together to in - out of some quantities and in + out of others."""

    def __init__(self, signed: Sequence[Conserved], unsigned: Sequence[Conserved]) -> None:
        self.wanted = [(q, True) for q in signed] + [(q, False) for q in unsigned]
        pieces = [piece for q, _ in self.wanted for term in q.terms for piece in term.pieces]
        self.axes: dict[tuple[str, int], tuple[int, ...]] = {}  # of which sums are needed, by parameter and groups
        for piece in pieces:
            key = (piece.parameter, piece.groups)
            self.axes[key] = tuple(dict.fromkeys((*self.axes.get(key, ()), piece.axis)))
        ends = np.cumsum([0, *(1 if q.kind == "layer" else q.size for q, _ in self.wanted)])
        self.parts = [slice(i, j) for i, j in itertools.pairwise(ends)]
        self._matrix: csr_array | None = None
        self._places: list[tuple[str, int, dict[int, slice]]] = []

    def of(
        self,
        parameters: Mapping[str, Tensor],
        scratch: Scratch,
        dtype: torch.dtype | None = None,
        *,
        less: Mapping[str, Tensor] | None = None,
        factors: Mapping[str, float] | None = None,
        copies: Mapping[str, Tensor] | None = None,
    ) -> list[Array]:
        """Return (n,) of every quantity, (1,) of a "layer"; with ``less``, of the parameters less factors times it."""
        if not self.wanted:
            return []
        if self._matrix is None:
            self._prepare(parameters)
            assert self._matrix is not None
        kind = dtype
        for name, _, _ in self._places if kind is None else []:
            kind = torch.promote_types(kind or torch.float32, parameters[name].dtype)
        assert kind is not None
        sums = scratch.flat(self._matrix.shape[1], kind, parameters[self._places[0][0]].device)
        for name, groups, places in self._places:
            factor, other = 1.0 if factors is None else factors[name], None if less is None else less[name]
            weight = _Weight(parameters[name].detach(), other, factor, copies[name] if copies else None)
            room = {axis: sums[place].to(weight.values.device) for axis, place in places.items()}
            scratch.along(weight, groups, room)
            for axis, place in places.items() if weight.values.device != sums.device else ():
                sums[place].copy_(room[axis])
        flat = self._matrix @ sums.cpu().numpy().astype(np.float64, copy=False)
        return [flat[part] for part in self.parts]

    def _prepare(self, parameters: Mapping[str, Tensor]) -> None:
        """Assign a place to every sum."""
        lengths: dict[tuple[str, int, int], int] = {}
        for (name, groups), axes in self.axes.items():
            shape = parameters[name].shape
            for axis in axes:
                lengths[(name, axis, groups)] = shape.numel() if axis < 0 else shape[1] * groups if axis else shape[0]
        ends = np.cumsum([0, *lengths.values()])
        places = dict(zip(lengths, map(slice, ends[:-1].tolist(), ends[1:].tolist()), strict=True))
        self._places = [(n, g, {axis: places[(n, axis, g)] for axis in axes}) for (n, g), axes in self.axes.items()]
        self._matrix = self._put_together({key: place.start for key, place in places.items()}, int(ends[-1]))

    def _put_together(self, starts: Mapping[tuple[str, int, int], int], width: int) -> csr_array:
        rows, columns, values, height = [], [], [], 0
        for q, signed in self.wanted:
            for term in q.terms:
                for piece in term.pieces:
                    channels = np.asarray(piece.channels)
                    # one piece alone covers all places in order
                    places = np.arange(len(channels)) if len(term.pieces) == 1 else np.asarray(piece.members)
                    places = np.zeros_like(places) if q.kind == "layer" else places
                    rows.append(height + np.repeat(places, channels.shape[1]))
                    columns.append(starts[(piece.parameter, piece.axis, piece.groups)] + channels.ravel())
                    values.append(np.full(channels.size, float(term.sign if signed else 1)))
            height += 1 if q.kind == "layer" else q.size
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return csr_array(entries, shape=(height, width))


@dataclass(frozen=True)
class _Weight:
    """A weight less a factor times another, and where it is copied to."""

    values: Tensor
    less: Tensor | None
    factor: float
    copy: Tensor | None

    def each(self, view: Callable[[Tensor], Tensor]) -> _Weight:
        """Return the same of views of the tensors."""
        less, copy = (None if w is None else view(w) for w in (self.less, self.copy))
        return _Weight(view(self.values), less, self.factor, copy)


class Scratch:
    """Memory of sums of squares, kept between calls: allocating it again costs more than the sums."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def __deepcopy__(self, memo: object) -> Scratch:
        return Scratch()

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return (Scratch, ())

    def flat(self, size: int, dtype: torch.dtype, device: torch.device, name: str = "flat") -> Tensor:
        """Return memory for a number of entries, initially ones."""
        key = (name, dtype, device)
        if key not in self._held or len(self._held[key]) < size:
            self._held[key] = torch.ones(size, dtype=dtype, device=device)
        return self._held[key][:size]

    def along(self, weight: _Weight, groups: int, out: Mapping[int, Tensor]) -> None:
        """Write sums of squares of a weight along axes: 0 are rows, 1 columns, -1 single entries."""
        rows, columns = out.get(0), out.get(1)
        if -1 in out:
            self._sums(weight.each(lambda w: w.reshape(-1, 1)), out[-1], None)
        if rows is None and columns is None:
            return
        height, width = weight.values.shape[0] // groups, weight.values.shape[1]
        whole = None
        if columns is not None:
            whole = self.flat(weight.values[0].numel(), columns.dtype, columns.device, "columns")
        for g in range(groups):
            mine = slice(g * height, (g + 1) * height)
            matrix = weight.each(lambda w, mine=mine: w[mine].flatten(1))  # type: ignore[misc]
            self._sums(matrix, None if rows is None else rows[mine], whole)
            if columns is not None and whole is not None:
                torch.sum(whole.view(width, -1), 1, out=columns[g * width : (g + 1) * width])

    def _sums(self, matrix: _Weight, rows: Tensor | None, columns: Tensor | None) -> None:
        """Write the sums of squares of the rows and of the columns of a matrix, those that are requested."""
        height, width = matrix.values.shape
        device, dtype = matrix.values.device, (rows if rows is not None else columns).dtype  # type: ignore[union-attr]
        step = min(height, max(1, CHUNK // max(1, width)))
        room = self.flat(step * width, dtype, device, "squares")
        ones = self.flat(max(step, width), dtype, device, "ones")
        if columns is not None:
            columns.zero_()
        for start in range(0, height, step):
            end = start + step
            part = matrix.values[start:end]
            squares = room[: part.numel()].view(part.shape)
            if matrix.less is None and part.dtype == dtype:
                torch.mul(part, part, out=squares)
            elif matrix.less is None:
                squares.copy_(part).mul_(squares)
            elif part.dtype == dtype:
                torch.sub(part, matrix.less[start:end], alpha=matrix.factor, out=squares).mul_(squares)
            else:
                squares.copy_(part).sub_(matrix.less[start:end], alpha=matrix.factor).mul_(squares)
            if matrix.copy is not None:
                matrix.copy[start:end].copy_(part)
            if rows is not None:
                torch.mv(squares, ones[:width], out=rows[start:end])
            if columns is not None:
                columns.addmv_(squares.T, ones[: len(part)])


class _Difference(Mapping[str, Tensor]):
    """The parameters after - keep before, computed on access."""

    def __init__(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], keep: Mapping[str, float]) -> None:
        self.before, self.after, self.keep = before, after, keep

    def __getitem__(self, name: str) -> Tensor:
        after = self.after[name].detach()
        return after.sub(self.before[name], alpha=self.keep.get(name, 1.0))

    def __iter__(self) -> Iterator[str]:
        return iter(self.before)

    def __len__(self) -> int:
        return len(self.before)
