"""Tracing of modules into computation graphs."""

import inspect
import itertools
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnrank.networks import functional
from bnrank.networks.graph.following import Follower, RefusedError, Use, where
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.networks.graph.values import SAMPLES, Value, agree, function_name, generators
from bnrank.networks.reasons import Skipped

SEEDS = (20_001, 20_002, 20_003)  # of traces
DRAWS = 32  # of runs in training mode


def trace(net: nn.Module, example: Tensor | np.ndarray) -> LayerGraph:
    """Return the computation graph of a module, with one node per operation.

    A copy of the module runs in eval mode and float64 on two samples. The values of every operation identify
    reorderings and pooling, regardless of function names, and verify every node. Supported operations are linear and
    convolutional layers, positively homogeneous activations, sums, learnable diagonals, pooling and reorderings. Any
    other operation becomes a node "outside" with the reason; the rest of the graph is still analyzed.

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
        Randomness is detected with 3 additional traces in eval mode and 32 runs in training mode; events with a
        probability of 1 percent can be missed. Added noise and dropout are "outside" and raise no error.

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
    with generators() as drawn:
        follower, output = _follow(net, x, training=False)
        draws = drawn()
    with generators():
        _verify(net, x, follower, output)
    nodes = _finished(follower, output)
    if draws:
        _check_draws(net, x, nodes)
    with generators():
        _check_training(net, x, nodes)
    outside: dict[str, Skipped] = {}  # each operation once
    for node in nodes:
        if node.op == "outside":
            name = node.module or node.name
            outside.setdefault(name, Skipped(name, node.text.partition("(")[0], node.reason))
    held = dict(net.named_parameters())
    trained = frozenset(name for name, p in held.items() if p.requires_grad)
    parameters = {name: p.detach() for name, p in held.items()}
    return LayerGraph(nodes, nodes[-1].name, trained, tuple(outside.values()), parameters, type(net).__name__)


def _follow(net: nn.Module, x: Tensor, training: bool) -> tuple[Follower, Value]:
    follower = Follower(_copy(net, training), x.detach().cpu().to(torch.float64) if x.is_floating_point() else x.cpu())
    if not training:
        try:
            with torch.no_grad(), generators():
                functional.Functional(net)(x)  # whose errors are about the module, not about tracing it
        except ValueError as error:
            text = re.sub("(failed|runs) on x of", r"\1 on samples of", str(error), count=1)
            if isinstance(error, functional.PrecisionError):
                text = text.replace(error.advice, "leave out casts of values to another precision")
            raise ValueError(text) from error.__cause__
    with torch.enable_grad():
        try:
            return follower, follower.follow()
        except RefusedError as error:
            raise ValueError(str(error)) from error
        except Exception as error:
            raise ValueError(f"net: {type(net).__name__} cannot be traced{where(error)}: {error}") from error


def _finished(follower: Follower, output: Value) -> tuple[Node, ...]:
    """Return the nodes from which the output is reachable, with the output last.

    Biases are merged with their layers. Raises an error if weights are shared.
    """
    nodes, last = follower.nodes, str(output.node)
    while nodes[last].op == "cast":
        last = nodes[last].inputs[0]
    nodes = _alive(nodes, last)
    for name, node in nodes.items():
        if node.op == "cast":
            nodes[name] = replace(node, op="outside", reason="rounds values to a lower precision")
    nodes, last = _biases(nodes, last)
    nodes = _alive(nodes, last)
    _check_unshared(nodes, follower.uses, follower.net)
    end = nodes.pop(last)
    return (*nodes.values(), end)


def _alive(nodes: dict[str, Node], output: str) -> dict[str, Node]:
    needed = {output}
    for name in reversed(nodes):  # inputs come before
        if name in needed:
            needed.update(nodes[name].inputs)
    return {name: node for name, node in nodes.items() if name in needed or node.op == "input"}


def _biases(nodes: dict[str, Node], output: str) -> tuple[dict[str, Node], str]:
    """Return the nodes and output with added parameters merged into the preceding layer as its bias, or "outside"."""
    names: dict[str, str] = {}
    for node in list(nodes.values()):
        if node.op != "bias":
            continue
        before = nodes[names.get(node.inputs[0], node.inputs[0])]
        users = [other for other in nodes.values() if node.inputs[0] in other.inputs]
        alone = len(users) == 1 and node.inputs[0] != output
        if before.op in ("linear", "conv") and not before.bias and alone and _is_bias(node, before):
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


def _is_bias(node: Node, before: Node) -> bool:
    shape = (1,) * (len(node.shape) + 1 - len(node.weight_shape)) + node.weight_shape
    axis = 1 if before.op == "conv" else len(node.shape)
    return all(size == (node.shape[axis - 1] if d == axis else 1) for d, size in enumerate(shape))


def _check_unshared(nodes: Mapping[str, Node], uses: Mapping[str, Sequence[Use]], module: nn.Module) -> None:
    held = [(name, use) for name in nodes for use in uses[name]]
    every = dict(module.named_parameters(remove_duplicate=False))
    for (a, one), (b, two) in itertools.combinations(held, 2):
        if one.meets(two):
            aliases = [name for name, p in every.items() if p is every[one.parameter]]
            also = f" (registered as {', '.join(aliases)})" if len(aliases) > 1 else ""
            raise ValueError(
                f"net: shared weights: {one.parameter}{also} is used in {a!r} and in {b!r}; expected every "
                "parameter in one place, since the conserved quantities of shared weights are others"
            )


def _verify(net: nn.Module, x: Tensor, follower: Follower, output: Value) -> None:
    """Raise if the output or the gradients of the graph differ from those of the module."""
    function = functional.Functional(net)
    names = [name for name, p in function.parameters.items() if p.is_floating_point()]
    for name in names:
        function.parameters[name].requires_grad_()
    with torch.enable_grad():
        expected = function.main(x)
        if output.batch != 0 or not agree(output.tensor.detach(), expected.detach().cpu()):
            raise ValueError(
                f"net: the graph of {type(net).__name__} does not give its output; forward hooks or state that "
                "is kept between calls change it, remove them"
            )
        if not (names and expected.requires_grad and expected.is_floating_point()):
            return
        weights = torch.cos(torch.arange(expected.numel(), dtype=expected.dtype)).reshape(expected.shape)
        known = (weights.to(expected.device) * expected).sum()
        try:
            wanted = torch.autograd.grad(known, [function.parameters[name] for name in names], materialize_grads=True)
        except RuntimeError as error:
            raise ValueError(f"net: {type(net).__name__} has no gradient: {error}") from error
        held = [follower.weights[name] for name in names]
        found = tuple(map(torch.zeros_like, held))
        if output.tensor.requires_grad:
            found = torch.autograd.grad((weights * output.tensor).sum(), held, materialize_grads=True)
    wrong = [name for name, a, b in zip(names, wanted, found, strict=True) if not agree(b, a.cpu())]
    if wrong:
        graph = f"the graph of {type(net).__name__}; backward hooks change it, remove them"
        raise ValueError(f"net: the gradient of {', '.join(wrong[:3])} is not that of {graph}")


def _check_training(net: nn.Module, x: Tensor, nodes: Sequence[Node]) -> None:
    """Raise if the module computes a different graph in training mode, as far as this can be detected."""
    held, given = _copy(net, training=True), _double(x)
    try:
        with generators():
            follower, output = _follow(net, x, training=True)
        found = _finished(follower, output)
        differs = _steps(held, given)
    except ValueError:
        return  # what runs while evaluating need not run while training, as batch norm on one entry per channel
    key = attrgetter("name", "op", "inputs")
    if list(map(key, nodes)) != list(map(key, found)):
        first = next((b for a, b in zip(nodes, found, strict=False) if key(a) != key(b)), found[-1])
        raise ValueError(
            f"net: {type(net).__name__} does something else while training than in eval mode, near "
            f"{first.name!r} ({first.text}); expected the same graph: set the probability of dropping to 0"
        )
    if differs:
        raise _random(net, f"which operations it runs while training ({differs})")


def _check_draws(net: nn.Module, x: Tensor, nodes: Sequence[Node]) -> None:
    """Raise if the graph of the module depends on random numbers."""
    for seed in SEEDS:
        with generators(seed):
            follower, output = _follow(net, x, training=False)
            found = _finished(follower, output)
        if len(found) != len(nodes):
            raise _random(net, "which operations it runs")
        for one, other in zip(nodes, found, strict=True):
            arrays: list[tuple[Any, Any]] = [(one.index, other.index), (one.windows, other.windows)]
            if repr(one) != repr(other) or not all(np.array_equal(a, b) for a, b in arrays):
                raise _random(net, f"what it does at {one.name!r} ({one.text})")


def _random(net: nn.Module, what: str) -> ValueError:
    return ValueError(
        f"net: {type(net).__name__} draws random numbers that decide {what}; expected the same graph in every "
        "call: set the probability to 0, or draw once and keep the draw in a buffer"
    )


def _check(net: nn.Module) -> None:
    try:
        functional.check_unshared(net)
    except ValueError as error:
        raise ValueError(f"{str(error).partition(', expected')[0]}, expected separate ones") from None
    if getattr(getattr(net, "forward", None), "__name__", "") == "_forward_unimplemented":
        raise ValueError(f"net: {type(net).__name__} has no forward, expected a module that can be called")
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
        needs = f"{len(needed)} arguments ({', '.join(needed)})"
        advice = "wrap it in a module that fixes the others"
        raise ValueError(f"net: the forward of {type(net).__name__} needs {needs}, expected one tensor; {advice}")


def _copy(net: nn.Module, training: bool) -> nn.Module:
    """Return a copy in float64, without the user's hooks, with all parameters contiguous."""
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
    for sub in copied.modules():
        sub.training = training
    return copied


def _double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.float64, copy=True).contiguous() if tensor.is_floating_point() else tensor.clone()


def _steps(net: nn.Module, x: Tensor) -> str:
    """Return the first operation that differs between 32 seeds, or "" if there is none; ``net`` is a copy."""
    first: list[str] | None = None
    for seed in range(DRAWS):
        with generators(seed) as drawn:
            with torch.no_grad(), _Names() as names:
                net(x.clone())
            if seed == 0 and not drawn():
                return ""
        first = names.found if first is None else first
        if names.found != first:
            pairs = zip([*first, "the end"], [*names.found, "the end"], strict=False)
            return next(f"{a} or {b}" for a, b in pairs if a != b)
    return ""


class _Names(TorchFunctionMode):
    """Records the names of called functions and the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function."""
        result = func(*args, **(kwargs or {}))
        shape = "x".join(map(str, result.shape)) if isinstance(result, Tensor) else ""
        self.found.append(f"{function_name(func)} {shape}".strip())
        return result
