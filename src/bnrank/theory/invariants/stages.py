"""The stages of a network: what can be cut off before and behind by cuts that every path crosses once (T46)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bnrank.theory.invariants.classes import Block
from bnrank.theory.invariants.entries import Entries

__all__ = ["Stage", "stages"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stage:
    """Blocks between two cuts.

    Attributes
    ----------
    blocks : tuple of int
        Their numbers.
    cuts : tuple of two tuples of str
        Parameters of the cut before and of the cut behind: weights from what is on the side of the input to the rest,
        and the biases in the rest. A weight whose entries are partly in a cut is named in it.
    """

    blocks: tuple[int, ...]
    cuts: tuple[tuple[str, ...], tuple[str, ...]]


def stages(entries: Entries, found: list[Block]) -> list[Stage]:
    """Return the stages without anything fixed in them, in the order of the network.

    Vertices are the blocks (those with the same parameters are one) and the fixed classes; edges are the trained
    weights, and what is outside the theory. A stage is a strongly connected component without a fixed class: two sets
    of edges, from the vertices that are not behind it, without and with the stage itself, to the rest, are crossed once
    by every path. Where an edge without a weight crosses, there is no such cut.
    """
    block = entries.block
    alike: dict[tuple[frozenset[str], ...], int] = {}
    merged = np.arange(len(found))
    for b, item in enumerate(found):
        sets = tuple(frozenset(s.parameter for s in item.slots if s.sign == sign) for sign in (1, -1))
        merged[b] = alike.setdefault(sets, b)
    vertex = (
        np.where(block >= 0, merged[block], len(found) + np.arange(len(block))) if len(found) else np.arange(len(block))
    )
    labels = entries.label
    edges: list[tuple[int, int, str]] = []
    biases: list[tuple[int, str]] = []
    reads = {s.parameter: s for s in entries.slots if s.sign == -1}
    for slot in entries.slots:
        given = np.unique(vertex[labels[slot.entries[:, 0]]])
        if slot.role == "bias":
            biases += [(int(v), slot.parameter) for v in given]
        elif slot.role == "scale out":
            pairs = np.unique(
                np.stack([vertex[labels[reads[slot.parameter].entries[:, 0]]], vertex[labels[slot.entries[:, 0]]]]),
                axis=1,
            )
            edges += [(int(a), int(b), slot.parameter) for a, b in pairs.T]
        elif slot.role == "write":
            taken = np.unique(vertex[labels[reads[slot.parameter].entries[:, 0]]])
            edges += [(int(a), int(b), slot.parameter) for a in taken for b in given]
    for node in entries.graph:
        if node.op == "outside":
            given = np.unique(vertex[labels[entries.of(node.name).ravel()]])
            taken = np.unique(vertex[labels[np.concatenate([entries.of(name).ravel() for name in node.inputs])]])
            edges += [(int(a), int(b), "") for a in taken for b in given]
    if not edges:
        return []

    size = len(found) + len(block)
    rows, columns = np.array([e[0] for e in edges]), np.array([e[1] for e in edges])
    matrix = coo_array((np.ones(len(edges)), (rows, columns)), shape=(size, size)).tocsr()
    component = connected_components(matrix, directed=True, connection="strong")[1]
    fixed = set(component[len(found) :][block < 0].tolist())
    result = []
    for c in dict.fromkeys(component[merged].tolist()):
        if c in fixed:
            continue
        behind = _reached(c, component[rows], component[columns])
        before = ~np.isin(component, [*behind, c])
        upto = before | (component == c)
        cuts = []
        for side in (before, upto):
            crossing = [name for a, b, name in edges if side[a] and not side[b]]
            if "" in crossing:
                break
            cuts.append(tuple(dict.fromkeys([*crossing, *(name for v, name in biases if not side[v])])))
        if len(cuts) == 2:
            members = tuple(int(b) for b in np.flatnonzero(component[merged] == c))
            result.append(Stage(members, (cuts[0], cuts[1])))
    return result


def _reached(start: int, rows: Array, columns: Array) -> set[int]:
    """Return what can be reached from a vertex along edges, without itself."""
    reached, front = {start}, {start}
    while front:
        front = set(columns[np.isin(rows, list(front))].tolist()) - reached
        reached |= front
    return reached - {start}
