"""A layer graph at the granularity of neurons: every entry of every value a vertex."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.graph.neurons import NeuronGraph, Origin
from bnrank.networks.graph.nodes import Graph, Node

if TYPE_CHECKING:
    import networkx as nx

EDGE_LIMIT = 20_000
CONSTANT = "constant"

Array = NDArray[Any]


def neurons(graph: Graph, parameters: Mapping[str, Tensor], max_edges: int = EDGE_LIMIT) -> NeuronGraph:
    """Return a layer graph as a weighted DAG of neurons.

    The vertices are entries of values, named (node, flat index), and "constant", from which the biases come. Entries of
    parameters are edges, learnable where the graph trains them, with their origin; sums, averages and reorderings are
    fixed edges. A vertex that only passes on a value is merged with its neighbor: a layer and the activation after
    it are one vertex, with the layer's name. Entries that are 0 whatever the input, and those that reach no output, are
    left out. Two edges between the same vertices are kept apart by a vertex (node, flat index, k) of slope 1.

    Slopes that are learned (PReLU) become fixed numbers.

    Parameters
    ----------
    graph : LayerGraph
        All of its nodes inside the theory, no max pooling.
    parameters : mapping
        From names to tensors, as ``dict(module.named_parameters())``.
    max_edges : int
        Limit on the edges, counted before vertices are merged.

    Raises
    ------
    ValueError
        If a node is outside the theory or takes maxima (named), a parameter is missing or not finite, or there are more
        edges than ``max_edges``.

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
    validation.integer(max_edges, "max_edges")
    for node in graph:
        if node.op == "outside":
            raise ValueError(f"graph: {node.name} is outside the theory: {node.reason or node.text}")
        if node.op == "maximum":
            raise ValueError(
                f"graph: {node.name} ({node.text or 'max pooling'}) takes maxima, which are no sums of weighted edges"
            )
    values = {name: np.asarray(value.detach().cpu().double().numpy()) for name, value in parameters.items()}
    for node in graph:
        for name in (node.weight, node.bias):
            if name and name not in values:
                near = validation.suggest(name, values)
                raise ValueError(f"parameters: {name!r}, which {node.name} uses, is missing{near}")
    parts = [(node, part) for node in graph for part in _parts(graph, node, values)]
    total = sum(part.count for _, part in parts)
    if total > max_edges:
        raise ValueError(f"max_edges: the graph has {total} edges, counted before merging, more than {max_edges}")
    inputs: list[Hashable] = [(graph.nodes[0].name, i) for i in range(graph.nodes[0].size)]
    outputs: list[Hashable] = [(graph.output, i) for i in range(graph[graph.output].size)]
    draft = _drafted(graph, values, parts)
    _prune(draft, [*inputs, CONSTANT], outputs)
    return _assembled(draft, inputs, _contracted(draft, {*inputs, CONSTANT}, outputs))


@dataclass(frozen=True)
class _Part:
    """Edges into the entries of a node, counted before they are made.

    ``make`` returns, per edge: the entry of the node ``source``, the entry of the node, and the entry of the parameter
    or, without a parameter, the fixed weight.
    """

    source: str
    count: int
    make: Callable[[], tuple[Array, Array, Array]]
    parameter: str = ""


def _parts(graph: Graph, node: Node, values: Mapping[str, Array]) -> Iterator[_Part]:
    """Yield the edges into a node's entries."""
    size, entries = node.size, np.arange(node.size)
    first = node.inputs[0] if node.inputs else ""
    if node.op == "linear":
        yield _linear(node, values[node.weight])
    elif node.op == "conv":
        yield _convolution(node, graph[first], values[node.weight])
    elif node.op == "diagonal":
        yield _fixed(first, entries, entries, node.weight_places(), node.weight)
    elif node.op == "activation":
        yield _fixed(first, entries, entries, np.ones(size))
    elif node.op == "add":
        for name, factor in zip(node.inputs, node.factors or (1.0,) * len(node.inputs), strict=True):
            yield _fixed(name, entries, entries, np.full(size, float(factor)))
    elif node.op == "average":
        yield _average(node, graph[first])
    elif node.op == "index":
        yield from _reordered(graph, node)
    elif node.op != "input":
        raise ValueError(f"graph: {node.name} has the operation {node.op!r}, which cannot be expanded into neurons")
    if node.bias:
        yield _fixed("", entries, entries, node.bias_places(values[node.bias].size), node.bias)


def _fixed(name: str, source: Array, target: Array, content: Array, parameter: str = "") -> _Part:
    return _Part(name, len(target), lambda: (source, target, content), parameter)


def _linear(node: Node, weight: Array) -> _Part:
    n_out, n_in = weight.T.shape if node.transposed else weight.shape
    rows = node.size // n_out

    def make() -> tuple[Array, Array, Array]:
        row, out, into = (a.ravel() for a in np.indices((rows, n_out, n_in)))
        return row * n_in + into, row * n_out + out, into * n_out + out if node.transposed else out * n_in + into

    return _Part(node.inputs[0], rows * weight.size, make, node.weight)


def _convolution(node: Node, before: Node, weight: Array) -> _Part:
    n_out, n_in, *kernel = weight.shape
    numbers = np.arange(1, before.size + 1).reshape(before.shape)
    pads, mode = [(0, 0), *((p, p) for p in node.padding)], "wrap" if node.padding_mode == "circular" else "constant"
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

    return _Part(node.inputs[0], n_out * n_in * len(position), make, node.weight)


def _average(node: Node, before: Node) -> _Part:
    if node.windows is None:
        raise ValueError(f"graph: {node.name} ({node.text}) averages over too many entries to be expanded into neurons")
    given, taken = node.pooled(before)
    out, position = np.nonzero(node.windows)
    weights = np.tile(node.windows[out, position], len(taken))
    return _fixed(before.name, taken[:, position].ravel(), given[:, out].ravel(), weights)


def _reordered(graph: Graph, node: Node) -> Iterator[_Part]:
    assert node.index is not None
    index, start = np.asarray(node.index).reshape(-1), 0
    for name in node.inputs:
        size = graph[name].size
        target = np.flatnonzero((index >= start) & (index < start + size))
        yield _fixed(name, index[target] - start, target, np.ones(len(target)))
        start += size


def _drafted(
    graph: Graph, values: Mapping[str, Array], parts: Iterable[tuple[Node, _Part]]
) -> nx.MultiDiGraph[Hashable]:
    """Return a vertex per entry of every value, with all edges."""
    import networkx as nx

    draft: nx.MultiDiGraph[Hashable] = nx.MultiDiGraph()
    for node in graph:
        draft.add_nodes_from(((node.name, i), {"slope": slope}) for i, slope in enumerate(_slopes(node, values)))
    draft.add_node(CONSTANT, slope=1.0)
    numbers = itertools.count()
    for node, part in parts:
        source, target, content = part.make()
        weights = values[part.parameter].reshape(-1)[content] if part.parameter else content
        learnable = part.parameter in graph.trained
        for u, v, weight, entry in zip(*(a.tolist() for a in (source, target, weights, content)), strict=True):
            draft.add_edge(
                (part.source, u) if part.source else CONSTANT,
                (node.name, v),
                weight=weight,
                learnable=learnable,
                origin=(part.parameter, entry) if part.parameter else None,
                number=next(numbers),
            )
    return draft


def _prune(draft: nx.MultiDiGraph[Hashable], sources: Iterable[Hashable], outputs: Iterable[Hashable]) -> None:
    """Remove edges from vertices that are 0 whatever the input, and into those that reach no output."""
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


def _contracted(
    draft: nx.MultiDiGraph[Hashable], sources: Collection[Hashable], outputs: Iterable[Hashable]
) -> tuple[Hashable, ...]:
    """Merge vertices that a fixed edge of weight 1 joins if one of them only passes on a value; return the outputs."""
    place = {v: i for i, v in enumerate(outputs)}
    for v in [v for v in draft if v not in sources]:
        if draft.in_degree(v) != 1:
            continue
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


def _assembled(
    draft: nx.MultiDiGraph[Hashable], inputs: Iterable[Hashable], outputs: tuple[Hashable, ...]
) -> NeuronGraph:
    """Return the graph, parallel edges kept apart by vertices of slope 1."""
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
            target = v
            if (u, v) in edges:
                target = (*cast(tuple[Hashable, ...], v), next(apart))
                vertices[target] = 1.0
            edges[u, target] = (edge["weight"], edge["learnable"], edge["origin"])
            if target != v:
                edges[target, v] = (1.0, False, None)
        vertices[v] = draft.nodes[v]["slope"]
    weights, learnable, origins = zip(*edges.values(), strict=True) if edges else ((), (), ())
    return NeuronGraph(
        vertices=tuple(vertices),
        edges=tuple(edges),
        weights=np.array(weights),
        slopes=np.array(list(vertices.values())),
        inputs=coordinates,
        outputs=outputs,
        learnable=np.array(learnable, bool),
        origins=origins,
    )


def _slopes(node: Node, values: Mapping[str, Array]) -> list[float]:
    if node.op != "activation":
        return [1.0] * node.size
    if not np.isnan(node.slope):
        return [float(node.slope)] * node.size
    learned = values[node.weight].reshape(-1)
    return np.repeat(learned, node.size // len(learned)).tolist()
