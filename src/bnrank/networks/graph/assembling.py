"""The last steps of a trace: biases to their layers, dead nodes away, shared weights refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from bnrank.networks.graph.nodes import Node
from bnrank.networks.reasons import Skipped


@dataclass(frozen=True)
class Use:
    """A parameter in an operation: the operation's number, the parameter and, for a view of it, which entries."""

    call: int
    parameter: str
    where: np.ndarray | None = None

    def meets(self, other: Use) -> bool:
        """Return whether another operation uses some of the same entries of the parameter."""
        if self.parameter != other.parameter or self.call == other.call:
            return False
        if self.where is None or other.where is None:
            return True
        return bool(np.intersect1d(self.where, other.where).size)


def finish(
    nodes: dict[str, Node], output: str, uses: Mapping[str, Sequence[Use]], module: nn.Module
) -> tuple[Node, ...]:
    """Return the nodes that reach the output, the output last.

    Raises
    ------
    ValueError
        If a parameter is used in two of them; the message names the parameter and both.
    """
    while nodes[output].op == "cast":
        output = nodes[output].inputs[0]
    found, output = _biases(_casts(_alive(nodes, output)), output)
    found = _alive(found, output)
    _check_unshared(found, uses, module)
    last = found.pop(output)
    return (*found.values(), last)


def _alive(nodes: dict[str, Node], output: str) -> dict[str, Node]:
    needed = {output}
    for name in reversed(nodes):  # inputs come before
        if name in needed:
            needed.update(nodes[name].inputs)
    return {name: node for name, node in nodes.items() if name in needed or node.op == "input"}


def _casts(nodes: dict[str, Node]) -> dict[str, Node]:
    """Call casts to a lower precision that are not the last operation outside."""
    reason = "rounds values to a lower precision"
    return {n: replace(v, op="outside", reason=reason) if v.op == "cast" else v for n, v in nodes.items()}


def _biases(nodes: dict[str, Node], output: str) -> tuple[dict[str, Node], str]:
    """Give added parameters to the layer before, where they are its bias; else they are outside."""
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
            nodes[node.name] = replace(
                node, op="outside", reason=reason, held=(node.weight,), weight="", weight_shape=()
            )
    moved = {
        name: replace(node, inputs=tuple(names.get(other, other) for other in node.inputs))
        for name, node in nodes.items()
    }
    return moved, names.get(output, output)


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


def outside(nodes: Iterable[Node]) -> tuple[Skipped, ...]:
    """Return what is outside the theory, each operation once."""
    found: dict[str, Skipped] = {}
    for node in nodes:
        if node.op == "outside":
            name = node.module or node.name
            found.setdefault(name, Skipped(name, node.text.partition("(")[0], node.reason))
    return tuple(found.values())


def text(module: Any) -> str:
    """Return a submodule in a few words: class and sizes."""
    kind = type(module).__name__
    if isinstance(module, nn.Linear):
        return f"{kind}({module.in_features}, {module.out_features})"
    if isinstance(module, nn.modules.conv._ConvNd):
        kernel = "x".join(map(str, module.kernel_size))
        groups = f", groups {module.groups}" if module.groups > 1 else ""
        return f"{kind}({module.in_channels}, {module.out_channels}, {kernel}{groups})"
    return kind
