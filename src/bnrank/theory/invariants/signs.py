"""Signs and the direction of the parameters along training (T43)."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation

PIECE = 1 << 17  # entries processed at a time, so that they stay in the cache


class SignTrace:
    """Sign changes of the weights over time, and the rotation of the direction theta / ||theta||.

    The stable sign regime of T43 begins after the last sign change of a weight; it follows from convergence of the
    direction to a limit without a zero entry. A sign is -1, 0 or 1. Signs are compared between records, so a weight
    that changes and returns between two of them is not detected. Memory per weight: the values in the first and the
    last record, and the index of the record in which the sign last changed.

    Attributes
    ----------
    steps, times : list
        Steps and times of the records.
    changed : list of tuple of float
        Per record, the fraction of every parameter's entries whose sign differs from that in the record before.
    from_last, from_first : list of float
        Per record, 1 - cos of the angle between theta and theta in the record before, or in the first one.
    changed_at : dict of str to Tensor
        Per parameter, the number of the record in which the sign of each entry last changed; 0 if it never did.

    Source: LeJegelka2022, Assumptions 1 and 2, Claim 1; T43.

    Examples
    --------
    >>> import torch
    >>> trace = SignTrace()
    >>> for step in range(4):
    ...     trace.look({"w": torch.tensor([1.0, 1.5 - step])}, step=step, time=0.1 * step)
    >>> trace.changed_since(0), trace.changed_since(2)
    ({'w': 0.5}, {'w': 0.0})
    >>> round(trace.from_first[-1], 3), trace.changed[2]  # 1 - cos, and the share that changed in that record
    (1.385, (0.5,))
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.steps: list[int] = []
        self.times: list[float] = []
        self.changed: list[tuple[float, ...]] = []
        self.from_last: list[float] = []
        self.from_first: list[float] = []
        self._first: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}
        self.changed_at: dict[str, Tensor] = {}
        self._norms = (0.0, 0.0)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of every parameter."""
        return tuple(p.numel() for p in self._first.values())

    @torch.no_grad()
    def look(self, parameters: Mapping[str, Tensor], *, step: int, time: float = math.nan) -> None:
        """Record the signs and the direction of parameters, given by name, at a step and a time.

        Raises
        ------
        ValueError
            If the names differ from those in the first record.
        """
        number, norm = len(self), _norm(parameters)
        if number == 0:
            whole = torch.contiguous_format
            self.names, self._norms = tuple(parameters), (norm, norm)
            self._first = {name: p.detach().clone(memory_format=whole) for name, p in parameters.items()}
            self._last = {name: p.clone() for name, p in self._first.items()}
            # integers in float32, for fast comparisons without masks
            self.changed_at = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in self._first.items()}
        same = tuple(parameters) == self.names
        validation.expect(same, "parameters", ", ".join(parameters), ", ".join(self.names))
        changed, turned = [], [0.0, 0.0]
        room = _Room(min(PIECE, max((p.numel() for p in parameters.values()), default=0)))
        lengths = self._norms[::-1]
        factors = [norm / length if length else 1.0 for length in lengths]
        for name, p in parameters.items():
            count = 0.0
            flat = [t.flatten() for t in (p.detach(), self._last[name], self._first[name], self.changed_at[name])]
            for now, last, first, changed_at in zip(*(t.split(PIECE) for t in flat), strict=True):
                new = last
                if now.dtype.itemsize < 4:  # half precision is converted before computing
                    now, last, first = (room.like(t, 2 + i).copy_(t) for i, t in enumerate((now, last, first)))
                differs = torch.sign(now, out=room.like(now))
                differs.sub_(torch.sign(last, out=room.like(now, 1))).abs_().sign_()
                count += float(differs.sum())
                torch.maximum(changed_at, differs.mul_(number), out=changed_at)
                for i, then in enumerate((last, first)):
                    apart = torch.sub(now, then, alpha=factors[i], out=room.like(now))
                    length = float(torch.linalg.vector_norm(apart))
                    turned[i] += length * length
                new.copy_(now)
            changed.append(count / max(1, p.numel()))
        # 1 - cos as half the squared distance of the unit vectors, without cancellation; NaN beyond the range of floats
        square, undefined = norm * norm, math.nan if number else 0.0
        sines = [0.5 * t / square if square > 0 and n > 0 else undefined for t, n in zip(turned, lengths, strict=True)]
        self._norms = (self._norms[0], norm)
        self.steps.append(step)
        self.times.append(time)
        self.changed.append(tuple(changed))
        self.from_last.append(sines[0])
        self.from_first.append(sines[1])

    def changed_since(self, step: int | None = None, *, time: float | None = None) -> dict[str, float]:
        """Return, per parameter, the fraction of entries whose sign changed after a step or time.

        Only later records count.

        Raises
        ------
        ValueError
            If not exactly one of the two is given, there are no records, the times are unknown, or it lies beyond the
            last record.
        """
        validation.expect((step is None) != (time is None), "step, time", f"{step!r} and {time!r}", "one of them")
        if not self.steps:
            raise ValueError("nothing recorded yet, so there is no sign to compare with")
        if step is not None:
            name, when = "step", np.array(self.steps)
            since: float = validation.integer(step, "step", 0)
        else:
            name, when = "time", np.array(self.times)
            since = validation.number(time, "time")
            if np.isnan(when).any():
                raise ValueError("time: the times of the recorded rows are not known; give step")
        validation.expect(since <= when[-1], name, f"{since}", f"at most {when[-1]}, that of the last record")
        last = max(0, int((when <= since).sum()) - 1)
        return {n: float((at > last).sum()) / max(1, at.numel()) for n, at in self.changed_at.items()}


class _Room:
    """Scratch memory, reused since allocating it costs more than the computation."""

    def __init__(self, most: int) -> None:
        self._held: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}
        self._most = most

    def like(self, tensor: Tensor, number: int = 0) -> Tensor:
        """Return scratch tensor ``number`` of this shape, at least float32."""
        key = (torch.promote_types(tensor.dtype, torch.float32), tensor.device, number)
        if key not in self._held:
            self._held[key] = torch.empty(self._most, dtype=key[0], device=key[1])
        return self._held[key][: tensor.numel()].view(tensor.shape)


def _norm(parameters: Mapping[str, Tensor]) -> float:
    wide = {p.dtype: torch.promote_types(p.dtype, torch.float32) for p in parameters.values()}
    return math.hypot(*(float(torch.linalg.vector_norm(p.detach(), dtype=wide[p.dtype])) for p in parameters.values()))
