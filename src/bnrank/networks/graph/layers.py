"""Computation graphs of modules with one node per operation, and their expansion to one vertex per neuron."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.graph import drawing
from bnrank.networks.graph.neurons import NeuronGraph, Origin
from bnrank.networks.graph.nodes import Node, apply, fixed_edges
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EDGE_LIMIT = 20_000
CONSTANT = "constant"

Array = NDArray[Any]


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
    outside : tuple of Skipped
        Operations outside the theory, whose nodes have ``op`` "outside".
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
    outside: tuple[Skipped, ...] = ()
    parameters: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    name: str = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> Node:
        if name not in self._by_name:
            raise KeyError(f"no node {name!r}{validation.suggest(name, self._by_name)}")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> Mapping[str, Node]:
        return {node.name: node for node in self.nodes}

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

    def neurons(self, max_edges: int = EDGE_LIMIT) -> NeuronGraph:
        """Return the weighted DAG of neurons, with the current weights (T42).

        The vertices are entries of values, named (node, flat index), and "constant", the source of the biases. Entries
        of parameters become edges with their origin, learnable if the parameter is trained. Sums, averages and
        reorderings become fixed edges. A vertex that only copies a value is merged with its neighbor: a layer and the
        activation after it form one vertex, named after the layer. Entries that are 0 for every input, and entries from
        which no output is reachable, are omitted. Parallel edges are separated by a vertex (node, flat index, k) of
        slope 1. Learned slopes (PReLU) become fixed numbers.

        Parameters
        ----------
        max_edges : int
            Maximum number of edges before vertices are merged.

        Raises
        ------
        ValueError
            If a node is outside the theory or computes maxima (the error names it), if a parameter is missing or not
            finite, or if there are more than ``max_edges`` edges.

        Examples
        --------
        >>> import bnrank, torch
        >>> graph = bnrank.graph.trace(bnrank.MLP([2, 3, 1], seed=0), torch.zeros(1, 2)).neurons()
        >>> graph
        NeuronGraph(7 vertices, 13 edges, 13 learnable)
        >>> graph.count()  # 2 * 3 from the inputs, 3 + 1 from the biases
        10

        Source: LeJegelka2022, section 2; T42.
        """
        validation.integer(max_edges, "max_edges")
        values = {name: value.detach().cpu().double().numpy() for name, value in self.parameters.items()}
        parts: list[tuple[Node, _Part]] = []
        total = 0
        for node in self:
            reason = {"outside": f"is outside the theory: {node.reason}", "maximum": "takes maxima, which are no sums"}
            text = f"{node.name} ({node.text})" if node.text else node.name
            validation.expect(node.op not in reason, "graph", f"{text}, which {reason.get(node.op)}", "weighted sums")
            for name in filter(None, (node.weight, node.bias)):
                near = validation.suggest(name, values)
                validation.expect(name in values, "parameters", f"no {name!r}", f"that of {node.name}{near}")
            total += _most(node, values)
            limit = f"at most {max_edges}"
            validation.expect(total <= max_edges, "max_edges", f"a graph of up to {total} edges", limit)
            parts += [(node, part) for part in _parts(self, node, values)]
        draft = _Draft(self, parts)
        for node, part in parts:
            draft.add(node, part, values)
        return draft.finished()

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


def _most(node: Node, values: Mapping[str, Array]) -> int:
    """Return an upper bound on the number of edges into a node's entries: all of them but those in paddings."""
    each = float(len(node.inputs))
    if node.op in ("linear", "conv"):
        weight = values[node.weight]
        each = weight.shape[0] if node.transposed else weight[0].size
    elif node.op == "average" and node.windows is not None:
        each = np.count_nonzero(node.windows) / len(node.windows)
    return round(node.size * (each + bool(node.bias)))


_Part = tuple[str, str, Array, Array, Array]
"""Edges into the entries of a node: the node before ("" for the constant), the parameter ("" for fixed weights), the
entries of the node before, the entries of this node, and the entries of the parameter or the fixed weights."""


def _parts(graph: LayerGraph, node: Node, values: Mapping[str, Array]) -> Iterator[_Part]:
    """Yield the edges into a node's entries."""
    inputs, entries = [graph[name] for name in node.inputs], np.arange(node.size)
    if node.op == "linear":
        weight = values[node.weight].T if node.transposed else values[node.weight]
        row, out, into = (a.ravel() for a in np.indices((node.size // len(weight), *weight.shape)))
        places = into * len(weight) + out if node.transposed else out * weight.shape[1] + into
        yield node.inputs[0], node.weight, row * weight.shape[1] + into, row * len(weight) + out, places
    elif node.op == "conv":
        yield node.inputs[0], node.weight, *_convolution(node, inputs[0], values[node.weight])
    elif node.op == "diagonal":
        yield node.inputs[0], node.weight, entries, entries, node.weight_places()
    else:
        too_many = node.op == "average" and node.windows is None
        validation.expect(not too_many, "graph", f"{node.name}, which averages too many entries", "fewer")
        for name, source, target, weights in fixed_edges(node, inputs):
            yield name, "", source, target, weights
    if node.bias:
        yield "", node.bias, entries, entries, node.bias_places(values[node.bias].size)


def _convolution(node: Node, before: Node, weight: Array) -> tuple[Array, Array, Array]:
    """Return the edges of a convolution, by running every single tap of its kernel on the numbers of positions."""
    n_out, n_in, *kernel = weight.shape
    taps = torch.eye(math.prod(kernel), dtype=torch.float64).reshape(-1, 1, *kernel)
    positions = math.prod(before.shape[1:])
    numbers = torch.arange(1.0, positions + 1, dtype=torch.float64).reshape(1, 1, *before.shape[1:])
    tapped = apply(replace(node, bias="", groups=1), [numbers], {node.weight: taps})  # 0 in the padding
    read = tapped.flatten(2)[0].T.long().numpy() - 1
    place, tap = np.nonzero(read >= 0)
    out, into, hit = (a.ravel() for a in np.indices((n_out, n_in, len(place))))
    source = (out // (n_out // node.groups) * n_in + into) * positions + read[place[hit], tap[hit]]
    return source, out * len(read) + place[hit], (out * n_in + into) * len(taps) + tap[hit]


class _Draft:
    """A weighted DAG with a vertex per entry that is neither 0 for every input nor a copy of another entry."""

    def __init__(self, graph: LayerGraph, parts: list[tuple[Node, _Part]]) -> None:
        self.graph, self.uses = graph, {node.name: np.zeros(node.size, int) for node in graph}
        self.uses[graph.output] += 1
        self.inputs: list[Hashable] = [(graph.nodes[0].name, i) for i in range(graph.nodes[0].size)]
        self.slopes: dict[Hashable, float] = dict.fromkeys([*self.inputs, CONSTANT], 1.0)
        self.vertices: dict[Hashable, Hashable] = {v: v for v in self.slopes}  # by entry
        self.edges: dict[Hashable, list[tuple[Hashable, float, bool, Origin | None]]] = {}  # by target

        for node, (before, _, source, target, _) in reversed(parts):  # how often entries are used, after their users
            if before:
                np.add.at(self.uses[before], source, self.uses[node.name][target] if node.op == "index" else 1)

    def add(self, node: Node, part: _Part, values: Mapping[str, Array]) -> None:
        """Add edges into the entries of a node, or let these stand for the entries that they copy."""
        before, parameter, source, target, content = part
        weights = values[parameter].reshape(-1)[content] if parameter else content
        learned = np.ravel(node.slope if not np.isnan(node.slope) else values[node.weight])  # by PReLU
        given = learned if node.op == "activation" else np.ones(1)
        slopes = np.repeat(given, node.size // len(given)).tolist()
        learnable = parameter in self.graph.trained
        for u, v, weight, place in zip(*(a.tolist() for a in (source, target, weights, content)), strict=True):
            entry, start = (node.name, v), self.vertices.get((before, u) if before else CONSTANT)
            if start is None:
                continue
            free = start in self.edges and self.slopes[start] == 1 and self.uses[before][u] == 1
            if node.op == "index" or (node.op == "activation" and (free or slopes[v] == 1)):
                self.vertices[entry] = start
                self.slopes[start] *= slopes[v]
                continue
            self.vertices[entry] = entry
            self.slopes[entry] = slopes[v]
            origin = (parameter, place) if parameter else None
            self.edges.setdefault(entry, []).append((start, weight, learnable, origin))

    def finished(self) -> NeuronGraph:
        """Return the graph of the vertices that reach the output, with parallel edges apart by vertices of slope 1."""
        outputs: list[Hashable] = []
        for i in range(self.graph[self.graph.output].size):
            entry: Hashable = (self.graph.output, i)
            vertex = self.vertices.get(entry)
            if vertex not in self.edges or vertex in outputs:  # an input, 0, or an output already: a copy of it
                start, weight = (CONSTANT, 0.0) if vertex is None else (vertex, 1.0)
                vertex = entry if entry not in outputs else (self.graph.output, i, "copy")
                self.edges[vertex] = [(start, weight, False, None)]
            outputs.append(vertex)
        needed = {*outputs}
        for vertex in reversed(self.edges):
            needed |= {start for start, *_ in self.edges[vertex]} if vertex in needed else set()
        vertices = [*self.inputs, *([CONSTANT] if CONSTANT in needed else [])]
        edges: dict[tuple[Hashable, Hashable], tuple[float, bool, Origin | None]] = {}
        for vertex in (vertex for vertex in self.edges if vertex in needed):
            apart = itertools.count()
            for start, *content in self.edges[vertex]:
                between = vertex
                if (start, vertex) in edges:
                    between = (*cast(tuple[Hashable, ...], vertex), next(apart))
                    vertices.append(between)
                    edges[between, vertex] = (1.0, False, None)
                edges[start, between] = cast(tuple[float, bool, Origin | None], tuple(content))
            vertices.append(vertex)
        weights, learnable, origins = zip(*edges.values(), strict=True) if edges else ((), (), ())
        slopes = np.array([self.slopes.get(vertex, 1.0) for vertex in vertices])
        coordinates: dict[Hashable, int | str] = {vertex: i for i, vertex in enumerate(self.inputs)}
        coordinates |= {CONSTANT: CONSTANT} if CONSTANT in needed else {}
        free, names = np.array(learnable, bool), tuple(vertices)
        return NeuronGraph(names, tuple(edges), np.array(weights), slopes, coordinates, tuple(outputs), free, origins)
