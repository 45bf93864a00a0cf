"""Tracing of a module: it runs on two samples while every torch operation is intercepted, classified and verified."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank.networks.graph import operations, values
from bnrank.networks.graph.nodes import Node, apply
from bnrank.networks.graph.values import Call, Emit, UnreadError, Value, leaves, replace, same_memory, same_place

_FOLLOWED = ("torch.nn.modules.container", "torch.nn.modules.transformer")  # modules that only run others
_COMPUTED = "parameters computed outside torch functions"
_NUMBERS = "item tolist numpy equal allclose is_nonzero __bool__ __int__ __float__ __index__ __contains__ __array__"
_NEW = tuple(f"new_{kind}" for kind in ("zeros", "ones", "full", "empty", "tensor"))
_FRESH = (*_NEW, "zeros_like", "ones_like", "full_like", "empty_like", "zeros", "empty")


class RefusedError(ValueError):
    """An error of bnrank, raised inside the module's forward."""


@dataclass(frozen=True)
class Use:
    """Use of a parameter in an operation: index of the operation, parameter name and, for a view, its entries."""

    call: int
    parameter: str
    where: Tensor | None = None

    def meets(self, other: Use) -> bool:
        """Return whether another operation uses some of the same entries of the parameter."""
        if self.parameter != other.parameter or self.call == other.call:
            return False
        return self.where is None or other.where is None or bool(torch.isin(self.where, other.where).any())


class Follower(TorchFunctionMode):
    """Runs a copy of a module on two samples and collects ``nodes`` and ``uses``."""

    def __init__(self, net: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.net = net
        self.weights = dict(net.named_parameters())
        self.names = {id(p): name for name, p in self.weights.items()}
        self.places = {id(module): name for name, module in net.named_modules()}
        self.values: dict[int, Value] = {}  # by the id of the tensor
        self.alive: list[Value] = []
        self.made: list[nn.Module] = []
        self.nodes: dict[str, Node] = {}
        self.uses: dict[str, list[Use]] = {}
        self.scope = [""]
        self.count = 0
        self.working = False  # inside an operation
        x = x.clone()
        if x.is_floating_point():
            x = x.requires_grad_().clone()
        self.input = self._keep(self._emit("input", "input", [], x, 0, text="input"))

    def follow(self) -> Value:
        """Run the module and return the value of its output: one tensor that depends on the input."""
        with self._patched(), self:
            result = self.net(self.input.tensor)
        name = type(self.net).__name__
        if not isinstance(result, Tensor):
            raise RefusedError(f"net: {name} returns {type(result).__name__}, expected one tensor")
        value = self.values.get(id(result))
        if value is None or value.node is None:
            raise RefusedError(f"net: {name} returns a tensor that does not depend on its input")
        return value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Intercept a function or method of torch."""
        if not self.working:
            self._check_numbers(func, args)
        name = values.function_name(func)
        return self._run(name, _setitem if func is Tensor.__setitem__ else func, args, kwargs or {})

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Intercept calls of submodules and of autograd functions."""
        call, function = nn.Module.__call__, torch.autograd.Function.__dict__["apply"]

        def run_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self._call(module, functools.partial(call, module), args, kwargs)

        def run_function(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return self._run(f"{cls.__name__} (autograd.Function)", function.__get__(None, cls), args, kwargs)

        setattr(nn.Module, "__call__", run_module)  # noqa: B010
        setattr(torch.autograd.Function, "apply", classmethod(run_function))  # noqa: B010
        try:
            yield
        finally:
            setattr(nn.Module, "__call__", call)  # noqa: B010
            setattr(torch.autograd.Function, "apply", function)  # noqa: B010

    def _call(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace into a submodule, or run it as a single operation."""
        if self.working:
            return run(*args, **kwargs)
        if id(module) not in self.places:
            if any(True for _ in module.parameters()):
                kind = type(module).__name__
                advice = "keep it as an attribute, or in a ModuleList"
                raise RefusedError(
                    f"net: forward calls a {kind} that is not registered as a submodule{where()}; {advice}"
                )
            self.places[id(module)] = ""
            self.made.append(module.eval())
        if _is_operation(module):
            return self._run(type(module).__name__, run, args, kwargs, module)
        self.scope.append(self.places[id(module)])
        try:
            return run(*args, **kwargs)
        finally:
            self.scope.pop()

    def _check_numbers(self, func: Any, args: Any) -> None:
        if getattr(func, "__name__", "") not in _NUMBERS.split():
            return
        held = [self._value(tensor) for tensor in leaves(args, Tensor)]
        if any(v.node is not None for v in held):
            raise RefusedError(
                f"net: control flow or a number depends on the data{where()}; one graph must hold for every input: "
                "take the decision outside the module, or write it with activations"
            )
        names = ", ".join(sorted({name for v in held for name in v.sources}))
        if names:
            raise RefusedError(f"net: a number is taken out of {names}{where()}; no gradient would flow to it")

    def _value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor; a tensor not seen before is a parameter or a fixed tensor."""
        if id(tensor) in self.values:
            return self.values[id(tensor)]
        computed = frozenset([_COMPUTED]) if tensor.requires_grad else frozenset()
        sources = frozenset([self.names[id(tensor)]]) if id(tensor) in self.names else computed
        return self._keep(Value(tensor, sources=sources, raw=True))

    def _keep(self, value: Value) -> Value:
        self.values[id(value.tensor)] = value
        self.alive.append(value)
        return value

    def _run(self, name: str, run: Any, args: Any, kwargs: Any, module: nn.Module | None = None) -> Any:
        """Return the result of an operation, after adding it to the graph."""
        if self.working:
            return run(*args, **kwargs)
        self.working = True
        try:
            taken, named = replace((args, kwargs), Tensor, self._value)
            call = Call(name, taken, named, None, run, module, self.weights)
            if name not in _FRESH and all(v.node is None and v.raw and not v.sources for v in call.taken):
                return run(*args, **kwargs)
            return self._record(call)
        finally:
            self.working = False

    def _record(self, call: Call) -> Any:
        held, fresh = call.taken, call.name in _FRESH
        versions = [v.tensor._version for v in held]
        before = {id(v): v.before() for v in held if v.node is not None or not (v.sources or v.raw)}
        result = call.result = call.again(lambda value: value.tensor)
        if not leaves(result, Tensor):
            return result
        if fresh and "empty" in call.name:
            result.zero_()  # every entry is overwritten, or the module is not defined
        changed = [v for v, version in zip(held, versions, strict=True) if v.tensor._version != version]
        place = self.places.get(id(call.module), "")
        self._check_changes(changed, call.name if call.module is None else place)
        call.args, call.kwargs = replace((call.args, call.kwargs), Value, lambda v: before.get(id(v), v))
        if fresh or not call.values:
            sources = frozenset() if fresh else frozenset(call.held)
            made = [Value(tensor, sources=sources) for tensor in leaves(result, Tensor)]
        else:
            made = leaves(self._read(call, place), Value)
            self._redirect(changed, made, call.name)
        for value in made:
            self._keep(value)
        return result

    def _check_changes(self, changed: list[Value], name: str) -> None:
        for value in changed:
            if value.sources:
                what = f"the parameter {', '.join(value.sources)}"
            elif same_memory(value.tensor, self.input.tensor):
                what = "its input"
            elif value.raw:
                what = "a buffer, or a tensor that does not come from its input,"
            else:
                continue
            only = "expected a forward that writes only to what it computed"
            raise RefusedError(f"net: forward changes {what} in place, by {name}{where()}; {only}")

    def _read(self, call: Call, place: str) -> Any:
        """Add the verified nodes of an operation, or "outside" nodes if the theory does not cover it."""
        self.count += 1
        label = text(call.module) if call.module is not None else call.name
        base = place.replace(".", "_") or label.partition("(")[0].strip().lower()
        if call.module is None and self.scope[-1]:
            base = f"{self.scope[-1].replace('.', '_')}_{base}"
        made: list[Value] = []

        def emit(op: str, *given: Any, **fields: Any) -> Value:
            name = base if "text" not in fields else f"{base}_{fields['text'].partition(' ')[0]}"
            made.append(self._emit(name, op, *given, **{"text": label, "module": place, **fields}))
            return made[-1]

        try:
            found = operations.read(call, emit)
            if any(v.tensor.requires_grad for v in call.values):
                floating = [t for t in leaves(call.result, Tensor) if t.is_floating_point()]
                lost = "no gradient flows through it (detach, no_grad or an autograd.Function)"
                values.expect(all(t.requires_grad for t in floating), lost)
            self._verify(call, made)
            return found
        except UnreadError as error:
            reason, held = str(error), tuple(sorted(call.held))
        for value in made:
            del self.nodes[str(value.node)], self.uses[str(value.node)]
        inputs = list({v.node: v for v in call.values}.values())
        outside = []
        for number, tensor in enumerate(leaves(call.result, Tensor)):
            layout = values.layout(call, number)
            outside.append(emit("outside", inputs, tensor, *layout, reason=reason, held=held))
            self.uses[str(outside[-1].node)] = self._all_uses(call)
        return outside

    def _verify(self, call: Call, made: list[Value]) -> None:
        """Raise if the fields of a node do not reproduce its value."""
        known = {str(v.node): v.canonical.detach() for v in [*call.values, *made]}
        weights = {name: p.detach() for name, p in self.weights.items()}
        for node in (self.nodes[str(v.node)] for v in made):
            if node.op in ("bias", "cast") or (node.op in ("average", "maximum") and node.windows is None):
                continue
            if not values.agree(apply(node, [known[name] for name in node.inputs], weights), known[node.name]):
                raise UnreadError(f"{call.name} does something else than its name and parameters say")

    def _all_uses(self, call: Call) -> list[Use]:
        """Return the parameters that a call uses, with the entries of any views."""
        found = [Use(self.count, name) for name in call.owned]
        for value in call.constants:
            for name in sorted(value.sources):
                view = name in self.weights and same_memory(self.weights[name], value.tensor)
                found.append(Use(self.count, name, values.addresses(value.tensor) if view else None))
        return found

    def _emit(self, name: str, op: str, inputs: Any, tensor: Tensor, batch: int, merged: int = 1, **more: Any) -> Value:
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        name = next(n for n in names if n not in self.nodes)
        value = Value(tensor, name, batch, merged=merged)
        shape = tuple(value.canonical.shape)[batch != values.NO_SAMPLES :]
        self.nodes[name] = Node(name, op, tuple(str(v.node) for v in inputs), shape, **more)
        self.uses[name] = [Use(self.count, more[key]) for key in ("weight", "bias") if more.get(key)]
        return value

    def _redirect(self, changed: list[Value], made: list[Value], name: str) -> None:
        """Update every value that shares memory with a value changed in place."""
        for value in changed:
            near = [v for v in made if same_memory(v.tensor, value.tensor)]
            new = next((v for v in near if any(same_place(v.tensor, c.tensor) for c in changed)), None)
            if new is None:
                raise RefusedError(f"net: {name} changes a value in place{where()}, which bnrank does not follow")
            emit: Emit = functools.partial(self._emit, f"{new.node}_view", text="view")
            for other in self.alive:
                if other is new or other.node == new.node or not same_memory(other.tensor, new.tensor):
                    continue
                moved = new
                if not same_place(other.tensor, new.tensor):
                    if other.node is None:
                        raise RefusedError(f"net: {name} changes a part of a tensor of fixed numbers in place{where()}")
                    shown = values.written(other.tensor, new.tensor)
                    moved = values.reorder([dataclasses.replace(other), new], shown, other.tensor, emit)
                other.node, other.batch, other.merged = moved.node, moved.batch, moved.merged


def where(error: BaseException | None = None) -> str:
    """Return the current line of the user's code in a trace, or the line that raised an error."""
    frames = list(traceback.extract_stack() if error is None else traceback.extract_tb(error.__traceback__))
    own = str(Path(__file__).parent)
    starts = [i for i, frame in enumerate(frames) if frame.filename.startswith(own) and frame.name == "follow"]
    frames = frames[starts[-1] + 1 :] if starts else frames
    found = [frame for frame in frames if not frame.filename.startswith((own, str(Path(torch.__file__).parent)))]
    return f" at {found[-1].filename}, line {found[-1].lineno} ({found[-1].line})" if found else ""


def _setitem(target: Tensor, key: Any, value: Any) -> Tensor:
    target[key] = value
    return target


def _is_operation(module: nn.Module) -> bool:
    """Return whether a submodule is a single operation: a torch module that does more than run other modules."""
    forward = getattr(module, "_conv_forward", None) if isinstance(module, nn.modules.conv._ConvNd) else None
    places = [str(getattr(f, "__module__", "")) for f in (type(module).forward, forward) if f is not None]
    known = all(place.startswith("torch.nn.") and place not in _FOLLOWED for place in places)
    return known and "forward" not in vars(module)


def text(module: Any) -> str:
    """Return a short description of a submodule: class and sizes."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        return f"{kind}({module.in_features}, {module.out_features})"
    if isinstance(module, nn.modules.conv._ConvNd):
        kernel = "x".join(map(str, module.kernel_size))
        groups = f", groups {module.groups}" if module.groups > 1 else ""
        return f"{kind}({module.in_channels}, {module.out_channels}, {kernel}{groups})"
    return kind
