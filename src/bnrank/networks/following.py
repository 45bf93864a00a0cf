"""Whether the next layer reads what a layer returns, and what is flattened between the two, with the place of units."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Inputs, Samples
from bnrank.networks.perturbing import Perturbing

_FLATTENING = {torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view}
_READING = {Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__}


@dataclass(frozen=True)
class _Place:
    """A tensor of the run: its node and shape, and how many flattenings and losses of gradients came before it."""

    node: Any
    shape: tuple[int, ...]
    flattened: int
    lost: int
    known: bool  # whether it has gradients


class Following:
    """A run on a few samples whose graph tells which values follow from the outputs of which modules.

    Nothing is known where the module does not run with gradients, or turns them off. Where an operation between two
    modules loses them, as ``detach`` does, runs with another output of the first tell what the graph does not.

    Parameters
    ----------
    function : Functional
        The module.
    parts : collection of nn.Module
        The modules whose inputs and outputs are of interest; those that run once.
    x : Tensor or Inputs
        The samples.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2))
    >>> found = Following(Functional(net), [net[0], net[2]], torch.ones(2, 1, 4))
    >>> found.reads(net[2], net[0]), found.unflattened(net[2], net[0])
    (True, (3, 3))
    """

    def __init__(self, function: Functional, parts: Collection[nn.Module], x: Samples) -> None:
        self._entered: dict[nn.Module | None, _Place] = {}
        self._left: dict[nn.Module, _Place] = {}
        self._mode = mode = _Watching()
        self._perturbing = Perturbing(function, parts, x)

        def place(tensor: Tensor) -> _Place:
            shape, known = tuple(tensor.shape), tensor.requires_grad
            return _Place(tensor.grad_fn, shape, len(mode.flattened), mode.lost, known)

        def enter(part: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)), None)
            if given is not None:
                self._entered[part] = place(given)

        def leave(part: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
            if not isinstance(output, Tensor) or not output.is_floating_point() or not torch.is_grad_enabled():
                return None
            output = _marked(output).clone()  # what follows may work in place, which a leaf does not allow
            self._left[part] = place(output)
            return output

        with suppress(Exception), torch.enable_grad(), ExitStack() as stack:
            for part in parts:
                stack.callback(part.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(leave).remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing))
            stack.enter_context(mode)
            enter(None, (function(_marked(x)),), {})
        if None not in self._entered:  # it failed
            self._entered, self._left = {}, {}

    def reads(self, reader: nn.Module | None, part: nn.Module) -> bool | None:
        """Return whether what enters a module, or leaves the whole one, follows from the output of a part."""
        if reader is part or reader not in self._entered or part not in self._left:
            return None
        entered, left = self._entered[reader], self._left[part]
        if entered.known and self._follows(entered.node, left.node):
            return True
        if entered.lost > left.lost:
            return self._perturbing.changes(reader, part)
        return False if entered.known else None

    def _follows(self, start: Any, target: Any) -> bool:
        """Return whether a path in the graph leads from a node to another."""
        oldest, seen, waiting = _number(target), {start}, [start]
        while waiting:
            node = waiting.pop()
            if node is target:
                return True
            for other, _ in node.next_functions if node is not None else ():
                if other is not None and other not in seen and _number(other) >= oldest:  # others are made before
                    seen.add(other)
                    waiting.append(other)
        return False

    def unflattened(self, reader: nn.Module | None, part: nn.Module) -> tuple[int, ...]:
        """Return the shape of one sample before it is flattened between a part and its reader; () if it is not."""
        if reader is part or reader not in self._entered or part not in self._left:
            return ()
        entered, left = self._entered[reader], self._left[part]
        between = self._mode.flattened[left.flattened : entered.flattened]
        return next((before[1:] for before, after in reversed(between) if after == entered.shape), ())

    def units_dim(
        self, reader: nn.Module | None, part: nn.Module, dim: int, width: int, shape: tuple[int, ...], vector: bool
    ) -> int | None:
        """Return which dimension of one sample of what is read, the first or the last, has the units of a part.

        It is the one with their number. Where both have it, and for a part that returns vectors, whose number of units
        other dimensions can have by chance, runs with a change to one unit tell. None where it is not known.

        Parameters
        ----------
        reader, part : nn.Module
            The module that reads, or None for the output of the whole one, and the part.
        dim, width : int
            The dimension of the units in the output of the part, and their number.
        shape : tuple of int
            The shape of one sample of what is read, before it is flattened.
        vector : bool
            Whether the part returns one vector per sample.
        """
        possible = [k for k in (0, len(shape) - 1) if shape[k] == width]
        if not possible or (len(possible) == 1 and not vector):
            return possible[0] if possible else None
        found = self._perturbing.place(reader, part, dim, shape)
        if found is None or found[0] not in possible or (vector and found[1] <= 0.5):
            return None
        return found[0]


class _Watching(TorchFunctionMode):
    """Shapes around operations that join all dimensions but the first, and the number of those that lose gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.flattened: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.lost = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = any(tensor.requires_grad for tensor in _tensors((args, kwargs)))
        result = func(*args, **kwargs)
        if func in _FLATTENING and args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            before, after = tuple(args[0].shape), tuple(result.shape)
            if len(before) > 2 and after == (before[0], math.prod(before[1:])):
                self.flattened.append((before, after))
        self.lost += given and (func in _READING or any(not tensor.requires_grad for tensor in _tensors(result)))
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _number(node: Any) -> float:
    """Return when a node of the graph was made."""
    return float(node._sequence_nr()) if hasattr(node, "_sequence_nr") else math.inf


def _marked(x: Any) -> Any:
    """Return what requires gradients already, or copies of floating-point tensors that do."""
    if isinstance(x, Inputs):
        return Inputs(tuple(map(_marked, x.positional)), {key: _marked(v) for key, v in x.named.items()}, x.dim)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.requires_grad:
        return x
    return x.detach().clone().requires_grad_()
