"""Structure of a weighted DAG without its weights: order, levels, path counts, cuts and the tree of paths."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation

Vertex = Hashable
Vertices = tuple[Vertex, ...]
Inputs = Mapping[Vertex, int | str]
Edge = tuple[Vertex, Vertex]
Origin = tuple[str, int]
Ints = NDArray[np.int64]


class Wiring:
    """Validated and numbered vertices, edges, inputs and outputs.

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
    """

    def __init__(self, vertices: Vertices, edges: tuple[Edge, ...], inputs: Inputs, outputs: Vertices) -> None:
        self.vertices, self.edges = vertices, edges
        self.position = {vertex: i for i, vertex in enumerate(vertices)}
        self.numbers = {edge: e for e, edge in enumerate(edges)}
        for name, items in (("vertices", vertices), ("edges", edges), ("outputs", outputs)):
            twice = [item for item, count in Counter(items).items() if count > 1]
            validation.expect(not twice, name, f"{', '.join(map(repr, twice[:1]))} twice", "each once")
        for name, known in (("edges", (v for e in edges for v in e)), ("inputs", inputs), ("outputs", outputs)):
            unknown = [repr(vertex) for vertex in known if vertex not in self.position]
            validation.expect(not unknown, name, f"the unknown vertex {''.join(unknown[:1])}", "one of the vertices")
        ends = np.array([[self.position[u], self.position[v]] for u, v in edges], dtype=np.int64).reshape(-1, 2)
        self.sources, self.targets = ends.T
        self.outputs = np.array([self.position[v] for v in outputs], dtype=np.int64)
        self.levels = self._find_levels()
        order = np.argsort(self.levels[self.targets], kind="stable")
        self._forward = np.stack([order, self.sources[order], self.targets[order]], 1).tolist()
        self._read_inputs(inputs)
        validation.expect(outputs, "outputs", "none", "at least one vertex")

    def _find_levels(self) -> Ints:
        """Return the levels of the vertices, each above those that it has edges from."""
        levels = np.zeros(len(self.vertices), dtype=np.int64)
        for _ in range(len(levels) + 1):
            higher = levels.copy()
            np.maximum.at(higher, self.targets, levels[self.sources] + 1)
            if np.array_equal(higher, levels):
                return levels
            levels = higher
        import networkx as nx

        cycle = [repr(u) for u, _ in nx.find_cycle(nx.DiGraph(self.edges))]
        names = " -> ".join([*cycle, cycle[0]])
        raise ValueError(f"edges: got the cycle {names}, expected a directed acyclic graph")

    def _read_inputs(self, inputs: Inputs) -> None:
        self.coordinates = np.full(len(self.vertices), -2, dtype=np.int64)
        for vertex, coordinate in inputs.items():
            name = f"input of vertex {vertex!r}"
            constant = isinstance(coordinate, str) and validation.choice(coordinate, name, ("constant",))
            self.coordinates[self.position[vertex]] = -1 if constant else validation.integer(coordinate, name, 0)
        entered = np.isin(np.arange(len(self.vertices)), self.targets)
        given = self.coordinates >= -1
        wrong = [*np.flatnonzero(given & entered), *np.flatnonzero(~(given | entered))]
        if wrong:
            alone = "has no in-edges and is no input; give it a coordinate or 'constant'"
            text = "has in-edges, expected a vertex without" if entered[wrong[0]] else alone
            raise ValueError(f"inputs: {self.vertices[wrong[0]]!r} {text}")
        validation.expect(self.coordinates.max(initial=-2) >= 0, "inputs", "no coordinate of x", "at least one")

    @property
    def features(self) -> int:
        """Number of coordinates of x, one more than the largest that is used."""
        return int(self.coordinates.max()) + 1

    @cached_property
    def ending(self) -> list[int]:
        """Number of paths from inputs to every vertex."""
        return self._count(np.flatnonzero(self.coordinates >= -1), [(u, v) for _, u, v in self._forward])

    @cached_property
    def reaching(self) -> list[int]:
        """Number of paths from every vertex to outputs."""
        return self._count(self.outputs, [(v, u) for _, u, v in reversed(self._forward)])

    def _count(self, starts: Ints, edges: Iterable[tuple[int, int]]) -> list[int]:
        counts: list[int] = np.isin(np.arange(len(self.vertices)), starts).astype(int).tolist()
        for u, v in edges:
            counts[v] += counts[u]
        return counts

    def is_cut(self, chosen: set[int]) -> bool:
        """Return whether every path contains exactly one of the edges, given by their numbers; linear in the edges."""
        never = len(self.edges) + 1
        fewest = np.where(self.coordinates >= -1, 0, never).tolist()
        most = np.where(self.coordinates >= -1, 0, -never).tolist()
        for e, u, v in self._forward:
            fewest[v] = min(fewest[v], fewest[u] + (e in chosen))
            most[v] = max(most[v], most[u] + (e in chosen))
        return all(fewest[v] == most[v] == 1 for v in self.outputs.tolist())

    def level_cuts(self, learnable: NDArray[np.bool_]) -> tuple[frozenset[Edge], ...]:
        """Return the cuts of learnable edges between consecutive levels.

        Every path contains exactly one edge of a set if and only if the set consists of the edges along which a
        potential phi increases from 0 to 1. Here phi(v) is the number of edges of the set on any path to v, which is
        independent of the path, 0 at inputs and 1 at outputs. Since phi is constant along fixed edges, vertices joined
        by fixed edges are merged, as are all inputs and all outputs. Since phi never decreases, every cycle that this
        creates is merged too. The result is a DAG from the inputs to the outputs, with phi_k = 1 at levels >= k.
        """
        import networkx as nx

        live = [ends > 0 and reaches > 0 for ends, reaches in zip(self.ending, self.reaching, strict=True)]
        edges = [(e, u, v) for e, u, v in sorted(self._forward) if live[u] and live[v]]
        joined = nx.DiGraph([(u, v) for _, u, v in edges])
        joined.add_edges_from((v, u) for e, u, v in edges if not learnable[e])
        start, end = len(self.vertices), len(self.vertices) + 1
        inputs = [v for v in np.flatnonzero(self.coordinates >= -1).tolist() if live[v]]
        for hub, members in ((start, inputs), (end, self.outputs.tolist())):
            joined.add_edges_from(edge for v in members for edge in ((hub, v), (v, hub)))
        merged = nx.condensation(joined)
        component = merged.graph["mapping"]
        if component[start] == component[end]:
            return ()
        level = {c: k for k, generation in enumerate(nx.topological_generations(merged)) for c in generation}
        cuts: list[list[Edge]] = [[] for _ in range(level[component[end]])]
        for e, u, v in edges:
            for k in range(level[component[u]], level[component[v]]):
                cuts[k].append(self.edges[e])
        return tuple(map(frozenset, cuts))

    @cached_property
    def unrolled(self) -> Unrolled:
        """The tree of path suffixes; every path adds at most one node per vertex on it, and a leaf."""
        into: list[list[tuple[int, int]]] = [[] for _ in self.vertices]
        for edge, (source, target) in enumerate(zip(self.sources.tolist(), self.targets.tolist(), strict=True)):
            into[target].append((source, edge))
        ends = self.outputs.tolist()
        firsts = itertools.accumulate((self.ending[v] for v in ends), initial=0)
        nodes = [(v, -1, -1, 0, first) for v, first in zip(ends, firsts, strict=False)]
        for number, (vertex, _, _, depth, first) in enumerate(nodes):  # appends the nodes of the next depth
            for source, edge in into[vertex] or [(-1, -1)] if vertex >= 0 else ():
                nodes.append((source, number, edge, depth + 1, first))
                first += self.ending[source] if source >= 0 else 1
        vertices, parents, edges, depths, paths = np.array(nodes, dtype=np.int64).T
        leaves = np.flatnonzero(vertices < 0)
        return Unrolled(vertices, parents, edges, depths, leaves[np.argsort(paths[leaves])])

    def evaluate(self, x: Tensor, weights: Tensor, slopes: Tensor) -> Tensor:
        """Return the outputs, (N, outputs), for x (N, features); gradients flow to x, weights and slopes."""
        held = torch.cat([x, x.new_zeros(len(x), 1), x.new_ones(len(x), 1)], 1).T
        start = held[torch.from_numpy(self.coordinates)]  # the last is the constant, the last but one elsewhere
        return propagate(start, self.sources, self.targets, weights, slopes, self.levels)[self.outputs].T


def propagate(start: Tensor, sources: Ints, targets: Ints, weights: Tensor, slopes: Tensor, levels: Ints) -> Tensor:
    """Return the values of a weighted DAG, (vertices, N): sigma_s(start + weighted sum over the in-edges).

    Parameters
    ----------
    start : Tensor
        (vertices, N).
    sources, targets : ndarray
        Numbers of the vertices, (edges,).
    weights, slopes : Tensor
        (edges,) and (vertices,).
    levels : ndarray
        (vertices,), larger at the target of every edge than at its source.
    """
    values, entered = start.clone(), levels[targets]
    for level in range(levels.max(initial=-1) + 1):
        members, coming = np.flatnonzero(levels == level), np.flatnonzero(entered == level)
        here, into = torch.from_numpy(members), torch.from_numpy(np.searchsorted(members, targets[coming]))
        sent = values[torch.from_numpy(sources[coming])] * weights[torch.from_numpy(coming)][:, None]
        value = values[here].index_add(0, into, sent)
        values.index_copy_(0, here, torch.where(value > 0, value, slopes[here][:, None] * value))
    return values


@dataclass(frozen=True, eq=False)
class Unrolled:
    """The tree of all path ends: a node is a path from some vertex to an output.

    A node whose vertex is an input is a whole path; it has one child, the entry of h that belongs to the path. Nodes
    are in order of their depth, roots (the outputs) first.

    Attributes
    ----------
    vertices : ndarray
        The vertex that each node's path starts at, -1 for entries of h, (nodes,).
    parents : ndarray
        -1 for the roots, (nodes,).
    edges : ndarray
        The edge from each node's vertex to its parent's, -1 for roots and entries of h, (nodes,).
    depths : ndarray
        Number of edges to the root, (nodes,).
    leaves : ndarray
        The node that holds the entry of h of each path, (paths,). Paths are sorted by output, then by their last edge,
        then the second to last, and so on.
    """

    vertices: Ints
    parents: Ints
    edges: Ints
    depths: Ints
    leaves: Ints

    def products(self, factors: Tensor) -> Tensor:
        """Return the product of factors (edges,) along the path of each entry of h, (paths,); gradients flow."""
        start = (torch.from_numpy(self.depths) == 0).to(factors)[:, None]
        inner = np.flatnonzero(self.depths)
        passed = torch.cat([factors, factors.new_ones(1)])[torch.from_numpy(self.edges[inner])]  # the last: no edge
        values = propagate(start, self.parents[inner], inner, passed, torch.ones(len(start)).to(factors), self.depths)
        return values[torch.from_numpy(self.leaves), 0]
