"""Sets of edges that every path crosses once (T46)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

from bnrank.networks.graph.wiring import Edge, Wiring

if TYPE_CHECKING:
    from bnrank.networks.graph.neurons import NeuronGraph

__all__ = ["is_cut", "level_cuts"]


def is_cut(wiring: Wiring, chosen: set[int]) -> bool:
    """Say whether every path goes along exactly one of the edges, given by their numbers; linear in the edges."""
    least, most = wiring.crossings(chosen)
    return all(least[v] == most[v] == 1 for v in wiring.outputs.tolist())


def level_cuts(graph: NeuronGraph) -> tuple[frozenset[Edge], ...]:
    """Return the cuts between consecutive levels.

    A set is crossed once by every path exactly if it is where a potential goes from 0 to 1: phi of a vertex is the
    number of crossings on the way to it, the same on every way, 0 at inputs and 1 at outputs. It must not change along
    a fixed edge. So vertices joined by one are merged, all inputs are one vertex and all outputs are one, and so is
    every cycle that this makes, as phi never falls. What is left is a DAG from the inputs to the outputs, and phi_k = 1
    from level k on.
    """
    wiring = graph.wiring
    live = [wiring.ending[v] > 0 and wiring.reaching[v] > 0 for v in range(len(graph))]
    edges = [(u, v) for u, v in zip(wiring.sources.tolist(), wiring.targets.tolist(), strict=True)]
    numbers = [e for e, (u, v) in enumerate(edges) if live[u] and live[v]]
    joined = nx.DiGraph()
    for e in numbers:
        joined.add_edge(*edges[e])
        if not graph.learnable[e]:
            joined.add_edge(*reversed(edges[e]))
    start, end = len(graph), len(graph) + 1
    for v in range(len(graph)):
        if live[v] and wiring.coordinates[v] >= -1:
            joined.add_edges_from([(start, v), (v, start)])
    for v in wiring.outputs.tolist():
        joined.add_edges_from([(end, v), (v, end)])
    merged = nx.condensation(joined)
    component = merged.graph["mapping"]
    if component[start] == component[end]:
        return ()
    level = {c: k for k, generation in enumerate(nx.topological_generations(merged)) for c in generation}
    cuts: list[list[Edge]] = [[] for _ in range(level[component[end]])]
    for e in numbers:
        low, high = (level[component[v]] for v in edges[e])
        for k in range(low, high):
            cuts[k].append(graph.edges[e])
    return tuple(map(frozenset, cuts))
