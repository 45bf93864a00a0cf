"""What gradient flow keeps of a weighted DAG: squares of weights at a vertex (T44) and over cuts (T46)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bnrank.networks.graph import cutting
from bnrank.networks.graph.wiring import Vertex

if TYPE_CHECKING:
    from bnrank.networks.graph.neurons import NeuronGraph

__all__ = ["squares", "vertices"]


def squares(graph: NeuronGraph, chosen: set[int], name: str) -> float:
    """Return the sum of squares of a cut's weights, given by the numbers of its edges; refuse what is none."""
    fixed = next((e for e in sorted(chosen) if not graph.learnable[e]), None)
    if fixed is not None:
        raise ValueError(f"{name}: the edge {graph.edges[fixed]!r} is not learnable")
    if not cutting.is_cut(graph.wiring, chosen):
        raise ValueError(f"{name}: got {len(chosen)} edges that not every path crosses exactly once")
    once = {graph.origins[e] or e: e for e in sorted(chosen)}
    for e, origin in enumerate(graph.origins):
        if origin in once and e not in chosen and graph.through(graph.edges[e]):
            shared = f"{origin} with {graph.edges[once[origin]]!r}"
            raise ValueError(f"{name}: the edge {graph.edges[e]!r} is not in it, but shares {shared}")
    return float(np.sum(graph.weights[list(once.values())] ** 2))


def vertices(graph: NeuronGraph) -> dict[Vertex, float]:
    """Return in-weights minus out-weights, squared, of the vertices that keep it; see `NeuronGraph`."""
    wiring, size = graph.wiring, graph.weights**2
    values = np.bincount(wiring.targets, size, len(graph)) - np.bincount(wiring.sources, size, len(graph))
    kept = wiring.coordinates < -1
    kept[wiring.outputs] = False
    held = ~graph.learnable | graph.shared
    kept[wiring.sources[held]] = kept[wiring.targets[held]] = False
    return {graph.vertices[v]: float(values[v]) for v in np.flatnonzero(kept)}
