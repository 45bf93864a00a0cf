"""Tracing of modules into computation graphs."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bnrank.networks import functional
from bnrank.networks.graph import operations, values
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node, apply
from bnrank.networks.graph.values import SAMPLES, Call, RandomError, RefusedError, UnreadError, Value, expect, leaves

REPEATS = 32  # traces of a module that draws from the generators of NumPy or Python
_FOLLOWED = ("torch.nn.modules.container", "torch.nn.modules.transformer")  # modules that only run others
_NUMBERS = "item tolist numpy equal allclose is_nonzero __bool__ __int__ __float__ __index__ __contains__ __array__"
_STEP = 2.0**50  # larger than the number of entries of all values: the sample of an entry is counted in these steps


def trace(net: nn.Module, example: Tensor | np.ndarray) -> LayerGraph:
    """Return the computation graph of a module, with one node per operation.

    A copy of the module runs in eval mode and float64 on two samples. The values of every operation identify
    reorderings and pooling, regardless of function names, and verify every node. Supported operations are linear and
    convolutional layers, positively homogeneous activations, sums, learnable diagonals, pooling and reorderings. Any
    other operation becomes a node "outside" with the reason; the rest of the graph is still analyzed.

    Nothing but the copy is changed, and nothing of other threads. Random functions of torch draw from generators of
    their own; numbers that the forward draws from the global generators of NumPy and Python advance these, as usual.

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
    return run(net, example)[0]


def run(net: nn.Module, example: Tensor | np.ndarray) -> tuple[LayerGraph, Tracer]:
    """Return what `trace` returns, and the tracer with the copy's weights and output."""
    net = functional.unwrap(net)
    functional.check_unshared(net)
    for name, sub in net.named_modules():
        if isinstance(sub, nn.RNNBase | nn.RNNCellBase | torch.jit.ScriptModule):
            scripted = isinstance(sub, torch.jit.ScriptModule)
            what = "scripted, expected the original module" if scripted else "recurrent, expected a feedforward module"
            raise ValueError(f"net: {name!r} ({type(sub).__name__}) is {what}")
    x = functional.example(net, example, name="example")[:SAMPLES]
    x = torch.cat([x, x])[:SAMPLES]
    state = _foreign_state()
    tracer, modes = Tracer(net, x), [False, True]
    nodes = tracer.follow()
    try:
        training = Tracer(net, x, training=True).follow()
    except RandomError:
        raise
    except ValueError:  # what runs in eval mode need not run while training, as batch norm on one entry per channel
        training, modes = nodes, [False]
    if other := _difference(nodes, training):
        raise ValueError(
            f"net: {type(net).__name__} does something else while training than in eval mode, near {other.name!r} "
            f"({other.text}); expected the same graph: set the probability of dropping to 0"
        )
    for mode in modes * (REPEATS if _foreign_state() != state else 0):
        if other := _difference(nodes, Tracer(net, x, mode).follow()):
            raise RandomError(f"what it does at {other.name!r} ({other.text})")
    trained = frozenset(name for name, p in net.named_parameters() if p.requires_grad)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    return LayerGraph(nodes, nodes[-1].name, trained, parameters, type(net).__name__), tracer


def _foreign_state() -> bytes:
    return pickle.dumps((np.random.get_state(), random.getstate()))  # noqa: NPY002  (what forward may draw from)


def _difference(nodes: tuple[Node, ...], others: tuple[Node, ...]) -> Node | None:
    """Return the first node at which two graphs differ."""
    for a, b in itertools.zip_longest(nodes, others):
        same = a and b and (a.name, a.op, a.inputs) == (b.name, b.op, b.inputs)
        if not same or not all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("index", "windows")):
            return b or a
    return None


class _Draws(TorchDispatchMode):
    """Counts the operations of this thread that draw random numbers."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        self.count += torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


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
        self.original, self.x = net, x
        self.net = functional.replica(net, torch.float64).cpu().train(training)
        for name, sub in self.net.named_modules():  # what nn.Module.__call__ runs, if set
            vars(sub)["_compiled_call_impl"] = functools.partial(self._call, sub, name)
        self.weights = dict(self.net.named_parameters())
        self.values: dict[int, Value] = {}  # by the id of the tensor, which is kept alive
        self.foreign: set[int] = set()  # addresses of memory that forward did not create
        self.memories: dict[int, Tensor] = {}  # numbers of the entries in memory that is changed in place, by address
        self.nodes: dict[str, Node] = {}
        self.calls: dict[str, Call] = {}  # the operation of every node
        self.scope = [""]
        self.working = False  # inside an operation
        self.draws = _Draws()  # type: ignore[no-untyped-call]  # its base class in torch has no types
        for name, p in self.weights.items():
            p.requires_grad_(p.is_floating_point())
            self._keep(Value(p, sources=frozenset([name])))
        x = x.detach().cpu()
        x = x.double().requires_grad_().clone() if x.is_floating_point() else x.clone()
        self.input = self.output = self._keep(Call(self, "input", ((), {}), None).emit("input", [], x, 0))

    def follow(self) -> tuple[Node, ...]:
        """Run the module and return the nodes from which its output is reachable, with the output last."""
        try:
            with torch.enable_grad(), functional.sandbox(), self.draws, self:
                result = self.net(self.input.tensor)
            self.output = self.value(result) if isinstance(result, Tensor) else Value(torch.empty(0))
        except RefusedError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        if not self.output.node or self.output.batch != 0:
            expected = "expected one tensor (N, ...) that depends on its input"
            raise RefusedError(f"net: {type(self.net).__name__} returns {type(result).__name__}, {expected}")
        return self._finished(self.output.node)

    def _failure(self, error: Exception) -> ValueError:
        """Return the error of a module that cannot be traced; raise that of one that does not run at all."""
        with torch.no_grad():
            functional.Functional(self.original)(self.x)
        return ValueError(f"net: {type(self.net).__name__} cannot be traced{_where(error)}: {error}")

    # what runs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Intercept a function or method of torch."""
        attribute = getattr(func, "__name__", "") == "__get__"
        name = str(func.__self__.__name__ if attribute else getattr(func, "__name__", type(func).__name__))
        if not self.working and name in _NUMBERS.split():
            self._refuse_number(leaves(args, Tensor))
        return self._run(name.strip("_"), _setitem if func is Tensor.__setitem__ else func, args, kwargs or {})

    def _call(self, module: nn.Module, place: str, *args: Any, **kwargs: Any) -> Any:
        """Trace into a submodule, or run it as a single operation."""
        forward = type(module).forward
        files = [str(getattr(f, "__module__", "")) for f in (forward, getattr(module, "_conv_forward", forward))]
        plain = "forward" not in vars(module) or isinstance(module, nn.MultiheadAttention)
        if plain and all(file.startswith("torch.nn.") and file not in _FOLLOWED for file in files):
            return self._run(type(module).__name__, module._call_impl, args, kwargs, module, place)
        self.scope.append(place)
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            self.scope.pop()

    def _refuse_number(self, tensors: list[Tensor]) -> None:
        taken = [self.value(tensor) for tensor in tensors]
        if any(v.node for v in taken):
            advice = "one graph must hold for every input: decide outside the module, or with activations"
            raise RefusedError(f"net: control flow or a number depends on the data{_where()}; {advice}")
        sources = {name for v in taken for name in v.sources}
        if values.RANDOM in sources:
            raise RandomError(f"which operations it runs{_where()}")
        if sources:
            names = ", ".join(sorted(sources))
            raise RefusedError(f"net: a number is taken out of {names}{_where()}; no gradient would flow to it")

    def _run(self, name: str, run: Any, args: Any, kwargs: Any, module: Any = None, place: str = "") -> Any:
        """Return the result of an operation, after adding it to the graph."""
        if self.working:
            return run(*args, **kwargs)
        self.working = True
        try:
            arguments = values.replace((args, kwargs), Tensor, self.value)
            return self._record(Call(self, name, arguments, run, module, place))
        finally:
            self.working = False

    def _record(self, call: Call) -> Any:
        drawn = self.draws.count
        call.result = call.again(lambda value: value.tensor)
        tensors: list[Tensor] = leaves(call.result, Tensor)
        if "empty" in call.name:
            tensors[0].zero_()  # every entry is overwritten, or the module is not defined
        changed = [v for v in call.taken if v.tensor._version != v.version]
        fresh = call.name.removeprefix("new_") in ("zeros", "ones", "full", "empty") or call.name.endswith("_like")
        if call.values and tensors and not fresh:
            result: list[Value] = leaves(self._read(call), Value)
        else:
            sources = set() if fresh else self._sources(call)
            sources |= {values.RANDOM} if self.draws.count > drawn else set()
            result = [Value(t, sources=frozenset(sources)) for t in tensors]
        if changed:
            self._write(call, changed, result)
        self.values |= {id(value.tensor): value for value in result}
        return call.result

    def _sources(self, call: Call) -> set[str]:
        """Return the parameters, and further sources, of the fixed numbers that an operation uses."""
        own = [] if call.module is None else [self.value(p) for p in call.module.parameters()]
        return {name for v in (*own, *call.constants) for name in v.sources}

    # tensors

    def value(self, tensor: Tensor) -> Value:
        """Return the value that a tensor has now."""
        value = self.values.get(id(tensor))
        if value is None and tensor.grad_fn is None:
            if isinstance(tensor, nn.Parameter):
                advice = "keep it, or its module, as an attribute, or in a ModuleList"
                raise RefusedError(f"net: forward uses a parameter that is not registered{_where()}; {advice}")
            self.foreign.add(values.address(tensor))
            return self._keep(Value(tensor))
        if value is not None and value.version != tensor._version:
            return self._keep(self._reread(value))
        if value is None or (value.function is not tensor.grad_fn and isinstance(tensor.grad_fn, BackwardCFunction)):
            return self._keep(self._from_elsewhere(tensor))
        return value

    def _keep(self, value: Value) -> Value:
        self.values[id(value.tensor)] = value
        return value

    def _from_elsewhere(self, tensor: Tensor) -> Value:
        """Return the value of a tensor that an autograd.Function, or code outside torch's functions, computed."""
        functions: list[Any] = [tensor.grad_fn]
        taken: list[Value] = []
        for function in functions:
            leaf = getattr(function, "variable", None)
            before = [v for v in self.values.values() if v.tensor is leaf or (v.node and v.tensor.grad_fn is function)]
            taken += before
            if not before:
                functions += [f for f, _ in function.next_functions if f is not None and f not in functions]
        call = Call(self, type(tensor.grad_fn).__name__.removesuffix("Backward"), (tuple(taken), {}), None)
        call.result = tensor
        if not call.values:
            return Value(tensor, sources=frozenset(self._sources(call) or {"numbers from elsewhere"}))
        reason = "an autograd.Function, or code outside torch's functions, with a gradient of its own"
        return self._outside(call, reason)[0]

    def _write(self, call: Call, changed: list[Value], result: list[Value]) -> None:
        """Note what tensors hold that were changed in place, for other tensors over the same memory."""
        for value in changed:
            names, place = value.sources & self.weights.keys(), values.address(value.tensor)
            own = values.same_memory(value.tensor, self.input.tensor)
            if names or own or (place in self.foreign and call.values):
                what = f"the parameter {', '.join(names)}" if names else "a buffer, or a tensor from elsewhere,"
                what = "its input" if value.node else what
                by = call.place if call.module is not None else call.name
                only = "expected a forward that writes only to what it computed"
                raise RefusedError(f"net: forward changes {what} in place, by {by}{_where()}; {only}")
        written = [value for value in result if any(value.tensor is other.tensor for other in changed)]
        if not written:
            raise RefusedError(f"net: {call.name} changes a value in place{_where()}, which bnrank does not follow")
        for value in written:
            tensor, place = value.tensor, values.address(value.tensor)
            if value.node and place not in self.memories:
                first = next(v for v in self.values.values() if values.same_memory(v.tensor, tensor))
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.memories[place] = torch.zeros(size, dtype=torch.float64)
                self.memories[place][values.places(first.tensor)] = self.numbers(first)
            if place in self.memories:
                self.memories[place][values.places(tensor)] = self.numbers(value)

    def _reread(self, value: Value) -> Value:
        """Return the value of a tensor over memory that was changed through another tensor."""
        tensor, memory = value.tensor, self.memories.get(values.address(value.tensor))
        numbers = None if memory is None else memory[values.places(tensor)]
        if numbers is None or not bool((numbers >= _STEP).any()):
            return Value(tensor, sources=value.sources)
        try:
            return self.indexed(numbers, tensor, Call(self, "view", ((), {}), None))
        except UnreadError as error:
            raise RefusedError(f"net: forward changes a part of fixed numbers in place{_where()}") from error

    @property
    def starts(self) -> dict[str, int]:
        """The number of the first entry of every node."""
        ends = itertools.accumulate(node.size for node in self.nodes.values())
        return dict(zip(self.nodes, (0, *ends), strict=False))

    def numbers(self, value: Value) -> Tensor:
        """Return numbers for the entries of a tensor: those of its node's entries by sample, else what it holds."""
        if not value.node:
            return torch.full(value.tensor.shape, torch.nan) if value.sources else value.tensor.detach().double()
        numbers = self.starts[value.node] + torch.arange(value.tensor.numel() // SAMPLES, dtype=torch.float64)
        numbers = numbers + _STEP * torch.arange(1, SAMPLES + 1)[:, None]
        numbers = numbers.reshape(values.samples_first(value.content, *value.layout).shape).movedim(0, value.batch)
        return numbers.reshape(value.tensor.shape).contiguous()  # merged positions come after their sample

    def indexed(self, numbers: Tensor, tensor: Tensor, call: Call, part: str = "") -> Value:
        """Return the value of a tensor made of entries with these numbers, after adding an "index" node."""
        ours = bool(((numbers == 0) | (numbers >= _STEP)).all())
        expect(ours, "puts in numbers that do not come from the input")
        layout = _samples(torch.div(numbers, _STEP, rounding_mode="floor") - 1)
        entries = values.samples_first(numbers, *layout)
        shape, entries = tuple(entries.shape[1:]), entries.reshape(SAMPLES, -1)
        both = torch.where(entries == 0, -1, entries % _STEP).long().numpy()
        expect(np.array_equal(both[0], both[1]), "treats samples differently")
        names, starts = list(self.nodes), np.array(list(self.starts.values()))
        owner = np.searchsorted(starts, both[0], side="right") - 1
        order = [o for o in dict.fromkeys(owner.tolist()) if o >= 0] or [0]
        index, end = np.full_like(both[0], -1), 0
        for o in order:
            index = np.where(owner == o, both[0] - starts[o] + end, index)
            end += self.nodes[names[o]].size
        same = self.nodes[names[order[0]]].shape == shape and np.array_equal(index, np.arange(end))
        if same and len(order) == 1:
            return Value(tensor, names[order[0]], *layout)
        return call.emit("index", [names[o] for o in order], tensor, *layout, part=part, index=index)

    # nodes

    def _read(self, call: Call) -> Any:
        """Add the verified nodes of an operation, or "outside" nodes if the theory does not cover it."""
        try:
            result = operations.read(call)
            floating = [t for t in leaves(call.result, Tensor) if t.is_floating_point()]
            flows = all(t.requires_grad for t in floating) or not any(v.tensor.requires_grad for v in call.values)
            expect(flows, "no gradient flows through it (detach, no_grad or an autograd.Function)")
            expect(not any(isinstance(t.grad_fn, BackwardCFunction) for t in floating), "hooks may change its gradient")
            self._verify(call)
            return result
        except UnreadError as error:
            reason = str(error)
        for value in call.made:
            del self.nodes[value.node]
        call.made = []
        return self._outside(call, reason)

    def _verify(self, call: Call) -> None:
        """Raise if the fields of a node do not reproduce its value."""
        known = {v.node: values.samples_first(v.content, *v.layout) for v in [*call.values, *call.made]}
        for node in (self.nodes[v.node] for v in call.made):
            if node.op == "outside" or (node.op in ("average", "maximum") and node.windows is None):
                continue
            same = values.agree(apply(node, [known[name] for name in node.inputs], self.weights), known[node.name])
            expect(same, f"{call.name} does something else than its name and parameters say")

    def _outside(self, call: Call, reason: str) -> list[Value]:
        """Add the nodes of an operation that the theory does not cover."""
        inputs = list({v.node: v for v in call.values}.values())
        fields: dict[str, Any] = {"reason": reason, "held": tuple(sorted(self._sources(call) & self.weights.keys()))}
        for tensor in leaves(call.result, Tensor):
            sizes = dict(enumerate(tensor.shape))
            kept = [v.layout for v in inputs if v.batch >= 0 and sizes.get(v.batch) == v.tensor.shape[v.batch]]
            in_front = (0, 1) if sizes.get(0) == SAMPLES else (values.NO_SAMPLES, 1)
            call.emit("outside", [v.node for v in inputs], tensor, *[*kept, in_front][0], **fields)
        return call.made

    def _finished(self, output: str) -> tuple[Node, ...]:
        """Return the nodes from which the output is reachable, with the output last, and check their parameters.

        Biases are merged with their layers. Casts do not matter at the end; elsewhere they are "outside".
        """
        while self.nodes[output].reason == operations.ROUNDS:
            output = self.nodes[output].inputs[0]
        needed = {output, self.input.node}
        for name in reversed(self.nodes):  # inputs come before
            needed |= {*self.nodes[name].inputs} if name in needed else set()
        kept = [node for name, node in self.nodes.items() if name in needed]
        uses = Counter([output, *(name for node in kept for name in node.inputs)])
        adding = [node for node in kept if self.calls[node.name].bias and uses[node.inputs[0]] == 1]
        merged = {node.name: node.inputs[0] for node in adding}
        biases = {node.inputs[0]: self.calls[node.name].bias for node in adding}
        nodes: dict[str, Node] = {}
        for node in (node for node in kept if node.name not in merged):
            inputs = tuple(merged.get(name, name) for name in node.inputs)
            nodes[node.name] = replace(node, inputs=inputs, bias=biases.get(node.name, node.bias))
        users: dict[str, list[str]] = {}
        for node in nodes.values():
            for parameter in dict.fromkeys(name for name in (node.weight, node.bias, *node.held) if name):
                for other in users.setdefault(parameter, []):
                    self._check_apart(parameter, other, node.name)
                users[parameter].append(node.name)
        end = nodes.pop(merged.get(output, output))
        return (*nodes.values(), end)

    def _check_apart(self, parameter: str, a: str, b: str) -> None:
        """Raise if two operations use the same entries of a parameter."""
        weight, parts = self.weights[parameter], []
        for call in (self.calls[a], self.calls[b]):
            views = [v.tensor for v in call.constants if parameter in v.sources]
            partly = views and all(values.same_memory(weight, view) for view in views)
            parts.append(torch.cat([values.places(view).flatten() for view in (views if partly else [weight])]))
        if self.calls[a] is not self.calls[b] and bool(torch.isin(*parts).any()):
            every = self.net.named_parameters(remove_duplicate=False)
            aliases = ", ".join(name for name, p in every if p is weight)
            raise RefusedError(
                f"net: shared weights: {parameter} (registered as {aliases}) is used in {a!r} and in {b!r}; expected "
                "every parameter in one place, since the conserved quantities of shared weights are others"
            )


def _samples(sample: Tensor) -> tuple[int, int]:
    """Return where the samples are in a tensor with the sample of every entry (-1: of none): batch and merged."""
    for merged_too in (False, True):
        for batch, size in enumerate(sample.shape):
            if size % SAMPLES == 0 and (size == SAMPLES or merged_too):
                rows = values.samples_first(sample, batch, size // SAMPLES).reshape(SAMPLES, -1)
                if all(bool(((row == i) | (row == -1)).all()) for i, row in enumerate(rows)):
                    return batch, size // SAMPLES
    raise UnreadError(values.MIXES)


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
