"""A layer graph at the granularity of neurons: every entry of every value a vertex."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.graph.neurons import NeuronGraph, Origin
from bnrank.networks.graph.nodes import Graph, Node

__all__ = ["EDGE_LIMIT", "neurons"]

EDGE_LIMIT = 20_000
CONSTANT = -1

Ints = NDArray[np.int64]


def neurons(graph: Graph, parameters: Mapping[str, Tensor], limit: int = EDGE_LIMIT) -> NeuronGraph:
    """Return a layer graph as a weighted DAG of neurons.

    The vertices are entries of values, named (node, flat index), and "constant", from which the biases come. Entries of
    parameters are edges, learnable where the graph trains them, with their origin; sums, averages and reorderings are
    fixed edges. A vertex that only passes on a value is merged with its neighbor: a layer and the activation after
    it are one vertex, named after the layer. Entries that are 0 whatever the input, and those that reach no output, are
    left out. Two edges between the same vertices are kept apart by a vertex (node, flat index, k) of slope 1.

    Slopes that are learned (PReLU) become fixed numbers.

    Parameters
    ----------
    graph : LayerGraph
        All of its nodes inside the theory, no max pooling.
    parameters : mapping
        From names to tensors, as ``dict(module.named_parameters())``.
    limit : int
        Most edges, counted before vertices are merged.

    Raises
    ------
    ValueError
        If a node is outside the theory or takes maxima (named), a parameter is missing or not finite, or there are more
        edges than ``limit`` (says how many).

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
    validation.integer(limit, "limit")
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
    total = sum(part.count for node in graph for part in _parts(graph, node, values))
    if total > limit:
        raise ValueError(f"limit: the graph has {total} edges, counted before merging, more than {limit}")
    return _Draft(graph, values).finished()


@dataclass(frozen=True)
class _Part:
    """Edges into the entries of one value, counted before they are made.

    ``make`` gives, per edge: the entry of the value ``source``, the entry of the node's, the entry of the parameter,
    and the fixed weight where there is no parameter.
    """

    source: str
    count: int
    make: Callable[[], tuple[Any, ...]]
    parameter: str = ""


def _parts(graph: Graph, node: Node, values: Mapping[str, NDArray[np.float64]]) -> Iterator[_Part]:
    """Yield the edges into a node's entries."""
    size, entries = node.size, np.arange(node.size)
    before = graph[node.inputs[0]] if node.inputs else None
    if node.op == "linear":
        yield _linear(node, values[node.weight])
    elif node.op == "conv":
        assert before is not None
        yield _convolution(node, before, values[node.weight])
    elif node.op == "diagonal":
        spread = _spread(node, values[node.weight])
        yield _Part(node.inputs[0], size, lambda: (entries, entries, spread, entries), node.weight)
    elif node.op == "activation":
        yield _Part(node.inputs[0], size, lambda: (entries, entries, entries, np.ones(size)))
    elif node.op == "add":
        for name, factor in zip(node.inputs, node.factors or (1.0,) * len(node.inputs), strict=True):
            yield _Part(name, size, _fixed(entries, entries, np.full(size, float(factor))))
    elif node.op == "average":
        assert before is not None
        yield _average(node, before)
    elif node.op == "index":
        yield from _reordered(graph, node)
    elif node.op != "input":
        raise ValueError(f"graph: {node.name} has the operation {node.op!r}, which cannot be drawn out into neurons")
    if node.bias:
        held = _spread_bias(node, values[node.bias])
        yield _Part("", size, lambda: (entries, entries, held, entries), node.bias)


def _fixed(source: Ints, target: Ints, weights: NDArray[np.float64]) -> Callable[[], tuple[Any, ...]]:
    return lambda: (source, target, source, weights)


def _linear(node: Node, weight: NDArray[np.float64]) -> _Part:
    n_out, n_in = weight.T.shape if node.transposed else weight.shape
    rows = node.size // n_out

    def make() -> tuple[Any, ...]:
        row, out, into = (a.ravel() for a in np.indices((rows, n_out, n_in)))
        return row * n_in + into, row * n_out + out, into * n_out + out if node.transposed else out * n_in + into, row

    return _Part(node.inputs[0], rows * weight.size, make, node.weight)


def _convolution(node: Node, before: Node, weight: NDArray[np.float64]) -> _Part:
    n_out, n_in, *kernel = weight.shape
    sizes, outs = before.shape[1:], node.shape[1:]
    taps, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)  # (positions out, positions in the kernel)
    for d, (size, out, k) in enumerate(zip(sizes, outs, kernel, strict=True)):
        at = np.arange(out)[:, None] * node.stride[d] + np.arange(k) * node.dilation[d] - node.padding[d]
        within = np.ones_like(at, bool) if node.padding_mode == "circular" else (at >= 0) & (at < size)
        at = at % size
        taps = (taps[:, None, :, None] * size + at[None, :, None, :]).reshape(len(taps) * out, -1)
        inside = (inside[:, None, :, None] & within[None, :, None, :]).reshape(len(taps), -1)

    def make() -> tuple[Any, ...]:
        position, tap = np.nonzero(inside)
        out, into, hit = (a.ravel() for a in np.indices((n_out, n_in, len(position))))
        channel = out // (n_out // node.groups) * n_in + into
        source = channel * int(np.prod(sizes)) + taps[position, tap][hit]
        target = out * len(taps) + position[hit]
        return source, target, (out * n_in + into) * inside.shape[1] + tap[hit], hit

    return _Part(node.inputs[0], n_out * n_in * int(inside.sum()), make, node.weight)


def _average(node: Node, before: Node) -> _Part:
    if node.windows is None:
        raise ValueError(
            f"graph: {node.name} ({node.text}) averages over too many entries to be drawn out into neurons"
        )
    dims = [d % len(before.shape) for d in node.dims]
    others = [d for d in range(len(before.shape)) if d not in dims]
    inside = np.arange(before.size).reshape(before.shape).transpose(*others, *dims).reshape(-1, node.windows.shape[1])
    at, position = np.nonzero(node.windows)
    kept = len(inside)
    places = np.arange(node.size).reshape(kept, node.windows.shape[0])

    def make() -> tuple[Any, ...]:
        source, target = inside[:, position].ravel(), places[:, at].ravel()
        assert node.windows is not None
        return source, target, source, np.tile(node.windows[at, position], kept)

    return _Part(node.inputs[0], kept * len(at), make)


def _reordered(graph: Graph, node: Node) -> Iterator[_Part]:
    assert node.index is not None
    index, start = np.asarray(node.index).reshape(-1), 0
    for name in node.inputs:
        size = graph[name].size
        target = np.flatnonzero((index >= start) & (index < start + size))
        yield _Part(name, len(target), _fixed(index[target] - start, target, np.ones(len(target))))
        start += size


def _spread(node: Node, weight: NDArray[np.float64]) -> Ints:
    """Return the entry of a diagonal's parameter that each entry of the value is multiplied by."""
    shape = node.weight_shape or weight.shape
    return np.broadcast_to(np.arange(weight.size).reshape(shape), (1, *node.shape)).reshape(-1)


def _spread_bias(node: Node, bias: NDArray[np.float64]) -> Ints:
    entries = np.arange(bias.size)
    if node.op == "conv":
        return np.repeat(entries, node.size // bias.size)
    if node.op == "linear":
        return np.tile(entries, node.size // bias.size)
    return _spread(node, bias)


class _Draft:
    """Vertices and edges by number, until what only passes on a value is merged."""

    def __init__(self, graph: Graph, values: Mapping[str, NDArray[np.float64]]) -> None:
        self.names: list[Hashable] = []
        self.slopes: list[float] = []
        self.edges: list[tuple[int, int, float, bool, Origin | None]] = []
        starts = {}
        for node in graph:
            starts[node.name] = len(self.names)
            self.names += [(node.name, i) for i in range(node.size)]
            self.slopes += _slopes(node, values)
            for part in _parts(graph, node, values):
                self._add(part, starts, node, values, part.parameter in graph.trained)
        self.n_inputs = graph.nodes[0].size
        self.outputs = [starts[graph.output] + i for i in range(graph[graph.output].size)]
        self.constant = len(self.names)
        self.names.append("constant")
        self.slopes.append(1.0)
        self.into: list[list[int]] = [[] for _ in self.names]
        self.out_of: list[list[int]] = [[] for _ in self.names]

    def _add(
        self, part: _Part, starts: Mapping[str, int], node: Node, values: Mapping[str, Any], trained: bool
    ) -> None:
        source, target, entry, weights = part.make()
        first = starts[part.source] if part.source else None
        sources = [CONSTANT] * len(target) if first is None else (first + source).tolist()
        if part.parameter:
            weights = values[part.parameter].reshape(-1)[entry]
            origins: list[Origin | None] = [(part.parameter, e) for e in entry.tolist()]
        else:
            origins = [None] * len(target)
        targets = (starts[node.name] + target).tolist()
        for u, v, weight, origin in zip(sources, targets, weights.tolist(), origins, strict=True):
            self.edges.append((u, v, weight, trained, origin))

    def finished(self) -> NeuronGraph:
        """Return the graph with pass-through vertices merged."""
        self.edges = [(self.constant if edge[0] == CONSTANT else edge[0], *edge[1:]) for edge in self.edges]
        self._leave_out()
        self._merge()
        return self._assembled()

    def _leave_out(self) -> None:
        """Leave out what is 0 whatever the input, and what reaches no output."""
        carries = np.zeros(len(self.names), bool)
        carries[: self.n_inputs] = carries[self.constant] = True
        for u, v, *_ in self.edges:  # sources come before targets
            carries[v] |= carries[u]
        needed = np.zeros(len(self.names), bool)
        needed[self.outputs] = True
        for u, v, *_ in reversed(self.edges):
            needed[u] |= needed[v]
        self.edges = [edge for edge in self.edges if carries[edge[0]] and needed[edge[1]]]
        for v in self.outputs:
            if not carries[v]:
                self.edges.append((self.constant, v, 0.0, False, None))
        for e, (u, v, *_) in enumerate(self.edges):
            self.out_of[u].append(e)
            self.into[v].append(e)

    def _merge(self) -> None:
        """Merge vertices that a fixed edge of weight 1 joins where one of them only passes on a value."""
        place = {v: i for i, v in enumerate(self.outputs)}
        self.gone: set[int] = set()
        for v in range(self.n_inputs, self.constant):
            if len(self.into[v]) != 1:
                continue
            e = self.into[v][0]
            u, _, weight, learnable, origin = self.edges[e]
            if weight != 1 or learnable or origin is not None:
                continue
            is_source = u < self.n_inputs or u == self.constant
            only = len(self.out_of[u]) == 1 and not is_source and u not in place
            if not ((self.slopes[u] == 1 and only) or (self.slopes[v] == 1 and (only or v not in place))):
                continue
            self.slopes[u] = self.slopes[v] if self.slopes[u] == 1 and only else self.slopes[u]
            self.gone.add(e)
            self.out_of[u].remove(e)
            for f in self.out_of[v]:
                self.edges[f] = (u, *self.edges[f][1:])
            self.out_of[u] += self.out_of[v]
            self.out_of[v], self.into[v] = [], []
            if v in place:
                place[u] = place.pop(v)
        self.outputs = sorted(place, key=lambda v: place[v])

    def _assembled(self) -> NeuronGraph:
        edges: dict[tuple[Hashable, Hashable], tuple[float, bool, Origin | None]] = {}
        vertices: dict[Hashable, float] = {self.names[v]: 1.0 for v in range(self.n_inputs)}
        if self.out_of[self.constant]:
            vertices["constant"] = 1.0
        inputs: dict[Hashable, int | str] = {v: "constant" if v == "constant" else i for i, v in enumerate(vertices)}
        for v in range(self.n_inputs, self.constant):
            if not self.into[v]:
                continue
            name, apart = self.names[v], itertools.count()
            for e in self.into[v]:
                u, _, *own = self.edges[e]
                source = self.names[u]
                if (source, name) in edges:
                    between = (*name, next(apart))  # type: ignore[misc]
                    vertices[between] = 1.0
                    edges[source, between] = tuple(own)  # type: ignore[assignment]
                    edges[between, name] = (1.0, False, None)
                else:
                    edges[source, name] = tuple(own)  # type: ignore[assignment]
            vertices[name] = self.slopes[v]
        weights, learnable, origins = zip(*edges.values(), strict=True) if edges else ((), (), ())
        return NeuronGraph(
            vertices=tuple(vertices),
            edges=tuple(edges),
            weights=np.array(weights),
            slopes=np.array(list(vertices.values())),
            inputs=inputs,
            outputs=tuple(self.names[v] for v in self.outputs),
            learnable=np.array(learnable, bool),
            origins=origins,
        )


def _slopes(node: Node, values: Mapping[str, NDArray[np.float64]]) -> list[float]:
    if node.op != "activation":
        return [1.0] * node.size
    if not np.isnan(node.slope):
        return [float(node.slope)] * node.size
    learned = values[node.weight].reshape(-1)
    return np.repeat(learned, node.size // len(learned)).tolist()
