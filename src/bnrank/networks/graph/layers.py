"""Computation graphs of modules with one node per operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.graph import drawing
from bnrank.networks.graph.nodes import Node
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class LayerGraph(Printed):
    """The computation graph of a module, with nodes in topological order.

    Attributes
    ----------
    nodes : tuple of Node
        The first node is the only "input". Nodes from which the output is not reachable are omitted.
    output : str
        The node whose value the module returns.
    trained : frozenset of str
        Names of the parameters that require a gradient; other parameters are fixed.
    parameters : mapping of str to Tensor
        The parameters of the traced module, detached and sharing memory with it.
    name : str
        Class name of the module.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    >>> graph = bnrank.graph.trace(net, torch.ones(2, 3))       # a bnrank.graph.LayerGraph
    >>> [node.op for node in graph.nodes], graph.output
    (['input', 'linear', 'activation', 'linear'], '2')
    """

    nodes: tuple[Node, ...]
    output: str
    trained: frozenset[str]
    parameters: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    name: str = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> Node:
        if name not in self._by_name:
            raise KeyError(f"no node {name!r}{validation.suggest(str(name), self._by_name)}")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def outside(self) -> tuple[Skipped, ...]:
        """Operations and submodules outside the theory, whose nodes have ``op`` "outside", each with its reason."""
        parts: dict[str, Skipped] = {}
        for node in (node for node in self.nodes if node.op == "outside"):
            name = node.module or node.name
            parts.setdefault(name, Skipped(name, node.text.partition("(")[0], node.reason))
        return tuple(parts.values())

    def consumers(self, name: str) -> tuple[Node, ...]:
        """Return the distinct nodes that use the value of a node."""
        name = validation.text(name, "name")
        return tuple(node for node in self.nodes if name in node.inputs)

    def _content(self) -> list[Part]:
        """Return a table of the nodes with inputs, shapes and parameters, and the operations outside the theory."""
        rows = []
        for node in self.nodes:
            held = [node.weight, node.bias] if node.op != "outside" else node.held
            does = node.text if node.op in ("input", "outside") else f"{node.op} {node.text}".strip()
            names = ", ".join(name if name in self.trained else f"{name} (fixed)" for name in held if name)
            row = {"node": node.name, "does": does, "takes": ", ".join(node.inputs)}
            rows.append(row | {"gives": "x".join(map(str, node.shape)) or "1", "parameters": names})
        shown: list[Part] = [f"{self.name}: {len(self)} nodes", Table("Nodes", rows)]
        if self.outside:
            shown += ["outside the theory:", *(f"  {part}" for part in self.outside)]
        return shown

    def draw(self, axes: Any = None) -> Axes:
        """Draw the operations from left to right, in the order of execution, colored by kind.

        Boxes show the operation and the shape of its value; skip connections are arcs.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Default: new axes.

        Returns
        -------
        matplotlib axes
        """
        return drawing.draw_operations(self.nodes, axes)
