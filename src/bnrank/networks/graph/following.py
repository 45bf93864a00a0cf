"""torch.fx with the values of two samples carried along: every operation is carried out, read and verified."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from bnrank.networks.graph import assembling, memory, operations, reordering
from bnrank.networks.graph.layers import Node
from bnrank.networks.graph.proxies import Proxy, RefusedError, name_of, setitem, where
from bnrank.networks.graph.values import NO_SAMPLES, Call, UnreadError, Value, agree, leaves, replace

__all__ = ["Follower", "Root"]

_FOLLOWED = (
    nn.Sequential,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_COMPUTED = "parameters read past torch.fx"
_NUMBERS = ("item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "bool", "int", "float", "index", "array")
_CASTS = ("bool", "int", "float")  # of tensors, as methods
_NEW = tuple(f"new_{kind}" for kind in ("zeros", "ones", "full", "empty", "tensor"))
_FRESH = (*_NEW, "zeros_like", "ones_like", "full_like", "empty_like", "zeros", "empty")


class Root(nn.Module):
    """Takes one tensor, whatever else the module's forward could take."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.output: Any = None

    def forward(self, x: Any) -> Any:
        """Run the module."""
        self.output = self.module(x)
        return x


class Follower(fx.Tracer):
    """Follows a module, of which it gets a copy, on two samples; ``nodes`` and ``uses`` are what it finds."""

    def __init__(self, root: Root, x: Tensor) -> None:
        super().__init__()
        self.x = x
        self.names = {id(p): name for name, p in root.module.named_parameters()}
        self.weights = {name: p for name, p in root.module.named_parameters()}
        self.values: dict[fx.Node, Any] = {}
        self.alive: list[Value] = []
        self.nodes: dict[str, Node] = {}
        self.uses: dict[str, list[assembling.Use]] = {}
        self.made: set[str] = set()
        self.count = 0
        self.running = False  # the user's functions, on tensors
        self.working = False  # for an operation, and not in the user's forward

    def output(self, result: Any, name: str) -> Value:
        """Return the value of the module's output; refuse what is not one tensor that depends on the input."""
        held = self.values.get(result.node) if isinstance(result, fx.Proxy) else result
        if isinstance(held, Tensor) or (isinstance(held, Value) and held.node is None):
            raise ValueError(f"net: {name} returns a tensor that does not depend on its input")
        if not isinstance(held, Value):
            raise ValueError(
                f"net: {name} returns {type(held).__name__} while torch.fx follows it, expected one tensor; "
                "isinstance(x, torch.Tensor) is false then"
            )
        return held

    # what fx asks

    def proxy(self, node: fx.Node) -> Proxy:
        """Return what stands for a node in the module's forward."""
        return Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Say whether a submodule is one operation: torch's own, unless it only runs others."""
        if isinstance(m, (Root, *_FOLLOWED)) or "forward" in vars(m):
            return False
        if isinstance(m, nn.modules.conv._ConvNd) and not _torch(getattr(m, "_conv_forward", None)):
            return False
        return _torch(type(m).forward)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return a submodule's attribute: itself while an operation is carried out."""
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def path_of_module(self, mod: nn.Module) -> str:
        """Return a submodule's name; one that forward makes gets a name, if it has no parameters."""
        try:
            return super().path_of_module(mod)
        except NameError:
            if any(True for _ in mod.parameters()):
                raise RefusedError(
                    f"net: forward calls a {type(mod).__name__} that is not registered as a submodule{where()}; "
                    "keep it as an attribute, or in a ModuleList"
                ) from None
            name = f"made_{len(self.made)}"
            self.made.add(name)
            self.root.add_module(name, mod.eval())
            if self.submodule_paths is not None:
                self.submodule_paths[mod] = name
            return name

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Follow a submodule, or record it."""
        return forward(*args, **kwargs) if self.running else super().call_module(m, forward, args, kwargs)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        """Record an operation, carry it out and read it; numbers and shapes are returned as they are."""
        outer, self.working = self.working, True
        try:
            return self._record(kind, target, args, kwargs, *rest, **more)
        finally:
            self.working = outer

    def _record(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        if kind == "placeholder":
            x = self.x.clone()
            if x.is_floating_point():
                x = x.requires_grad_().clone()
            held: Any = self._emit("input", "input", [], x, 0, text="input")
            self.alive.append(held)
        elif kind == "get_attr":
            held = self._constant(self._runner(operator.attrgetter(target))(self.root))
        elif target in (operator.getitem, getattr) and not isinstance(first := self._values(args[0]), Value):
            held = target(first, args[1])
        else:
            held = self._carry_out(kind, target, self._values(args), self._values(kwargs))
        if not leaves(held, Value):
            return held
        self.values[proxy.node] = held
        return proxy

    # what it does

    def tensors(self, tree: Any) -> Any:
        """Return tensors in place of proxies and values."""
        held = self.values[tree.node] if isinstance(tree, fx.Proxy) else tree
        return replace(held, lambda leaf: leaf.tensor if isinstance(leaf, Value) else leaf)

    def number(self, proxy: fx.Proxy) -> Any:
        """Return a tensor that is about to become a number or a truth value; refuse if it depends on the data."""
        self._refuse_number(leaves(self.values[proxy.node], Value))
        return self.tensors(proxy)

    def _refuse_number(self, held: list[Value]) -> None:
        if any(v.node is not None for v in held):
            raise RefusedError(
                f"net: control flow or a number depends on the data{where()}; one graph must hold for every input: "
                "take the decision outside the module, or write it with activations"
            )
        if names := sorted({name for v in held for name in v.sources}):
            raise RefusedError(
                f"net: a number is taken out of {', '.join(names)}{where()}; no gradient would flow to it"
            )

    def _constant(self, tensor: Tensor, raw: bool = False) -> Value:
        computed = frozenset([_COMPUTED]) if tensor.requires_grad else frozenset()
        sources = frozenset([self.names[id(tensor)]]) if id(tensor) in self.names else computed
        value = Value(tensor, sources=sources, raw=raw)
        self.alive.append(value)
        return value

    def _values(self, tree: Any) -> Any:
        def one(leaf: Any) -> Any:
            if isinstance(leaf, fx.Proxy):
                return self.values[leaf.node]
            return self._constant(leaf, raw=True) if isinstance(leaf, Tensor) else leaf

        return replace(tree, one)

    def _runner(self, target: Any, module: nn.Module | None = None) -> Callable[..., Any]:
        """Return what carries out an operation, unseen by fx."""
        function = setitem if target == "__setitem__" else target

        def run(*args: Any, **kwargs: Any) -> Any:
            self.running = True
            try:
                if module is not None:
                    return module(*args, **kwargs)  # weight_norm, spectral_norm and prune have hooks
                if isinstance(function, str):
                    return getattr(args[0], function)(*args[1:], **kwargs)
                return function(*args, **kwargs)
            finally:
                self.running = False

        return run

    def _carry_out(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        held: list[Value] = leaves((args, kwargs), Value)
        module = self.root.get_submodule(target) if kind == "call_module" else None
        name = type(module).__name__ if module is not None else name_of(target, args)
        run = self._runner(target, module)
        if (name in _NUMBERS and target not in _CASTS) or getattr(target, "__module__", "") == "math":
            self._refuse_number(held)
        versions = [v.tensor._version for v in held]
        before = {id(v): v.before() for v in held if v.node is not None or not (v.sources or v.raw)}
        result = run(*self.tensors(args), **self.tensors(kwargs))
        if not leaves(result, Tensor):
            return result
        if name in _FRESH and "empty" in name:
            result.zero_()  # whatever is there is written over, or the module is not defined
        changed = [v for v, version in zip(held, versions, strict=True) if v.tensor._version != version]
        self._check_changes(changed, name if module is None else target.removeprefix("module."))
        then_args, then_kwargs = replace((args, kwargs), lambda leaf: before.get(id(leaf), leaf))
        call = Call(name, then_args, then_kwargs, result, run, module, self.weights)
        if not call.values or name in _FRESH:
            sources = frozenset() if name in _FRESH else frozenset(call.held)
            made = replace(result, lambda leaf: Value(leaf, sources=sources) if isinstance(leaf, Tensor) else leaf)
        else:
            place = "" if module is None or target in self.made else target.removeprefix("module").removeprefix(".")
            made = self._read(call, place)
            self._redirect(changed, leaves(made, Value), name)
        self.alive += leaves(made, Value)
        return made

    def _check_changes(self, changed: list[Value], name: str) -> None:
        for value in changed:
            if value.sources:
                what = f"the parameter {', '.join(value.sources)}"
            elif memory.same_memory(value.tensor, self.alive[0].tensor):
                what = "its input"
            elif value.raw:
                what = "a buffer, or a tensor that does not come from its input,"
            else:
                continue
            raise RefusedError(
                f"net: forward changes {what} in place, by {name}{where()}; expected a forward that writes only to "
                "what it computed"
            )

    def _read(self, call: Call, place: str) -> Any:
        """Add the nodes of an operation, verified, or else one that is outside."""
        self.count += 1
        label = assembling.text(call.module) if call.module is not None else call.name
        base = place.replace(".", "_") or label.partition("(")[0].strip().lower()
        scope = str(self.scope.module_path).removeprefix("module").removeprefix(".")
        if call.module is None and scope:
            base = f"{scope.replace('.', '_')}_{base}"
        made: dict[str, Value] = {}

        def emit(op: str, inputs: Any, tensor: Tensor, batch: int, merged: int = 1, **fields: Any) -> Value:
            name = base if "text" not in fields else f"{base}_{fields['text'].partition(' ')[0]}"
            fields = {"text": label, "module": place, **fields}
            value = self._emit(name, op, inputs, tensor, batch, merged, **fields)
            made[str(value.node)] = value
            return value

        try:
            values = operations.read(call, emit)
            if any(v.tensor.requires_grad for v in call.values):
                floating = [t for t in leaves(call.result, Tensor) if t.is_floating_point()]
                if not all(t.requires_grad for t in floating):
                    raise UnreadError("no gradient flows through it (detach, no_grad or an autograd.Function)")
            self._verify(call, made)
            return values
        except UnreadError as error:
            reason = str(error)
        for name in made:
            del self.nodes[name], self.uses[name]
        fields: dict[str, Any] = {"text": label, "module": place, "reason": reason, "held": tuple(sorted(call.held))}
        inputs = list({v.node: v for v in call.values}.values())

        numbers = itertools.count()

        def outside(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            layout = reordering.layout(call, next(numbers))
            value = self._emit(base, "outside", inputs, leaf, *layout, **fields)
            self.uses[str(value.node)] = self._all_uses(call)
            return value

        return replace(call.result, outside)

    def _verify(self, call: Call, made: Mapping[str, Value]) -> None:
        """Refuse nodes whose fields do not give their values."""
        every = {str(v.node): v for v in [*call.values, *made.values()]}
        values = {name: v.canonical.detach() for name, v in every.items()}
        weights = {name: p.detach() for name, p in self.weights.items()}
        for name in made:
            node = self.nodes[name]
            if node.op in ("bias", "cast") or (node.op in ("average", "maximum") and node.windows is None):
                continue
            found = operations.apply(node, [values[other] for other in node.inputs], weights)
            if not agree(found, values[name]):
                raise UnreadError(f"{call.name} does something else than its name and parameters say")

    def _all_uses(self, call: Call) -> list[assembling.Use]:
        """Return which parameters a call takes, and which entries where it takes a view of them."""
        found = [assembling.Use(self.count, name) for name in call.owned]
        for value in call.constants:
            for name in sorted(value.sources):
                view = name in self.weights and memory.same_memory(self.weights[name], value.tensor)
                entries = np.unique(memory.addresses(value.tensor)) if view else None
                found.append(assembling.Use(self.count, name, entries))
        return found

    def _emit(
        self, name: str, op: str, inputs: Any, tensor: Tensor, batch: int, merged: int = 1, **fields: Any
    ) -> Value:
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        name = next(n for n in names if n not in self.nodes)
        value = Value(tensor, name, batch, merged=merged)
        shape = tuple(value.canonical.shape)[batch != NO_SAMPLES :]
        self.nodes[name] = Node(name, op, tuple(str(v.node) for v in inputs), shape, **fields)
        self.uses[name] = [assembling.Use(self.count, fields[key]) for key in ("weight", "bias") if fields.get(key)]
        return value

    def _redirect(self, changed: list[Value], made: list[Value], name: str) -> None:
        """Let everything that lies in the memory of a value that was changed in place see the change."""
        for value in changed:
            near = [v for v in made if memory.same_memory(v.tensor, value.tensor)]
            new = next((v for v in near if any(memory.same_place(v.tensor, c.tensor) for c in changed)), None)
            if new is None:
                raise RefusedError(f"net: {name} changes a value in place{where()}, which bnrank does not follow")
            for other in self.alive:
                if other is new or other.node == new.node or not memory.same_memory(other.tensor, new.tensor):
                    continue
                if memory.same_place(other.tensor, new.tensor):
                    other.node, other.batch, other.merged = new.node, new.batch, new.merged
                    continue
                if other.node is None:
                    raise RefusedError(f"net: {name} changes a part of a tensor of fixed numbers in place{where()}")
                own = dataclasses.replace(other)
                shown = memory.written(other.tensor, new.tensor)
                moved = reordering.reorder([own, new], shown, other.tensor, self._view)
                other.node, other.batch, other.merged = moved.node, moved.batch, moved.merged

    def _view(self, op: str, inputs: Any, tensor: Tensor, batch: int, merged: int = 1, **fields: Any) -> Value:
        return self._emit(f"{inputs[-1].node}_view", op, inputs, tensor, batch, merged, text="view", **fields)


def _torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.nn.")
