"""Computation graphs of modules with one node per operation, and their expansion to one vertex per neuron."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.graph import drawing
from bnrank.networks.graph.neurons import NeuronGraph, Origin
from bnrank.networks.graph.nodes import Node
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

    Draft: TypeAlias = nx.MultiDiGraph[Hashable]

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
        """Return the graph with one vertex per neuron and the current weights, for small networks (T42).

        Parameters
        ----------
        max_edges : int
            Maximum number of edges before vertices are merged.

        Raises
        ------
        ValueError
            As `neurons`.
        """
        return neurons(self, self.parameters, max_edges)

    def draw(self, axes: Any = None) -> Axes:
        """Draw the operations from left to right, in the order of execution, colored by kind.

        Skip connections are drawn as arcs, with the shape of every value below its operation.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Default: new axes.

        Returns
        -------
        matplotlib axes
        """
        return drawing.draw_operations(self.nodes, axes)


def neurons(graph: LayerGraph, parameters: Mapping[str, Tensor], max_edges: int = EDGE_LIMIT) -> NeuronGraph:
    """Return the weighted DAG of neurons of a layer graph.

    The vertices are entries of values, named (node, flat index), and "constant", the source of the biases. Entries of
    parameters become edges with their origin, learnable if the parameter is trained. Sums, averages and reorderings
    become fixed edges. A vertex that only copies a value is merged with its neighbor: a layer and the activation after
    it form one vertex, named after the layer. Entries that are 0 for every input, and entries from which no output is
    reachable, are omitted. Parallel edges are separated by a vertex (node, flat index, k) of slope 1.

    Learned slopes (PReLU) become fixed numbers.

    Parameters
    ----------
    graph : LayerGraph
        A graph without nodes outside the theory and without max pooling.
    parameters : mapping
        Maps names to tensors, as ``dict(module.named_parameters())``.
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
    >>> from bnrank.networks.graph import trace
    >>> net = bnrank.MLP([2, 3, 1], seed=0)
    >>> graph = neurons(trace(net, torch.zeros(1, 2)), dict(net.named_parameters()))
    >>> graph
    NeuronGraph(7 vertices, 13 edges, 13 learnable)
    >>> graph.count()  # 2 * 3 from the inputs, 3 + 1 from the biases
    10

    Source: LeJegelka2022, section 2; T42.
    """
    import networkx as nx

    validation.integer(max_edges, "max_edges")
    values = {name: value.detach().cpu().double().numpy() for name, value in parameters.items()}
    parts: list[tuple[Node, _Part]] = []
    for node in graph:
        reason = {"outside": f"is outside the theory: {node.reason}", "maximum": "takes maxima, which are no sums"}
        text = f"{node.name} ({node.text})" if node.text else node.name
        validation.expect(node.op not in reason, "graph", f"{text}, which {reason.get(node.op)}", "weighted sums")
        for name in (node.weight, node.bias):
            near = validation.suggest(name, values)
            validation.expect(not name or name in values, "parameters", f"no {name!r}", f"that of {node.name}{near}")
        parts += [(node, part) for part in _parts(graph, node, values)]
    total = sum(part[2] for _, part in parts)
    if total > max_edges:
        raise ValueError(f"max_edges: the graph has {total} edges, counted before merging, more than {max_edges}")
    inputs: list[Hashable] = [(graph.nodes[0].name, i) for i in range(graph.nodes[0].size)]
    outputs: list[Hashable] = [(graph.output, i) for i in range(graph[graph.output].size)]
    draft: Draft = nx.MultiDiGraph()
    draft.add_node(CONSTANT, slope=1.0)
    for node in graph:
        slopes = np.ravel(node.slope if not np.isnan(node.slope) else values[node.weight])  # learned by PReLU
        each = np.repeat(slopes if node.op == "activation" else [1.0], node.size // len(slopes))
        draft.add_nodes_from(((node.name, i), {"slope": slope}) for i, slope in enumerate(each.tolist()))
    numbers = itertools.count()
    for node, (before, parameter, _, make) in parts:
        source, target, content = make()
        weights = values[parameter].reshape(-1)[content] if parameter else content
        learnable = parameter in graph.trained
        for u, v, weight, entry in zip(*(a.tolist() for a in (source, target, weights, content)), strict=True):
            origin = (parameter, entry) if parameter else None
            start = (before, u) if before else CONSTANT
            about = {"weight": weight, "number": next(numbers), "learnable": learnable, "origin": origin}
            draft.add_edge(start, (node.name, v), **about)
    _prune(draft, [*inputs, CONSTANT], outputs)
    return _assembled(draft, inputs, _contracted(draft, {*inputs, CONSTANT}, outputs))


_Part = tuple[str, str, int, Callable[[], tuple[Array, Array, Array]]]
"""Edges into the entries of a node: the node before ("" for the constant), the parameter ("" for fixed weights), the
number of edges, and a function that returns the entries of the node before, the entries of this node, and the entries
of the parameter or the fixed weights."""


def _parts(graph: LayerGraph, node: Node, values: Mapping[str, Array]) -> Iterator[_Part]:
    """Yield the edges into a node's entries."""
    entries, ones = np.arange(node.size), np.ones(node.size)
    first = node.inputs[0] if node.inputs else ""
    if node.op == "linear":
        yield _linear(node, values[node.weight])
    elif node.op == "conv":
        yield _convolution(node, graph[first], values[node.weight])
    elif node.op == "diagonal":
        yield first, node.weight, node.size, lambda: (entries, entries, node.weight_places())
    elif node.op in ("activation", "add"):
        for name, factor in zip(node.inputs, node.factors or (1.0,), strict=True):
            yield name, "", node.size, functools.partial(_together, entries, entries, factor * ones)
    elif node.op == "average":
        validation.expect(node.windows is not None, "graph", f"{node.name}, which averages too many entries", "fewer")
        given, taken = node.pooled(graph[first])
        out, position = np.nonzero(node.windows)  # type: ignore[arg-type]
        weights = np.tile(node.windows[out, position], len(taken))  # type: ignore[index]
        yield first, "", len(weights), lambda: (taken[:, position].ravel(), given[:, out].ravel(), weights)
    elif node.op == "index":
        index, start = np.ravel(node.index), 0  # type: ignore[arg-type]
        for name in node.inputs:
            target = np.flatnonzero((index >= start) & (index < start + graph[name].size))
            yield (
                name,
                "",
                len(target),
                functools.partial(_together, index[target] - start, target, ones[: len(target)]),
            )
            start += graph[name].size
    if node.bias:
        yield "", node.bias, node.size, lambda: (entries, entries, node.bias_places(values[node.bias].size))


def _together(source: Array, target: Array, content: Array) -> tuple[Array, Array, Array]:
    return source, target, content


def _linear(node: Node, weight: Array) -> _Part:
    n_out, n_in = weight.T.shape if node.transposed else weight.shape
    rows = node.size // n_out

    def make() -> tuple[Array, Array, Array]:
        row, out, into = (a.ravel() for a in np.indices((rows, n_out, n_in)))
        return row * n_in + into, row * n_out + out, into * n_out + out if node.transposed else out * n_in + into

    return node.inputs[0], node.weight, rows * weight.size, make


def _convolution(node: Node, before: Node, weight: Array) -> _Part:
    n_out, n_in, *kernel = weight.shape
    numbers = np.arange(1, before.size + 1).reshape(before.shape)
    pads = [(0, 0), *((p, p) for p in node.padding)]
    mode = "wrap" if node.padding_mode == "circular" else "constant"
    spans = [1 + dilation * (k - 1) for k, dilation in zip(kernel, node.dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(numbers, pads, mode), (1, *spans))  # type: ignore[call-overload]
    steps = [slice(None, None, step) for step in (1, *node.stride, 1, *node.dilation)]
    windows = windows[tuple(steps)].reshape(len(numbers), -1, math.prod(kernel))  # 0 in the padding
    position, tap = np.nonzero(windows[0])

    def make() -> tuple[Array, Array, Array]:
        out, into, hit = (a.ravel() for a in np.indices((n_out, n_in, len(position))))
        channel = out // (n_out // node.groups) * n_in + into
        source = windows[channel, position[hit], tap[hit]] - 1
        return source, out * windows.shape[1] + position[hit], (out * n_in + into) * windows.shape[2] + tap[hit]

    return node.inputs[0], node.weight, n_out * n_in * len(position), make


def _prune(draft: Draft, sources: Iterable[Hashable], outputs: Iterable[Hashable]) -> None:
    """Remove edges from vertices that are 0 for every input and into vertices from which no output is reachable."""
    import networkx as nx

    start, end = object(), object()
    draft.add_edges_from((start, v) for v in sources)
    draft.add_edges_from((v, end) for v in outputs)
    carries, needed = nx.descendants(draft, start), nx.ancestors(draft, end)
    draft.remove_nodes_from([start, end])
    unused = [(u, v, key) for u, v, key in draft.edges(keys=True) if u not in carries or v not in needed]
    draft.remove_edges_from(unused)
    for v in outputs:
        if v not in carries:
            draft.add_edge(CONSTANT, v, weight=0.0, learnable=False, origin=None, number=-1)


def _contracted(draft: Draft, sources: Collection[Hashable], outputs: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Return the outputs after merging vertices joined by a fixed edge of weight 1 if one only copies a value."""
    place = {v: i for i, v in enumerate(outputs)}
    for v in [v for v in draft if v not in sources and draft.in_degree(v) == 1]:
        ((u, _, edge),) = draft.in_edges(v, data=True)
        if edge["weight"] != 1 or edge["learnable"] or edge["origin"] is not None:
            continue
        before, own = draft.nodes[u]["slope"], draft.nodes[v]["slope"]
        only = draft.out_degree(u) == 1 and u not in sources and u not in place
        if not ((before == 1 and only) or (own == 1 and (only or v not in place))):
            continue
        draft.nodes[u]["slope"] = own if before == 1 and only else before
        draft.add_edges_from([(u, w, data) for _, w, data in draft.out_edges(v, data=True)])
        draft.remove_node(v)
        if v in place:
            place[u] = place.pop(v)
    return tuple(sorted(place, key=lambda v: place[v]))


def _assembled(draft: Draft, inputs: Iterable[Hashable], outputs: tuple[Hashable, ...]) -> NeuronGraph:
    """Return the neuron graph, with parallel edges separated by vertices of slope 1."""
    coordinates: dict[Hashable, int | str] = {v: i for i, v in enumerate(inputs)}
    if draft.out_degree(CONSTANT):
        coordinates[CONSTANT] = CONSTANT
    vertices: dict[Hashable, float] = dict.fromkeys(coordinates, 1.0)
    edges: dict[tuple[Hashable, Hashable], tuple[float, bool, Origin | None]] = {}
    for v in draft:
        if v in coordinates or not draft.in_degree(v):
            continue
        apart = itertools.count()
        for u, _, edge in sorted(draft.in_edges(v, data=True), key=lambda e: e[2]["number"]):
            content = (edge["weight"], edge["learnable"], edge["origin"])
            if (u, v) in edges:
                target = (*cast(tuple[Hashable, ...], v), next(apart))
                vertices[target] = 1.0
                edges[u, target], edges[target, v] = content, (1.0, False, None)
            else:
                edges[u, v] = content
        vertices[v] = draft.nodes[v]["slope"]
    weights, learnable, origins = zip(*edges.values(), strict=True) if edges else ((), (), ())
    slopes = np.array(list(vertices.values()))
    free = np.array(learnable, bool)
    return NeuronGraph(tuple(vertices), tuple(edges), np.array(weights), slopes, coordinates, outputs, free, origins)
