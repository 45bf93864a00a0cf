"""From operations to neurons: the edges between the entries of a layer graph's values, and the DAG of those kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bnrank._core import validation
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node, apply
from bnrank.theory.neurons.wiring import Ints, Origin

CONSTANT = "constant"

Array = NDArray[Any]


def expand(graph: LayerGraph, max_edges: int) -> dict[str, Any]:
    """Return the fields of the weighted DAG of neurons; see `NeuronGraph.from_operations`."""
    values = {name: value.detach().cpu().double().numpy() for name, value in graph.parameters.items()}
    parts: list[tuple[Node, _Part]] = []
    total = 0
    for node in graph:
        reason = {"outside": f"is outside the theory: {node.reason}", "maximum": "takes maxima, which are no sums"}
        text = f"{node.name} ({node.text})" if node.text else node.name
        validation.expect(node.op not in reason, "graph", f"{text}, which {reason.get(node.op)}", "weighted sums")
        for name in filter(None, (node.weight, node.bias)):
            near = validation.suggest(name, values)
            validation.expect(name in values, "parameters", f"no {name!r}", f"that of {node.name}{near}")
        total += _most(node, values)
        limit = f"at most {max_edges}"
        validation.expect(total <= max_edges, "max_edges", f"a graph of up to {total} edges", limit)
        parts += [(node, part) for part in _parts(graph, node, values)]
    draft = _Draft(graph, parts)
    for node, part in parts:
        draft.add(node, part, values)
    return draft.finished()


def fixed_edges(node: Node, inputs: Sequence[Node]) -> Iterator[tuple[str, Ints, Ints, NDArray[np.float64]]]:
    """Yield the fixed weights with which the entries of a node add up entries of its inputs, per input.

    Of an "activation" these are the copies that it acts on, and of a "maximum" those that it compares.

    Parameters
    ----------
    node : Node
        An "activation", "add", "index", or an "average" or "maximum" whose ``windows`` are known.
    inputs : sequence of Node
        Its input nodes.

    Yields
    ------
    tuple
        The name of the input; then, with an entry per edge, the entry of the input, that of the node, and the weight.
    """
    if node.op in ("average", "maximum"):
        windows = np.asarray(node.windows, dtype=np.float64)
        given, taken = node.pooled(inputs[0])
        out, position = np.nonzero(windows)
        weights = np.tile(windows[out, position], len(taken))
        yield inputs[0].name, taken[:, position].ravel(), given[:, out].ravel(), weights
    elif node.op == "index":
        index, start = np.ravel(np.asarray(node.index)), 0
        for before in inputs:
            target = np.flatnonzero((index >= start) & (index < start + before.size))
            yield before.name, index[target] - start, target, np.ones(len(target))
            start += before.size
    else:
        for before, factor in zip(inputs, node.factors or (1.0,) * len(inputs), strict=True):
            yield before.name, np.arange(node.size), np.arange(node.size), np.full(node.size, float(factor))


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

    def finished(self) -> dict[str, Any]:
        """Return the fields of the graph of vertices that reach the output; vertices of slope 1 part parallel edges."""
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
        return {
            "vertices": tuple(vertices),
            "edges": tuple(edges),
            "weights": np.array(weights),
            "slopes": slopes,
            "inputs": coordinates,
            "outputs": tuple(outputs),
            "learnable": np.array(learnable, bool),
            "origins": origins,
        }
