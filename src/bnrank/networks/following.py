"""Whether the next layer reads what a layer returns, and the shape of what is flattened between the two."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Inputs, Samples

_FLATTENING = {torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape, Tensor.view}
Place = tuple[Any, tuple[int, ...], int]  # the node of a tensor in the graph, its shape, and the flattenings before it


class Following:
    """A run on a few samples whose graph tells which values follow from the outputs of which modules.

    Nothing is known where the module does not run with gradients, or turns them off.

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
        self._entered: dict[nn.Module | None, Place] = {}
        self._left: dict[nn.Module, tuple[Any, int]] = {}
        mode = _Flattening()

        def enter(part: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((value for value in [*args, *kwargs.values()] if isinstance(value, Tensor)), None)
            if given is not None and given.requires_grad:
                self._entered[part] = given.grad_fn, tuple(given.shape), len(mode.found)

        def leave(part: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
            if not isinstance(output, Tensor) or not output.is_floating_point() or not torch.is_grad_enabled():
                return None
            output = _marked(output).clone()  # what follows may work in place, which a leaf does not allow
            self._left[part] = output.grad_fn, len(mode.found)
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
        self._flattened = mode.found

    def reads(self, reader: nn.Module | None, part: nn.Module) -> bool | None:
        """Return whether what enters a module, or leaves the whole one, follows from the output of a part."""
        if reader is part or reader not in self._entered or part not in self._left:
            return None
        target, start = self._left[part][0], self._entered[reader][0]
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
        if not self.reads(reader, part):
            return ()
        _, shape, end = self._entered[reader]
        between = self._flattened[self._left[part][1] : end]
        return next((before[1:] for before, after in reversed(between) if after == shape), ())


class _Flattening(TorchFunctionMode):
    """Shapes before and after every operation that joins all dimensions but the first."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _FLATTENING and args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
            before, after = tuple(args[0].shape), tuple(result.shape)
            if len(before) > 2 and after == (before[0], math.prod(before[1:])):
                self.found.append((before, after))
        return result


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
