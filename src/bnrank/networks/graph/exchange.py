"""Conversion of networkx graphs to weighted DAGs: attributes, defaults and validation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from bnrank._core import validation

if TYPE_CHECKING:
    import networkx as nx

NODE_ATTRIBUTES = ("slope", "input", "output")
EDGE_ATTRIBUTES = ("weight", "learnable", "origin")


def natural_order(names: Iterable[Hashable]) -> list[Hashable]:
    """Return names sorted so that x2 precedes x10, or in the given order if they cannot be compared."""
    listed = list(names)

    def key(name: Hashable) -> tuple[Any, ...]:
        if isinstance(name, str):
            parts = re.split(r"(\d+)", name)
            return (1, tuple((int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)))
        return (0, name)

    try:
        return sorted(listed, key=key)
    except TypeError:
        return listed


def read(graph: nx.DiGraph) -> dict[str, Any]:
    """Return the arguments of `NeuronGraph` for a networkx graph; see `NeuronGraph.from_networkx`."""
    import networkx as nx

    digraph = "a networkx.DiGraph"
    kept = "keep parallel edges apart by a vertex of slope 1 in between"
    validation.expect(isinstance(graph, nx.Graph), "graph", validation.describe(graph), digraph, TypeError)
    validation.expect(graph.is_directed(), "graph", "an undirected graph", digraph)
    validation.expect(not graph.is_multigraph(), "graph", "a multigraph", f"{digraph}; {kept}")
    for vertex, attributes in graph.nodes(data=True):
        _check_known(attributes, f"vertex {vertex!r}", NODE_ATTRIBUTES)
    for source, target, attributes in graph.edges(data=True):
        _check_known(attributes, f"edge {(source, target)!r}", EDGE_ATTRIBUTES)

    inputs = {v: i for v, i in graph.nodes(data="input") if i is not None}
    if not inputs:
        inputs = {v: i for i, v in enumerate(natural_order(v for v, degree in graph.in_degree() if degree == 0))}
    places = {v: i for v, i in graph.nodes(data="output") if i is not None}
    if not places:
        places = {v: i for i, v in enumerate(natural_order(v for v, degree in graph.out_degree() if degree == 0))}
    for vertex, place in places.items():
        validation.integer(place, f"output of vertex {vertex!r}", 0)
    order, count = sorted(places.values()), len(places)
    validation.expect(order == list(range(count)), "output", f"the places {order}", f"0 to {count - 1}, each once")
    slopes = {v: a.get("slope", float(v in inputs or v in places)) for v, a in graph.nodes(data=True)}
    edges = [((u, v), attributes) for u, v, attributes in graph.edges(data=True)]
    return dict(
        vertices=tuple(graph.nodes),
        edges=tuple(edge for edge, _ in edges),
        weights=[_number(a.get("weight", 1.0), f"weight of edge {edge!r}") for edge, a in edges],
        slopes=[_number(slope, f"slope of vertex {v!r}") for v, slope in slopes.items()],
        inputs=inputs,
        outputs=tuple(sorted(places, key=lambda vertex: places[vertex])),
        learnable=[_truth(a.get("learnable", True), f"learnable of edge {edge!r}") for edge, a in edges],
        origins=tuple(a.get("origin") for _, a in edges),
    )


def _check_known(attributes: dict[str, Any], where: str, known: tuple[str, ...]) -> None:
    for name in attributes:
        near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.75)
        if name not in known and near:
            raise ValueError(f"{where}: got the attribute {name!r}; did you mean {near[0]!r}?")


def _number(value: Any, name: str) -> float:
    if isinstance(value, np.ndarray | np.generic | Tensor) and value.ndim == 0:
        value = value.item()
    return validation.number(value, name)


def _truth(value: object, name: str) -> bool:
    validation.expect(isinstance(value, bool | np.bool_), name, validation.describe(value), "True or False", TypeError)
    return bool(value)
