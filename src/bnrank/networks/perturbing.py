"""What follows from the output of a module, told from runs in which that output is changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Samples

SIZE = 3.0  # of a change, in the largest magnitude of the output
TRIALS = 8  # units that are changed one by one until something follows


class Perturbing:
    """Runs on a few samples, with and without a change to the output of one module.

    Nothing is known where a run fails, or two runs without a change differ.

    Parameters
    ----------
    function : Functional
        The module.
    parts : collection of nn.Module
        The modules whose inputs and outputs are of interest.
    x : Tensor or Inputs
        The samples.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2))
    >>> found = Perturbing(Functional(net), [net[0], net[2]], torch.randn(2, 1, 4))
    >>> dim, share = found.place(net[2], net[0], 1, (3, 3))
    >>> found.changes(net[2], net[0]), dim, round(share, 3)
    (True, 0, 1.0)
    """

    def __init__(self, function: Functional, parts: Collection[nn.Module], x: Samples) -> None:
        self._function, self._parts, self._x = function, parts, x
        self._before: tuple[dict[nn.Module | None, Tensor], ...] | None = None

    def changes(self, reader: nn.Module | None, part: nn.Module) -> bool | None:
        """Return whether what enters a module, or leaves the whole one, changes with the output of a part."""
        differences = self._differences(reader, part, lambda pattern: pattern)
        return None if differences is None else differences is ... or bool((differences != 0).any())

    def place(
        self, reader: nn.Module | None, part: nn.Module, dim: int, shape: Sequence[int]
    ) -> tuple[int, float] | None:
        """Return which dimension of what a module reads has the units of a part, and how surely.

        One unit of the part is changed. The dimension is the first or the last, whichever has more of what changes at
        one place; how surely is this share, 1 where no other place changes. None where nothing is known.

        Parameters
        ----------
        reader, part : nn.Module
            The module that reads, or None for the output of the whole one, and the part.
        dim : int
            The dimension of the units in the output of the part.
        shape : sequence of int
            The shape of one sample of what is read.
        """
        for unit in range(TRIALS):
            differences = self._differences(reader, part, lambda pattern, unit=unit: _only(pattern, dim, unit))
            if differences is None or differences is ...:
                return None
            total = differences.sum()
            if total > 0:
                sizes = differences.reshape(-1, *shape).sum(0)
                shares = [float(sizes.movedim(k, 0).flatten(1).sum(1).max() / total) for k in (0, -1)]
                return (0, shares[0]) if shares[0] > shares[1] else (len(shape) - 1, shares[1])
        return None

    def _differences(self, reader: nn.Module | None, part: nn.Module, choose: Any) -> Any:
        """Return how much a value changes in two runs, with the output of a part shifted both ways.

        It is None where that is not known, and an ellipsis where the value gets another shape or is no longer finite.
        """
        if self._before is None:
            self._before = self._run(), self._run()
        values = [run.get(reader) for run in self._before]
        if values[0] is None or values[1] is None or not torch.equal(values[0], values[1]):
            return None
        total = torch.zeros_like(values[0], dtype=torch.float64)
        for sign in (1.0, -1.0):  # a ReLU hides one of them
            value = self._run(part, lambda output, sign=sign: output + sign * choose(_pattern(output))).get(reader)
            if value is None:
                return None
            if value.shape != total.shape or not torch.isfinite(value).all():
                return ...
            total += (value.double() - values[0].double()).abs()
        return total

    def _run(self, part: nn.Module | None = None, change: Any = None) -> dict[nn.Module | None, Tensor]:
        """Return what enters every module and, by None, what leaves the whole one; nothing where it fails."""
        found: dict[nn.Module | None, Tensor] = {}

        def enter(reader: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)), None)
            if given is not None and given.layout == torch.strided and not given.is_nested and not given.is_complex():
                found[reader] = given.clone()

        with torch.no_grad(), ExitStack() as stack:
            for reader in self._parts:
                stack.callback(reader.register_forward_pre_hook(enter, with_kwargs=True).remove)
            if part is not None:
                stack.callback(part.register_forward_hook(lambda part, args, output: change(output)).remove)
            try:
                found[None] = self._function(self._x)
            except Exception:
                return {}
        return found


def _pattern(output: Tensor) -> Tensor:
    """Return fixed numbers of both signs, larger than the output."""
    numbers = torch.randn(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    largest = float(output.abs().max()) if output.numel() else 0.0
    return (SIZE * (largest or 1.0) * (numbers + numbers.sign())).to(output)


def _only(pattern: Tensor, dim: int, unit: int) -> Tensor:
    """Return the pattern of one unit, and 0 for the others."""
    chosen = torch.zeros_like(pattern)
    chosen.select(dim, unit % pattern.shape[dim]).copy_(pattern.select(dim, unit % pattern.shape[dim]))
    return chosen
