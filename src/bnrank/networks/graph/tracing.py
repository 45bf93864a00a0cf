"""Tracing of modules into computation graphs."""

import functools
import inspect
import itertools
import pickle
import random
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from bnrank._core.draws import OwnDraws
from bnrank.networks import functional
from bnrank.networks.graph import operations, values
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node, apply
from bnrank.networks.graph.values import (
    NO_SAMPLES,
    RANDOM,
    SAMPLES,
    Call,
    RandomError,
    RefusedError,
    UnreadError,
    Value,
    agree,
    expect,
    leaves,
    places,
    same_memory,
)
from bnrank.networks.reasons import Skipped

REPEATS = 32  # traces of a module that draws from the generators of NumPy or Python
_FOLLOWED = ("torch.nn.modules.container", "torch.nn.modules.transformer", "torch._dynamo")  # run other modules only
_NUMBERS = "item tolist numpy equal allclose is_nonzero __bool__ __int__ __float__ __index__ __contains__ __array__"
_UNKNOWN = "parameters computed outside torch functions"
_STEP = 2.0**50  # larger than the number of entries of all values: the sample of an entry is counted in these steps


def trace(net: nn.Module, example: Tensor | np.ndarray) -> LayerGraph:
    """Return the computation graph of a module, with one node per operation.

    A copy of the module runs in eval mode and float64 on two samples. The values of every operation identify
    reorderings and pooling, regardless of function names, and verify every node. Supported operations are linear and
    convolutional layers, positively homogeneous activations, sums, learnable diagonals, pooling and reorderings. Any
    other operation becomes a node "outside" with the reason; the rest of the graph is still analyzed.

    Nothing outside the copy and this thread is changed. Random functions of torch draw from generators of their own;
    numbers that the forward draws from the global generators of NumPy and Python advance these, as in any call.

    Parameters
    ----------
    net : torch.nn.Module
        A feedforward module that maps one tensor to one tensor; it is not modified.
    example : Tensor or ndarray
        One or more samples of the module's input, shape (N, ...); only the shape matters.

    Raises
    ------
    TypeError, ValueError
        If ``net`` is not a module, takes or returns more than one tensor, has recurrent layers, uses weights in several
        places (the error names them), has data-dependent control flow (the error gives the line), changes its input in
        place, or draws random numbers that determine which operations or entries it uses, in eval or training mode.
        Those of NumPy and Python are detected with 32 additional traces; events with a probability of 1 percent can be
        missed. Added noise and dropout are "outside" and raise no error.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> graph = trace(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)), torch.ones(2, 3))
    >>> [(node.name, node.op, node.weight) for node in graph]
    [('input', 'input', ''), ('0', 'linear', '0.weight'), ('1', 'activation', ''), ('2', 'linear', '2.weight')]
    """
    net = functional.unwrap(net)
    _check(net)
    x = functional.example(net, example, name="example")
    x = torch.cat([x, x]) if len(x) < SAMPLES else x[:SAMPLES]
    drawn = _foreign_draws()
    nodes = _verified(net, x)
    kind = type(net).__name__
    training, modes = nodes, [False]
    try:
        training = Tracer(net, x, training=True).follow()[0]
        modes.append(True)
    except RandomError:
        raise
    except ValueError:
        pass  # what runs in eval mode need not run while training, as batch norm on one entry per channel
    if other := _difference(nodes, training):
        raise ValueError(
            f"net: {kind} does something else while training than in eval mode, near {other.name!r} ({other.text}); "
            "expected the same graph: set the probability of dropping to 0"
        )
    for mode in modes * (REPEATS if _foreign_draws() != drawn else 0):
        if other := _difference(nodes, Tracer(net, x, training=mode).follow()[0]):
            raise RandomError(f"what it does at {other.name!r} ({other.text})")
    outside: dict[str, Skipped] = {}  # each operation once
    for node in nodes:
        if node.op == "outside":
            name = node.module or node.name
            outside.setdefault(name, Skipped(name, node.text.partition("(")[0], node.reason))
    parameters = dict(net.named_parameters())
    trained = frozenset(name for name, p in parameters.items() if p.requires_grad)
    detached = {name: p.detach() for name, p in parameters.items()}
    return LayerGraph(nodes, nodes[-1].name, trained, tuple(outside.values()), detached, kind)


def _check(net: nn.Module) -> None:
    try:
        functional.check_unshared(net)
    except ValueError as error:
        raise ValueError(f"{str(error).partition(', expected')[0]}, expected separate ones") from None
    kind = type(net).__name__
    if getattr(getattr(net, "forward", None), "__name__", "") == "_forward_unimplemented":
        raise ValueError(f"net: {kind} has no forward, expected a module that can be called")
    for name, sub in net.named_modules():
        place = f"{name!r} ({type(sub).__name__})" if name else type(sub).__name__
        if isinstance(sub, nn.RNNBase | nn.RNNCellBase):
            recurrent = "recurrent, its weights act once per time step; expected a feedforward module"
            raise ValueError(f"net: {place} is {recurrent}")
        if isinstance(sub, torch.jit.ScriptModule):
            raise ValueError(f"net: {place} is scripted, which cannot be followed; pass the original module")
    arguments = inspect.signature(net.forward).parameters.values()
    needed = [p.name for p in arguments if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1:
        advice = "expected one tensor; wrap it in a module that fixes the others"
        raise ValueError(f"net: the forward of {kind} needs {len(needed)} arguments ({', '.join(needed)}), {advice}")


def _verified(net: nn.Module, x: Tensor) -> tuple[Node, ...]:
    """Return the nodes in eval mode; raise if the output or the gradients differ from those of the module."""
    kind, function = type(net).__name__, functional.Functional(net)
    names = [name for name, p in function.parameters.items() if p.is_floating_point()]
    for name in names:
        function.parameters[name].requires_grad_()
    with torch.enable_grad(), OwnDraws():
        try:
            expected = function.main(x)  # its errors are about the module, not about tracing it
        except ValueError as error:
            text = re.sub("(failed|runs) on x of", r"\1 on samples of", str(error), count=1)
            if isinstance(error, functional.PrecisionError):
                text = text.replace(error.advice, "leave out casts of values to another precision")
            raise ValueError(text) from error.__cause__
    tracer = Tracer(net, x)
    nodes, output = tracer.follow()
    if output.batch != 0 or not agree(output.tensor.detach(), expected.detach().cpu()):
        raise ValueError(
            f"net: the graph of {kind} does not give its output; forward hooks, state that is kept between calls, or "
            "draws from the generators of NumPy or Python change it, remove them"
        )
    if not (names and expected.requires_grad and expected.is_floating_point()):
        return nodes
    weights = torch.cos(torch.arange(expected.numel(), dtype=expected.dtype)).reshape(expected.shape)
    try:
        product = (weights.to(expected.device) * expected).sum()
        wanted = torch.autograd.grad(product, [function.parameters[name] for name in names], materialize_grads=True)
    except RuntimeError as error:
        raise ValueError(f"net: {kind} has no gradient: {error}") from error
    traced = [tracer.weights[name] for name in names]
    gradients = tuple(map(torch.zeros_like, traced))
    if output.tensor.requires_grad:
        gradients = torch.autograd.grad((weights * output.tensor).sum(), traced, materialize_grads=True)
    wrong = [name for name, a, b in zip(names, wanted, gradients, strict=True) if not agree(b, a.cpu())]
    if wrong:
        shown = f"{', '.join(wrong[:3])} is not that of the graph of {kind}"
        raise ValueError(f"net: the gradient of {shown}; backward hooks change it, remove them")
    return nodes


def _foreign_draws() -> bytes:
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002  (what forward may draw from)


def _difference(nodes: Sequence[Node], others: Sequence[Node]) -> Node | None:
    """Return the first node at which two graphs differ."""
    for a, b in itertools.zip_longest(nodes, others):
        if a is None or b is None or (a.name, a.op, a.inputs) != (b.name, b.op, b.inputs):
            return b or a
        arrays: list[tuple[Any, Any]] = [(a.index, b.index), (a.windows, b.windows)]
        if not all(np.array_equal(one, other) for one, other in arrays):
            return b
    return None


class Tracer(TorchFunctionMode):
    """Runs a float64 copy of a module on two samples and collects its nodes.

    Parameters
    ----------
    net : torch.nn.Module
        The module.
    x : Tensor
        Two samples.
    training : bool
        Whether the copy is in training mode.
    """

    def __init__(self, net: nn.Module, x: Tensor, training: bool = False) -> None:
        super().__init__()
        self.net = _copy(net, training, self._call)
        self.weights = dict(self.net.named_parameters())
        self.names = {id(p): name for name, p in self.weights.items()}
        self.values: dict[int, Value] = {}  # by the id of the tensor
        self.seen: list[Value] = []  # all, in order; keeps tensors alive
        self.memories: dict[int, Tensor] = {}  # numbers of the entries in memory that is changed in place, by address
        self.nodes: dict[str, Node] = {}
        self.starts: dict[str, int] = {}  # number of the first entry of every node
        self.entries = 0
        self.partly: dict[tuple[str, str], Tensor] = {}  # entries of a parameter that a node outside uses
        self.calls: dict[str, int] = {}  # number of the operation that a node belongs to
        self.count = 0
        self.scope = [""]
        self.working = False  # inside an operation
        self.draws = OwnDraws()
        x = _double(x)
        if x.is_floating_point():
            x = x.requires_grad_().clone()
        self.input = self._keep(self._emit("input", "input", [], x, 0, text="input"))

    def follow(self) -> tuple[tuple[Node, ...], Value]:
        """Run the module; return the nodes from which its output is reachable, with it last, and its value."""
        kind = type(self.net).__name__
        try:
            with torch.enable_grad(), self.draws, self:
                result = self.net(self.input.tensor)
            if not isinstance(result, Tensor):
                raise RefusedError(f"net: {kind} returns {type(result).__name__}, expected one tensor")
            output = self._value(result)
            if not output.node:
                raise RefusedError(f"net: {kind} returns a tensor that does not depend on its input")
        except RefusedError:
            raise
        except Exception as error:
            raise ValueError(f"net: {kind} cannot be traced{_where(error)}: {error}") from error
        return self._finished(output), output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Intercept a function or method of torch."""
        attribute = getattr(func, "__name__", "") == "__get__"
        name = str(func.__self__.__name__ if attribute else getattr(func, "__name__", type(func).__name__))
        if not self.working and name in _NUMBERS.split():
            self._refuse_number([self._value(tensor) for tensor in leaves(args, Tensor)])
        run = _setitem if func is Tensor.__setitem__ else func
        return self._run(name.strip("_"), run, args, kwargs or {})

    def _call(self, module: nn.Module, place: str, *args: Any, **kwargs: Any) -> Any:
        """Trace into a submodule, or run it as a single operation."""
        forward = getattr(module, "_conv_forward", None) if isinstance(module, nn.modules.conv._ConvNd) else None
        files = [str(getattr(f, "__module__", "")) for f in (type(module).forward, forward) if f is not None]
        known = all(file.startswith("torch.nn.") and file not in _FOLLOWED for file in files)
        if known and "forward" not in vars(module):
            return self._run(type(module).__name__, module._call_impl, args, kwargs, module, place)
        self.scope.append(place)
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            self.scope.pop()

    def _refuse_number(self, taken: list[Value]) -> None:
        if any(v.node for v in taken):
            raise RefusedError(
                f"net: control flow or a number depends on the data{_where()}; one graph must hold for every input: "
                "take the decision outside the module, or write it with activations"
            )
        sources = {name for v in taken for name in v.sources}
        if RANDOM in sources:
            raise RandomError(f"which operations it runs{_where()}")
        if sources:
            names = ", ".join(sorted(sources))
            raise RefusedError(f"net: a number is taken out of {names}{_where()}; no gradient would flow to it")

    def _run(
        self, name: str, run: Any, args: Any, kwargs: Any, module: nn.Module | None = None, place: str = ""
    ) -> Any:
        """Return the result of an operation, after adding it to the graph."""
        if self.working:
            return run(*args, **kwargs)
        self.working = True
        try:
            args, kwargs = values.replace((args, kwargs), Tensor, self._value)
            return self._record(Call(name, args, kwargs, run, module, place, self.weights))
        finally:
            self.working = False

    def _record(self, call: Call) -> Any:
        versions, drawn = [v.tensor._version for v in call.taken], self.draws.count
        call.result = call.again(lambda value: value.tensor)
        tensors: list[Tensor] = leaves(call.result, Tensor)
        if "empty" in call.name:
            tensors[0].zero_()  # every entry is overwritten, or the module is not defined
        changed = [v for v, version in zip(call.taken, versions, strict=True) if v.tensor._version != version]
        self._check_changes(call, changed)
        fresh = call.name.removeprefix("new_") in ("zeros", "ones", "full", "empty") or call.name.endswith("_like")
        if call.values and tensors and not fresh:
            result: list[Value] = leaves(self._read(call), Value)
        else:
            drawn_too = {RANDOM} if self.draws.count > drawn else set()
            taken = () if fresh else (*call.owned, *(name for v in call.taken for name in v.sources))
            sources = frozenset({*taken, *drawn_too})
            elsewhere = [v.tensor for v in call.taken if v.raw]
            result = [Value(t, sources=sources, raw=any(same_memory(t, other) for other in elsewhere)) for t in tensors]
        written = [value for value in result if any(value.tensor is other.tensor for other in changed)]
        if changed and not written:
            raise RefusedError(f"net: {call.name} changes a value in place{_where()}, which bnrank does not follow")
        for value in written:
            self._write(value)
        for value in result:
            self._keep(value)
        return call.result

    def _check_changes(self, call: Call, changed: list[Value]) -> None:
        for value in changed:
            parameters = value.sources & self.weights.keys()
            if parameters:
                what = f"the parameter {', '.join(parameters)}"
            elif same_memory(value.tensor, self.input.tensor):
                what = "its input"
            elif value.raw and call.values:
                what = "a buffer, or a tensor that does not come from its input,"
            else:
                continue
            by = call.place if call.module is not None else call.name
            only = "expected a forward that writes only to what it computed"
            raise RefusedError(f"net: forward changes {what} in place, by {by}{_where()}; {only}")

    # tensors

    def _value(self, tensor: Tensor) -> Value:
        """Return the value that a tensor has now."""
        value = self.values.get(id(tensor))
        if isinstance(tensor.grad_fn, BackwardCFunction) and (value is None or value.function is not tensor.grad_fn):
            return self._keep(self._from_elsewhere(tensor))
        if value is not None:
            return value if value.version == tensor._version else self._keep(self._reread(value))
        if id(tensor) in self.names:
            return self._keep(Value(tensor, sources=frozenset([self.names[id(tensor)]]), raw=True))
        if isinstance(tensor, nn.Parameter):
            advice = "keep it, or its module, as an attribute, or in a ModuleList"
            raise RefusedError(f"net: forward uses a parameter that is not registered{_where()}; {advice}")
        if tensor.grad_fn is None:
            return self._keep(Value(tensor, raw=True))
        return self._keep(self._from_elsewhere(tensor))

    def _keep(self, value: Value) -> Value:
        self.values[id(value.tensor)] = value
        self.seen.append(value)
        return value

    def _from_elsewhere(self, tensor: Tensor) -> Value:
        """Return the value of a tensor that an autograd.Function, or code outside torch's functions, computed."""
        known = [v for v in self.seen if v.node and v.tensor.grad_fn is not None]
        functions: list[Any] = [tensor.grad_fn]
        inputs: dict[str, Value] = {}
        sources: set[str] = set()
        for function in functions:
            taken = [v for v in known if v.tensor.grad_fn is function]
            inputs |= {v.node: v for v in taken}
            if hasattr(function, "variable"):
                sources.add(self.names.get(id(function.variable), _UNKNOWN))
            if not taken:
                functions += [f for f, _ in function.next_functions if f is not None and f not in functions]
        if not inputs:
            return Value(tensor, sources=frozenset(sources or {_UNKNOWN}))
        name = type(tensor.grad_fn).__name__.removesuffix("Backward")
        reason = "an autograd.Function, whose gradient is its own"
        if not isinstance(tensor.grad_fn, BackwardCFunction):
            reason = f"{name} is computed outside torch's functions"
        self.count += 1
        held = tuple(sorted(sources & self.weights.keys()))
        layout = _layout(list(inputs.values()), tensor)
        return self._emit(
            self._base(name), "outside", list(inputs), tensor, *layout, text=name, reason=reason, held=held
        )

    def _write(self, value: Value) -> None:
        """Note what a tensor holds that was changed in place, for other tensors over the same memory."""
        tensor = value.tensor
        address = tensor.untyped_storage().data_ptr()
        if address not in self.memories:
            if not value.node:
                return
            first = next(v for v in self.seen if same_memory(v.tensor, tensor))
            memory = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=torch.float64)
            memory[places(first.tensor)] = self._numbers(first)
            self.memories[address] = memory
        self.memories[address][places(tensor)] = self._numbers(value)

    def _reread(self, value: Value) -> Value:
        """Return the value of a tensor over memory that was changed through another tensor."""
        tensor = value.tensor
        memory = self.memories.get(tensor.untyped_storage().data_ptr())
        numbers = None if memory is None else memory[places(tensor)]
        if numbers is None or not bool((numbers >= _STEP).any()):
            return Value(tensor, sources=value.sources, raw=value.raw)
        self.count += 1
        try:
            return self._indexed(numbers, tensor, self._emit, "view", text="view")
        except UnreadError as error:
            raise RefusedError(f"net: forward changes a part of fixed numbers in place{_where()}") from error

    def _numbers(self, value: Value) -> Tensor:
        """Return numbers for the entries of a tensor: those of its node's entries by sample, else what it holds."""
        if not value.node:
            return torch.full(value.tensor.shape, torch.nan) if value.sources else value.tensor.detach().double()
        numbers = self.starts[value.node] + torch.arange(value.tensor.numel() // SAMPLES, dtype=torch.float64)
        numbers = numbers + _STEP * torch.arange(1, SAMPLES + 1)[:, None]
        numbers = numbers.reshape(value.canonical.shape).movedim(0, value.batch)
        return numbers.reshape(value.tensor.shape).contiguous()  # merged positions come after their sample

    def _indexed(self, numbers: Tensor, tensor: Tensor, emit: Callable[..., Value], *name: str, **fields: Any) -> Value:
        """Return the value of a tensor made of entries with these numbers, after adding an "index" node."""
        expect(bool(((numbers == 0) | (numbers >= _STEP)).all()), values.FOREIGN)
        layout = values.samples_of(torch.div(numbers, _STEP, rounding_mode="floor") - 1)
        entries = values.samples_first(numbers, *layout)
        shape, entries = tuple(entries.shape[1:]), entries.reshape(SAMPLES, -1)
        index = torch.where(entries == 0, -1, entries % _STEP).long().numpy()
        expect(np.array_equal(index[0], index[1]), "treats samples differently")
        index, names = index[0], list(self.starts)
        owner = np.searchsorted(list(self.starts.values()), index, side="right") - 1
        owners, first = np.unique(owner, return_index=True)
        order = [int(o) for o in owners[np.argsort(first)] if o >= 0] or [0]
        moved, end = np.full_like(index, -1), 0
        for o in order:
            moved = np.where(owner == o, index - self.starts[names[o]] + end, moved)
            end += self.nodes[names[o]].size
        inputs = [names[o] for o in order]
        same = len(inputs) == 1 and self.nodes[inputs[0]].shape == shape and np.array_equal(moved, np.arange(end))
        return (
            Value(tensor, inputs[0], *layout)
            if same
            else emit(*name, "index", inputs, tensor, *layout, index=moved, **fields)
        )

    # nodes

    def _read(self, call: Call) -> Any:
        """Add the verified nodes of an operation, or "outside" nodes if the theory does not cover it."""
        self.count += 1
        label = _text(call.module) if call.module is not None else call.name
        base = call.place.replace(".", "_") or self._base(label)
        made: list[Value] = []

        def emit(op: str, *given: Any, **fields: Any) -> Value:
            name = base if "text" not in fields else f"{base}_{fields['text'].partition(' ')[0]}"
            made.append(self._emit(name, op, *given, **{"text": label, "module": call.place, **fields}))
            return made[-1]

        def reordered(taken: list[Value], run: Callable[..., Any], result: Any, **fields: Any) -> Any:
            numbers = leaves(run([self._numbers(v) for v in taken]), Tensor)
            made = [self._indexed(*pair, emit, **fields) for pair in zip(numbers, leaves(result, Tensor), strict=True)]
            return values.replace(result, Tensor, lambda _: made.pop(0))

        call.emit, call.reordered = emit, reordered
        try:
            result = operations.read(call)
            if any(v.tensor.requires_grad for v in call.values):
                floating = [t for t in leaves(call.result, Tensor) if t.is_floating_point()]
                lost = "no gradient flows through it (detach, no_grad or an autograd.Function)"
                expect(all(t.requires_grad for t in floating), lost)
            self._verify(call, made)
            return result
        except UnreadError as error:
            reason = str(error)
        for value in made:
            del self.nodes[value.node], self.starts[value.node]
        sources = {*call.owned, *(name for v in call.constants for name in v.sources)}
        fields = {"reason": reason, "held": tuple(sorted(sources & self.weights.keys()))}
        inputs = list({v.node: v for v in call.values}.values())
        outside = []
        for tensor in leaves(call.result, Tensor):
            outside.append(emit("outside", [v.node for v in inputs], tensor, *_layout(inputs, tensor), **fields))
            for value in call.constants:
                for name in value.sources & self.weights.keys():
                    if same_memory(self.weights[name], value.tensor):
                        self.partly[outside[-1].node, name] = places(value.tensor)
        return outside

    def _base(self, label: str) -> str:
        """Return the name of an operation within the submodule that is running."""
        name = label.partition("(")[0].lower()
        return f"{self.scope[-1].replace('.', '_')}_{name}" if self.scope[-1] else name

    def _verify(self, call: Call, made: list[Value]) -> None:
        """Raise if the fields of a node do not reproduce its value."""
        known = {v.node: v.canonical for v in [*call.values, *made]}
        weights = {name: p.detach() for name, p in self.weights.items()}
        for node in (self.nodes[v.node] for v in made):
            if node.op in ("bias", "cast") or (node.op in ("average", "maximum") and node.windows is None):
                continue
            if not agree(apply(node, [known[name] for name in node.inputs], weights), known[node.name]):
                raise UnreadError(f"{call.name} does something else than its name and parameters say")

    def _emit(
        self, name: str, op: str, inputs: list[str], tensor: Tensor, batch: int, merged: int = 1, **more: Any
    ) -> Value:
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        name = next(n for n in names if n not in self.nodes)
        value = Value(tensor, name, batch, merged)
        shape = tuple(value.canonical.shape)[batch != NO_SAMPLES :]
        self.nodes[name] = Node(name, op, tuple(inputs), shape, **more)
        self.starts[name], self.calls[name] = self.entries, self.count
        self.entries += self.nodes[name].size
        return value

    def _finished(self, output: Value) -> tuple[Node, ...]:
        """Return the nodes from which the output is reachable, with the output last.

        Biases are merged with their layers. Raises an error if weights are shared.
        """
        nodes, last = self.nodes, output.node
        while nodes[last].op == "cast":
            last = nodes[last].inputs[0]
        nodes, last = _with_biases(_alive(nodes, last), last)
        nodes = _alive(nodes, last)
        users: dict[str, list[str]] = {}
        for node in nodes.values():
            for parameter in dict.fromkeys(name for name in (node.weight, node.bias, *node.held) if name):
                for other in users.get(parameter, []):
                    self._check_apart(parameter, other, node.name)
                users.setdefault(parameter, []).append(node.name)
        end = nodes.pop(last)
        return (*nodes.values(), end)

    def _check_apart(self, parameter: str, a: str, b: str) -> None:
        """Raise if two nodes use the same entries of a parameter."""
        first, second = self.partly.get((a, parameter)), self.partly.get((b, parameter))
        meet = first is None or second is None or bool(torch.isin(first, second).any())
        if meet and self.calls[a] != self.calls[b]:
            every = dict(self.net.named_parameters(remove_duplicate=False))
            aliases = [name for name, p in every.items() if p is every[parameter]]
            also = f" (registered as {', '.join(aliases)})" if len(aliases) > 1 else ""
            raise RefusedError(
                f"net: shared weights: {parameter}{also} is used in {a!r} and in {b!r}; expected every "
                "parameter in one place, since the conserved quantities of shared weights are others"
            )


def _alive(nodes: dict[str, Node], output: str) -> dict[str, Node]:
    needed = {output}
    for name in reversed(nodes):  # inputs come before
        if name in needed:
            needed.update(nodes[name].inputs)
    return {name: node for name, node in nodes.items() if name in needed or node.op == "input"}


def _with_biases(nodes: dict[str, Node], output: str) -> tuple[dict[str, Node], str]:
    """Return the nodes and output with added parameters merged into the preceding layer as its bias, or "outside"."""
    names: dict[str, str] = {}
    for node in list(nodes.values()):
        if node.op == "cast":
            nodes[node.name] = replace(node, op="outside", reason="rounds values to a lower precision")
        if node.op != "bias":
            continue
        before = nodes[names.get(node.inputs[0], node.inputs[0])]
        users = [other for other in nodes.values() if node.inputs[0] in other.inputs]
        axis = len(node.shape) - 1 if before.op == "linear" else 0
        shape = (1,) * (len(node.shape) + 1 - len(node.weight_shape)) + node.weight_shape
        fits = shape[1:] == tuple(size if d == axis else 1 for d, size in enumerate(node.shape)) and shape[0] == 1
        alone = len(users) == 1 and node.inputs[0] != output
        if before.op in ("linear", "conv") and not before.bias and alone and fits:
            nodes[before.name] = replace(before, bias=node.weight)
            names[node.name] = before.name
            del nodes[node.name]
        else:
            reason = f"adds {node.weight}, which is not the bias of a linear layer or convolution"
            held = (node.weight,)
            nodes[node.name] = replace(node, op="outside", reason=reason, held=held, weight="", weight_shape=())
    for name, node in nodes.items():
        nodes[name] = replace(node, inputs=tuple(names.get(other, other) for other in node.inputs))
    return nodes, names.get(output, output)


def _layout(inputs: list[Value], tensor: Tensor) -> tuple[int, int]:
    """Return where the samples are in the result of any operation: where they are in an argument, or in front."""
    sizes = dict(enumerate(tensor.shape))
    for value in inputs:
        if value.batch != NO_SAMPLES and sizes.get(value.batch) == value.tensor.shape[value.batch]:
            return value.layout
    return (0, 1) if sizes.get(0) == SAMPLES else (NO_SAMPLES, 1)


def _copy(net: nn.Module, training: bool, call: Callable[..., Any]) -> nn.Module:
    """Return a copy in float64, without the user's hooks and compiled code, whose calls go through ``call``."""
    memo: dict[int, Any] = {}
    for sub in net.modules():
        for key, value in [*vars(sub).items(), *sub._parameters.items(), *sub._buffers.items()]:
            if isinstance(value, Tensor) and id(value) not in memo:  # also what weight_norm leaves, not to be copied
                double = _double(value)
                is_parameter = isinstance(value, nn.Parameter)
                memo[id(value)] = nn.Parameter(double, double.is_floating_point()) if is_parameter else double
            elif key.endswith("_hooks") and isinstance(value, dict):  # those of torch.nn.utils compute weights
                own = (item for item in value.items() if type(item[1]).__module__.startswith("torch.nn.utils."))
                memo[id(value)] = OrderedDict(own)
    try:
        copied = deepcopy(net, memo)
    except Exception as error:
        raise ValueError(f"net: {type(net).__name__} cannot be copied: {error}") from error
    for name, sub in copied.named_modules():
        sub.training = training
        for key, value in list(vars(sub).items()):
            vars(sub)[key] = getattr(value, "_torchdynamo_orig_callable", value)
        vars(sub)["_compiled_call_impl"] = functools.partial(call, sub, name)  # what nn.Module.__call__ runs, if set
    return copied


def _double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.float64, copy=True).contiguous() if tensor.is_floating_point() else tensor.clone()


def _where(error: BaseException | None = None) -> str:
    """Return the current line of the user's code in a trace, or the line that raised an error."""
    frames = list(traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__))
    own = str(Path(__file__).parent)
    starts = [i for i, frame in enumerate(frames) if frame.filename.startswith(own) and frame.name == "follow"]
    frames = frames[starts[-1] + 1 :] if starts else frames
    others = [frame for frame in frames if not frame.filename.startswith((own, str(Path(torch.__file__).parent)))]
    return f" at {others[-1].filename}, line {others[-1].lineno} ({others[-1].line})" if others else ""


def _setitem(target: Tensor, key: Any, value: Any) -> Tensor:
    target[key] = value
    return target


def _text(module: Any) -> str:
    """Return a short description of a submodule: class and sizes."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        return f"{kind}({module.in_features}, {module.out_features})"
    if isinstance(module, nn.modules.conv._ConvNd):
        kernel = "x".join(map(str, module.kernel_size))
        groups = f", groups {module.groups}" if module.groups > 1 else ""
        return f"{kind}({module.in_channels}, {module.out_channels}, {kernel}{groups})"
    return kind
