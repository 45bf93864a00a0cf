"""Values and operations of a traced module: tensors of two samples, shared memory and reorderings of entries."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SAMPLES = 2
"""Number of samples a module is traced on: two, to detect operations that mix samples."""

MIXES = "mixes samples, or has no dimension for them"

NO_SAMPLES = -1
"""The dimension of the samples of a tensor that has none."""

_GENERATORS = threading.RLock()  # the global random generators belong to the process


class UnreadError(Exception):
    """An operation that the theory does not cover; the message is the reason."""


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
    node : str or None
        The node that computed it; None if it does not depend on the module's input.
    batch : int
        The sample dimension; NO_SAMPLES if there is none.
    sources : frozenset of str
        The parameters from which it is computed, if it does not depend on the input.
    raw : bool
        Whether the tensor is not traced: a buffer, or a tensor created by forward.
    merged : int
        Number of positions per sample merged into the sample dimension, as after ``x.reshape(-1, d)``.
    """

    tensor: Tensor
    node: str | None = None
    batch: int = 0
    sources: frozenset[str] = frozenset()
    raw: bool = False
    merged: int = 1

    @property
    def canonical(self) -> Tensor:
        """Its tensor as (N, *shape)."""
        return canonical(self.tensor, self.batch, self.merged)

    @property
    def layout(self) -> dict[str, int]:
        """Where the samples are."""
        return {"batch": self.batch, "merged": self.merged}

    def before(self) -> Value:
        """Return a copy that a later change in place does not reach."""
        with torch.enable_grad():  # a clone that gradients flow through as through the tensor
            return dataclasses.replace(self, tensor=self.tensor.clone())


@dataclass
class Call:
    """One operation of a module.

    Attributes
    ----------
    name : str
        Name of the function, see `function_name`, or class of the module, e.g. "relu", "conv2d", "Linear".
    args, kwargs
        Its arguments before it ran, with a `Value` in place of every tensor.
    result
        Its result, with tensors.
    run : callable
        Runs it again on other arguments.
    module : torch.nn.Module or None
        The submodule that was called.
    weights : mapping
        The module's parameters by name.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    run: Callable[..., Any]
    module: nn.Module | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by position or name, or else the attribute of this name of the called submodule."""
        if position < len(self.args):
            return self.args[position]
        held = self.kwargs.get(name, getattr(self.module, name, default))
        if not isinstance(held, Tensor):
            return held
        return Value(held, sources=frozenset(n for n, p in self.weights.items() if p is held))

    def again(self, content: Callable[[Value], Tensor]) -> Any:
        """Run it with other tensors in place of the values it takes."""
        args, kwargs = replace((self.args, self.kwargs), Value, content)
        return self.run(*args, **kwargs)

    @property
    def taken(self) -> list[Value]:
        """Its tensor arguments."""
        return leaves((self.args, self.kwargs), Value)

    @property
    def values(self) -> list[Value]:
        """Arguments that depend on the module's input."""
        return [v for v in self.taken if v.node is not None]

    @property
    def constants(self) -> list[Value]:
        """Arguments that do not depend on the module's input."""
        return [v for v in self.taken if v.node is None]

    @property
    def owned(self) -> list[str]:
        """The parameters of the called submodule."""
        held = [] if self.module is None else [id(p) for p in self.module.parameters()]
        return [name for name, p in self.weights.items() if id(p) in held]

    @property
    def held(self) -> set[str]:
        """All parameters it uses."""
        return {*self.owned, *(name for v in self.constants for name in v.sources)}

    def parameter(self, value: Value | None, what: str) -> tuple[str, Tensor, Tensor]:
        """Return a parameter's name, its tensor and the value as a view of all of it; raise if it is not one."""
        depends = isinstance(value, Value) and value.node is not None
        expect(not depends, "product of two values")
        if not isinstance(value, Value) or not value.sources:
            raise UnreadError(f"its {what} is not a parameter")
        name, *others = sorted(value.sources)
        tensor = self.weights.get(name)
        whole = tensor is not None and same_memory(tensor, value.tensor) and tensor.numel() == value.tensor.numel()
        if others or tensor is None or not whole:
            raise UnreadError(f"its {what} is computed from {', '.join([name, *others])}")
        expect(value.tensor.requires_grad, f"no gradient flows to its {what} ({name})")
        return name, tensor, value.tensor


Emit = Callable[..., Value]
"""Adds a node (op, inputs, tensor, batch, merged=1, **fields) to the graph and returns its value."""


def leaves(tree: Any, kind: type) -> list[Any]:
    """Return all leaves of a type in tuples, lists, dictionaries and slices, in order."""
    found: list[Any] = []
    replace(tree, kind, found.append)
    return found


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


def canonical(tensor: Tensor, batch: int, merged: int = 1) -> Tensor:
    """Return a tensor as (N, *shape): the samples first, then positions that were merged with them."""
    if batch == NO_SAMPLES:
        return tensor
    if merged > 1:
        tensor = tensor.unflatten(batch, (SAMPLES, merged))
    return tensor.movedim(batch, 0)


def agree(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same up to rounding, relative to the largest entry."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    largest = float(b.abs().nan_to_num(0, 0, 0).max()) if b.numel() else 0.0
    eps = torch.finfo(b.dtype).eps if b.is_floating_point() else 0.0
    rtol, atol = (16 * eps, 1e-3 * eps) if eps > 1e-9 else (1e-9, 1e-12)  # larger in a module that casts
    return torch.allclose(a, b, rtol=rtol, atol=atol * (1 + largest), equal_nan=True)


def function_name(function: Any) -> str:
    """Return the name of a function or method of torch, without underscores at its ends, as of in-place ones."""
    if getattr(function, "__name__", "") == "__get__":  # of an attribute
        return str(function.__self__.__name__)
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are views of the same memory."""
    return bool(a.numel() and b.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def same_place(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same view of the same memory."""
    return same_memory(a, b) and a.storage_offset() == b.storage_offset() and same_order(a, b)


def same_order(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors of the same beginning lay out their entries alike."""
    if a.shape != b.shape or a.data_ptr() != b.data_ptr():
        return False
    return all(x == y or n == 1 for x, y, n in zip(a.stride(), b.stride(), a.shape, strict=True))


def addresses(tensor: Tensor) -> Tensor:
    """Return the position of every entry of a tensor in its storage."""
    memory = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def written(shown: Tensor, by: Tensor) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return what gives, of the entries of two tensors over the same memory, ``shown`` once ``by`` is written."""
    places = addresses(shown), addresses(by)

    def seen(entries: Sequence[Tensor]) -> Tensor:
        memory = torch.zeros(1 + max(int(place.max()) for place in places), dtype=torch.float64)
        for place, numbers in zip(places, entries, strict=True):
            memory[place.flatten()] = numbers.flatten()
        return memory[places[0]]

    return seen


@contextlib.contextmanager
def generators(seed: int | None = None) -> Iterator[Callable[[], bool]]:
    """Restore the random generators of torch, NumPy and Python afterwards; within, start them at a seed if given.

    Yields a function that returns whether numbers have been drawn.
    """

    def state() -> tuple[Any, ...]:
        key = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  (what forward may draw from)
        return torch.get_rng_state().numpy().tobytes(), key["key"].tobytes(), key["pos"], random.getstate()

    with _GENERATORS:
        numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            with torch.random.fork_rng([]):
                if seed is not None:
                    torch.manual_seed(seed)
                    np.random.seed(seed)  # noqa: NPY002
                    random.seed(seed)
                before = state()
                yield lambda: state() != before
        finally:
            np.random.set_state(numpy)  # noqa: NPY002
            random.setstate(python)


def reorder(values: list[Value], run: Callable[..., Any], result: Any, emit: Emit, **fields: Any) -> Any:
    """Add an "index" node for every tensor of the result, by running the operation on numbered entries.

    Parameters
    ----------
    values : list of Value
        Arguments of the operation.
    run : callable
        The operation as a function of tensors that replace these arguments.
    result
        Result of the operation: one tensor or several.
    emit : callable
        Adds a node.
    """
    sizes = [v.tensor.numel() // SAMPLES for v in values]
    total = sum(sizes)
    ids, start = [], 1
    for value, size in zip(values, sizes, strict=True):
        numbered = start + torch.arange(size, dtype=torch.float64) + total * torch.arange(SAMPLES)[:, None]
        numbered = numbered.reshape(value.canonical.shape).movedim(0, value.batch)
        ids.append(numbered.reshape(value.tensor.shape))  # positions that are merged with the samples come after them
        start += size

    def reordered(numbers: Tensor, tensor: Tensor) -> Value:
        batch, merged = _samples(torch.where(numbers == 0, -1, (numbers - 1) // total))
        entries = canonical(numbers, batch, merged)
        index = torch.where(entries == 0, -1, (entries - 1) % total).to(torch.int64)
        expect(torch.equal(index[0], index[1]), "treats samples differently")
        flat = index[0].flatten()
        same = len(values) == 1 and index[0].shape == values[0].canonical.shape[1:]
        if same and torch.equal(flat, torch.arange(len(flat))):
            return Value(tensor, values[0].node, batch, merged=merged)
        kept, flat = _needed(values, flat)
        return emit("index", kept, tensor, batch, merged, index=flat.numpy(), **fields)

    numbers, tensors = leaves(run(ids), Tensor), leaves(result, Tensor)
    made = iter([reordered(n, t) for n, t in zip(numbers, tensors, strict=True)])
    return replace(result, Tensor, lambda _: next(made))


def _samples(sample: Tensor) -> tuple[int, int]:
    """Return the dimension along which samples follow each other, and how many entries of it each has."""
    for merged_too in (False, True):
        for batch, size in enumerate(sample.shape):
            if size % SAMPLES == 0 and (size == SAMPLES or merged_too):
                rows = canonical(sample, batch, size // SAMPLES).reshape(SAMPLES, -1)
                if all(bool(((row == i) | (row == -1)).all()) for i, row in enumerate(rows)):
                    return batch, size // SAMPLES
    raise UnreadError(MIXES)


def layout(call: Call, number: int) -> tuple[int, int]:
    """Return the sample dimension of a result tensor of any operation, and the number of its entries per sample.

    If no sample dimension of an argument is preserved, it is found by perturbing one sample at a time.
    """
    shape = leaves(call.result, Tensor)[number].shape
    sizes = dict(enumerate(shape))
    for value in call.values:
        if value.merged == 1 and sizes.get(value.batch) == SAMPLES:
            return value.batch, 1

    def run(changed: int | None) -> Tensor:
        def content(value: Value) -> Tensor:
            tensor = value.tensor.detach().clone()
            if value.node is not None and changed is not None and tensor.is_floating_point():
                canonical(tensor, value.batch, value.merged)[changed].mul_(1.5).add_(0.25)
            return tensor

        with generators(0):  # the same random numbers
            found: Tensor = leaves(call.again(content), Tensor)[number]
        return found

    if all(value.batch != NO_SAMPLES for value in call.values):
        plain, sample = run(None), torch.full(shape, -1)
        for i in range(SAMPLES):
            sample = torch.where(run(i) != plain, torch.where(sample == -1, i, SAMPLES), sample)
        with contextlib.suppress(UnreadError):
            return _samples(sample)
    return (0, 1) if sizes.get(0) == SAMPLES else (NO_SAMPLES, 1)


def _needed(values: list[Value], index: Tensor) -> tuple[list[Value], Tensor]:
    """Return the inputs that are used, with the index renumbered accordingly."""
    kept, start, moved = [], 0, index.clone()
    for value in values:
        end = start + value.tensor.numel() // SAMPLES
        if bool(((index >= start) & (index < end)).any()):
            kept.append(value)
        else:
            moved[index >= end] -= end - start
        start = end
    return kept or values[:1], moved
