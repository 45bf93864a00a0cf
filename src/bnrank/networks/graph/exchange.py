"""Weighted DAGs as networkx graphs: the attributes that are read, their defaults, and what is refused."""

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
    """Sort names so that x2 comes before x10; in the given order where they cannot be compared."""
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
    """Return the arguments of `NeuronGraph` that a networkx graph describes; see `NeuronGraph.from_networkx`."""
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph: got {validation.describe(graph)}, expected a networkx.DiGraph")
    validation.expect(graph.is_directed(), "graph", "an undirected graph", "a networkx.DiGraph")
    if graph.is_multigraph():
        raise ValueError(
            "graph: got a multigraph, expected a networkx.DiGraph; keep parallel edges apart by a vertex of slope 1 "
            "in between"
        )
    for vertex, attributes in graph.nodes(data=True):
        _check_known(attributes, f"vertex {vertex!r}", NODE_ATTRIBUTES)
    for source, target, attributes in graph.edges(data=True):
        _check_known(attributes, f"edge {(source, target)!r}", EDGE_ATTRIBUTES)

    inputs = {v: i for v, i in graph.nodes(data="input") if i is not None}
    if not inputs:
        inputs = {v: i for i, v in enumerate(natural_order(v for v, degree in graph.in_degree() if degree == 0))}
    outputs = _outputs(graph)
    linear = set(inputs) | set(outputs)
    edges = list(graph.edges(data=True))
    return dict(
        vertices=tuple(graph.nodes),
        edges=tuple((source, target) for source, target, _ in edges),
        weights=[_number(a.get("weight", 1.0), f"weight of edge {(u, v)!r}") for u, v, a in edges],
        slopes=[
            _number(a.get("slope", 1.0 if v in linear else 0.0), f"slope of vertex {v!r}")
            for v, a in graph.nodes(data=True)
        ],
        inputs=inputs,
        outputs=outputs,
        learnable=[_truth(a.get("learnable", True), f"learnable of edge {(u, v)!r}") for u, v, a in edges],
        origins=tuple(a.get("origin") for _, _, a in edges),
    )


def _outputs(graph: nx.DiGraph) -> tuple[Hashable, ...]:
    given = {v: i for v, i in graph.nodes(data="output") if i is not None}
    if not given:
        return tuple(natural_order(v for v, degree in graph.out_degree() if degree == 0))
    for vertex, place in given.items():
        validation.integer(place, f"output of vertex {vertex!r}", 0)
    if sorted(given.values()) != list(range(len(given))):
        raise ValueError(f"output: got the places {sorted(given.values())}, expected 0 to {len(given) - 1}, each once")
    return tuple(sorted(given, key=lambda vertex: given[vertex]))


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
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: got {validation.describe(value)}, expected True or False")
    return bool(value)
