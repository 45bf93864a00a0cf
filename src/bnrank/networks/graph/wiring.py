"""The part of a weighted DAG that its weights have no part in: order, levels, numbers of paths."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.graph.unrolling import Ints, Unrolled, unroll

__all__ = ["Edge", "Vertex", "Wiring", "few"]

Vertex = Hashable
Edge = tuple[Vertex, Vertex]


class Wiring:
    """Vertices, edges, inputs and outputs, checked and numbered.

    Attributes
    ----------
    position : dict
        The number of every vertex.
    numbers : dict
        The number of every edge.
    sources, targets : ndarray
        Numbers of the vertices that edges leave and enter, (edges,).
    coordinates : ndarray
        The coordinate of x of every input, -1 for the constant, -2 for other vertices, (vertices,).
    outputs : ndarray
        Numbers of the outputs.
    levels : ndarray
        Length of the longest path from a vertex without in-edges, (vertices,).
    incoming : tuple of ndarray
        Numbers of the edges by target, and where those of each vertex begin, (edges,) and (vertices + 1,).
    """

    def __init__(
        self,
        vertices: tuple[Vertex, ...],
        edges: tuple[Edge, ...],
        inputs: Mapping[Vertex, int | str],
        outputs: tuple[Vertex, ...],
    ) -> None:
        self.vertices, self.edges = vertices, edges
        self.position = {vertex: i for i, vertex in enumerate(vertices)}
        self.numbers = {edge: e for e, edge in enumerate(edges)}
        if len(self.position) < len(vertices):
            raise ValueError(f"vertices: {_twice(vertices)!r} comes twice, expected each once")
        if len(self.numbers) < len(edges):
            raise ValueError(
                f"edges: {_twice(edges)!r} comes twice, expected each once; keep parallel edges apart by a vertex of "
                "slope 1 in between"
            )
        for name, known in (("edges", (v for e in edges for v in e)), ("inputs", inputs), ("outputs", outputs)):
            for vertex in known:
                if vertex not in self.position:
                    near = validation.suggest(vertex, map(str, vertices))
                    raise ValueError(f"{name}: got the unknown vertex {vertex!r}{near}")
        self.sources = np.array([self.position[u] for u, _ in edges], dtype=np.int64)
        self.targets = np.array([self.position[v] for _, v in edges], dtype=np.int64)
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(vertices)))
        graph.add_edges_from(zip(self.sources.tolist(), self.targets.tolist(), strict=True))
        self.levels = np.zeros(len(vertices), dtype=np.int64)
        try:
            for level, numbers in enumerate(nx.topological_generations(graph)):
                self.levels[numbers] = level
        except nx.NetworkXUnfeasible:
            cycle = [vertices[u] for u, _ in nx.find_cycle(graph)]
            raise ValueError(
                f"edges: got the cycle {' -> '.join(map(repr, [*cycle, cycle[0]]))}, expected a directed acyclic graph"
            ) from None
        self._check_inputs(inputs)
        if not outputs or len(set(outputs)) < len(outputs):
            raise ValueError(f"outputs: got {few(outputs) or 'none'}, expected at least one vertex, each once")
        self.outputs = np.array([self.position[v] for v in outputs], dtype=np.int64)
        by_target = np.argsort(self.targets, kind="stable")
        first = np.searchsorted(self.targets[by_target], np.arange(len(vertices) + 1))
        self.incoming = (by_target, first)

    def _check_inputs(self, inputs: Mapping[Vertex, int | str]) -> None:
        self.coordinates = np.full(len(self.vertices), -2, dtype=np.int64)
        for vertex, coordinate in inputs.items():
            if isinstance(coordinate, str):
                validation.choice(coordinate, f"input of vertex {vertex!r}", ("constant",))
            number = (
                -1 if isinstance(coordinate, str) else validation.integer(coordinate, f"input of vertex {vertex!r}", 0)
            )
            self.coordinates[self.position[vertex]] = number
        entered = np.zeros(len(self.vertices), bool)
        entered[self.targets] = True
        wrong = np.flatnonzero((self.coordinates >= -1) & entered)
        if len(wrong):
            raise ValueError(f"inputs: {self.vertices[wrong[0]]!r} has in-edges, expected a vertex without")
        wrong = np.flatnonzero((self.coordinates < -1) & ~entered)
        if len(wrong):
            raise ValueError(
                f"inputs: {self.vertices[wrong[0]]!r} has no in-edges and is no input; give it a coordinate or "
                "'constant'"
            )
        if self.coordinates.max(initial=-2) < 0:
            raise ValueError("inputs: got no coordinate of x, expected at least one")

    @property
    def features(self) -> int:
        """Number of coordinates of x, one more than the largest that is used."""
        return int(self.coordinates.max()) + 1

    @cached_property
    def ending(self) -> list[int]:
        """Number of paths from inputs to every vertex."""
        counts = [int(c >= -1) for c in self.coordinates.tolist()]
        for u, v in self._forward:
            counts[v] += counts[u]
        return counts

    @cached_property
    def reaching(self) -> list[int]:
        """Number of paths from every vertex to outputs."""
        counts = [0] * len(self.vertices)
        for v in self.outputs.tolist():
            counts[v] = 1
        for u, v in reversed(self._forward):
            counts[u] += counts[v]
        return counts

    @cached_property
    def _forward(self) -> list[tuple[int, int]]:
        """Edges such that all that enter a vertex come before those that leave it."""
        order = np.argsort(self.levels[self.targets], kind="stable")
        return list(zip(self.sources[order].tolist(), self.targets[order].tolist(), strict=True))

    def crossings(self, chosen: set[int]) -> tuple[list[int], list[int]]:
        """Return the least and greatest number of chosen edges on paths from inputs to each vertex."""
        crossed = np.zeros(len(self.edges), np.int64)
        crossed[list(chosen)] = 1
        order = np.argsort(self.levels[self.targets], kind="stable")
        never = len(self.edges) + 1
        least = np.where(self.coordinates >= -1, 0, never).tolist()
        most = np.where(self.coordinates >= -1, 0, -never).tolist()
        for (u, v), own in zip(self._forward, crossed[order].tolist(), strict=True):
            least[v] = min(least[v], least[u] + own)
            most[v] = max(most[v], most[u] + own)
        return least, most

    def walk(self) -> Iterator[tuple[Vertex, ...]]:
        """Yield the paths as tuples of vertices, in the order of their last edge, then the last but one, ..."""
        order, first = self.incoming
        for output in self.outputs.tolist():
            stack: list[tuple[int, tuple[Vertex, ...]]] = [(output, (self.vertices[output],))]
            while stack:
                vertex, path = stack.pop()
                if self.coordinates[vertex] >= -1:
                    yield path
                for e in order[first[vertex] : first[vertex + 1]][::-1].tolist():
                    source = int(self.sources[e])
                    stack.append((source, (self.vertices[source], *path)))

    @cached_property
    def unrolled(self) -> Unrolled:
        """The tree of path ends; as large as there are many paths."""
        return unroll(self)

    @cached_property
    def plan(self) -> list[tuple[Ints, list[tuple[int, Ints, Ints, Ints]]]]:
        """What evaluation does level by level.

        The vertices of the level; and per level that it reads from: that level, the edges, the places of their sources
        in it, the places of their targets in this one.
        """
        place = np.empty(len(self.vertices), dtype=np.int64)
        depths = np.arange(int(self.levels.max()) + 2)
        order = np.argsort(self.levels, kind="stable")
        ends = np.searchsorted(self.levels[order], depths)
        entering, leaving = self.levels[self.targets], self.levels[self.sources]
        edges = np.lexsort((leaving, entering))
        edge_ends = np.searchsorted(entering[edges], depths)
        plan = []
        for level in range(len(depths) - 1):
            members = order[ends[level] : ends[level + 1]]
            place[members] = np.arange(len(members))
            here = edges[edge_ends[level] : edge_ends[level + 1]]
            cuts = np.flatnonzero(np.diff(leaving[here])) + 1
            reads = [
                (int(leaving[part[0]]), part, place[self.sources[part]], place[self.targets[part]])
                for part in np.split(here, cuts)
                if len(part)
            ]
            plan.append((members, reads))
        return plan

    def evaluate(self, x: Tensor, weights: Tensor, slopes: Tensor) -> Tensor:
        """Return the outputs, (N, outputs), for x (N, features); gradients flow to x, weights and slopes."""
        held = torch.cat([x, x.new_ones(len(x), 1)], 1).T
        values: list[Tensor] = []
        for members, reads in self.plan:
            coordinates = self.coordinates[members]
            own = np.flatnonzero(coordinates >= -1)
            value = x.new_zeros(len(members), len(x))
            if len(own):
                value = value.index_copy(0, torch.from_numpy(own), held[torch.from_numpy(coordinates[own])])
            for below, edges, source, target in reads:
                sent = values[below][torch.from_numpy(source)] * weights[torch.from_numpy(edges)][:, None]
                value = value.index_add(0, torch.from_numpy(target), sent)
            values.append(torch.where(value > 0, value, slopes[torch.from_numpy(members)][:, None] * value))
        place = {v: (level, i) for level, (members, _) in enumerate(self.plan) for i, v in enumerate(members.tolist())}
        picked = [place[v] for v in self.outputs.tolist()]
        return torch.stack([values[level][i] for level, i in picked], 1)


def few(names: tuple[Vertex, ...]) -> str:
    """Write a few names."""
    text = ", ".join(map(repr, names[:8]))
    return text + (f", ... ({len(names)})" if len(names) > 8 else "")


def _twice(items: tuple[Hashable, ...]) -> Hashable:
    seen: set[Hashable] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None
