"""Values and operations of a traced module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.networks.graph.nodes import Node

SAMPLES = 2  # a module is traced on two samples, to detect operations that mix samples
NO_SAMPLES = -1  # the dimension of the samples of a tensor that has none
MIXES = "mixes samples, or has no dimension for them"
RANDOM = "random numbers"  # the source of constants that are drawn


class UnreadError(Exception):
    """An operation that the theory does not cover; the message is the reason."""


class RefusedError(ValueError):
    """A module that has no graph."""


class RandomError(RefusedError):
    """A module whose graph depends on random numbers; the argument is what these decide."""

    def __init__(self, what: str) -> None:
        advice = "set the probability to 0, or draw once and keep the draw in a buffer"
        super().__init__(
            f"net: draws random numbers that decide {what}; expected the same graph in every call: {advice}"
        )


def expect(condition: object, reason: str) -> None:
    """Raise `UnreadError` with a reason unless the condition holds."""
    if not condition:
        raise UnreadError(reason)


@dataclass(eq=False)
class Value:
    """A tensor in a traced module.

    Attributes
    ----------
    tensor : Tensor
        Its value on the two samples.
    node : str
        The node that computed it; "" if it does not depend on the module's input.
    batch : int
        The sample dimension; NO_SAMPLES if there is none.
    merged : int
        Number of positions per sample merged into the sample dimension, as after ``x.reshape(-1, d)``.
    sources : frozenset of str
        The parameters from which it is computed, if it does not depend on the input.
    """

    tensor: Tensor
    node: str = ""
    batch: int = 0
    merged: int = 1
    sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Keep what the tensor holds now: it may be changed in place."""
        self.version, self.function, self.content = self.tensor._version, self.tensor.grad_fn, self.tensor.detach()
        if not self.sources:
            self.content = self.content.clone()

    @property
    def layout(self) -> tuple[int, int]:
        """Where the samples are."""
        return self.batch, self.merged


class Call:
    """One operation of a module.

    Attributes
    ----------
    tracer : Tracer
        What traces it.
    name : str
        Name of the function, without underscores at its ends, or class of the module, e.g. "relu", "conv2d", "Linear".
    args, kwargs
        Its arguments, with a `Value` in place of every tensor.
    run : callable
        Runs it on other arguments.
    module : torch.nn.Module or None
        The submodule that was called.
    place : str
        Name of this submodule.
    result
        Its result, with tensors.
    values, constants : list of Value
        The arguments that depend on the module's input, and the others.
    made : list of Value
        The values of the nodes that are added for it.
    bias : str
        The parameter that it adds, if this may be the bias of the operation before.
    """

    def __init__(self, tracer: Any, name: str, arguments: Any, run: Any, module: Any = None, place: str = "") -> None:
        self.tracer, self.name, self.run, self.module, self.place = tracer, name, run, module, place
        self.args, self.kwargs = arguments
        self.taken: list[Value] = leaves(arguments, Value)
        self.values = [v for v in self.taken if v.node]
        self.constants = [v for v in self.taken if not v.node]
        self.result: Any = None
        self.made: list[Value] = []
        self.bias = ""

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name, or else the attribute of this name of the called submodule."""
        if position < len(self.args):
            return self.args[position]
        value = self.kwargs.get(name, getattr(self.module, name, default))
        return self.tracer.value(value) if isinstance(value, Tensor) else value

    def again(self, content: Callable[[Value], Tensor]) -> Any:
        """Run it with other tensors in place of the values it takes."""
        args, kwargs = replace((self.args, self.kwargs), Value, content)
        return self.run(*args, **kwargs)

    def on(self, tensors: Iterable[Tensor]) -> Any:
        """Run it with other tensors in place of the values that depend on the module's input."""
        rest = iter(tensors)
        return self.again(lambda value: next(rest) if value.node else value.content.clone())

    def parameter(self, value: Any, what: str) -> tuple[str, Tensor, Tensor]:
        """Return a parameter's name, its tensor and the value as a view of all of it; raise if it is not one."""
        expect(isinstance(value, Value) and (value.sources or value.node), f"its {what} is not a parameter")
        expect(not value.node, "product of two values")
        name, *others = sorted(value.sources)
        tensor = self.tracer.weights.get(name)
        whole = tensor is not None and same_memory(tensor, value.tensor) and tensor.numel() == value.tensor.numel()
        if others or tensor is None or not whole:
            raise UnreadError(f"its {what} is computed from {', '.join([name, *others])}")
        expect(value.tensor.requires_grad, f"no gradient flows to its {what} ({name})")
        return name, tensor, value.tensor

    def emit(
        self, op: str, inputs: list[str], tensor: Tensor, batch: int, merged: int = 1, part: str = "", **fields: Any
    ) -> Value:
        """Add a node and return its value; a part of an operation has a name of its own."""
        tracer, label = self.tracer, label_of(self.module) if self.module is not None else self.name
        function = label.partition("(")[0].lower()
        name = (self.place or f"{tracer.scope[-1]}.{function}".strip(".")).replace(".", "_")
        if part:
            name, label = f"{name}_{part.partition(' ')[0]}", part
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        value = Value(tensor, next(n for n in names if n not in tracer.nodes), batch, merged)
        shape = tuple(samples_first(tensor, *value.layout).shape)[batch != NO_SAMPLES :]
        node = Node(value.node, op, tuple(inputs), shape, module=self.place, text=label, **fields)
        tracer.nodes[node.name], tracer.calls[node.name] = node, self
        self.made.append(value)
        return value

    def reordered(self, values: list[Value], run: Callable[..., Any], result: Any, part: str = "") -> Any:
        """Return the values of a result that has entries of some values, by running it on numbered entries."""
        numbers = leaves(run([self.tracer.numbers(v) for v in values]), Tensor)
        pairs = zip(numbers, leaves(result, Tensor), strict=True)
        reordered = [self.tracer.indexed(*pair, self, part) for pair in pairs]
        return replace(result, Tensor, lambda _: reordered.pop(0))


def label_of(module: Any) -> str:
    """Return a short description of a submodule: class and sizes."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        return f"{kind}({module.in_features}, {module.out_features})"
    if isinstance(module, nn.modules.conv._ConvNd):
        kernel = "x".join(map(str, module.kernel_size))
        groups = f", groups {module.groups}" if module.groups > 1 else ""
        return f"{kind}({module.in_channels}, {module.out_channels}, {kernel}{groups})"
    return kind


def leaves(tree: Any, kind: type) -> list[Any]:
    """Return all leaves of a type in tuples, lists, dictionaries and slices, in order."""
    result: list[Any] = []
    replace(tree, kind, result.append)
    return result


def replace(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return the same tuples, lists, dictionaries and slices with the function applied to the leaves of a type."""
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        items = [replace(item, kind, function) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):
        return {key: replace(item, kind, function) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(replace(item, kind, function) for item in (tree.start, tree.stop, tree.step)))
    return function(tree) if isinstance(tree, kind) else tree


def samples_first(tensor: Tensor, batch: int, merged: int = 1) -> Tensor:
    """Return a tensor as (N, *shape): the samples first, then positions that were merged with them."""
    if batch == NO_SAMPLES:
        return tensor
    return (tensor.unflatten(batch, (SAMPLES, merged)) if merged > 1 else tensor).movedim(batch, 0)


def agree(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same up to rounding, relative to the largest entry."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    largest = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    rtol = max(1e-9, 16 * torch.finfo(b.dtype).eps) if b.is_floating_point() else 0.0  # larger in a module that casts
    return torch.allclose(a, b, rtol=rtol, atol=1e-3 * rtol * (1 + largest), equal_nan=True)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are views of the same memory."""
    return bool(a.numel() and b.numel()) and address(a) == address(b)


def address(tensor: Tensor) -> int:
    """Return where the memory of a tensor starts."""
    return tensor.untyped_storage().data_ptr()


def same_order(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors over the same memory have the same entries in the same order."""
    return a.shape == b.shape and torch.equal(places(a), places(b))


def places(tensor: Tensor) -> Tensor:
    """Return the place of every entry of a tensor in its memory."""
    memory = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
