"""Classes of entries of the hidden values that must be scaled together, and blocks of classes that may be mixed.

Every entry of every value (for one sample) gets a number. Two entries are tied if the function is preserved only when
both are scaled by the same factor: before and after an activation, along an identity skip, over the positions of a
convolution's channel. The connected components are the *classes*. A class without fixed entries (the input, the output,
anything outside the theory) is free: the function does not change if the class and the weights that write it are scaled
by a positive number, and the weights that read it by the inverse. Classes in equivalent positions of the network may
also be mixed with each other.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnrank.networks.graph.layers import LayerGraph
from bnrank.theory.invariants.conserved import Array, Piece, Term, layers_of
from bnrank.theory.invariants.entries import Entries, Slot, components, shared_factors

CONSTANT = -1  # the vertex that biases read


@dataclass(frozen=True)
class Block:
    """A set of n free classes in equivalent positions of the network.

    Attributes
    ----------
    classes : ndarray
        (n,), the classes, in the order of the network.
    terms : tuple of Term
        The channels of parameters that read or write the classes.
    slots : tuple of Slot
        The slots that these channels belong to, in the order of the network.
    parts : ndarray
        (n,), equal for classes that may be mixed: all of them, or those in the same group of a grouped convolution.
    activations : ndarray
        (n, a), the numbers of the entries of activation outputs, ordered so that equal positions correspond.
    nodes : tuple of str
        The nodes with an entry in the classes.
    diagonal : str
        Reason why the classes may not be mixed at all; "" if they may.
    """

    classes: Array
    terms: tuple[Term, ...]
    slots: tuple[Slot, ...]
    parts: Array
    activations: Array
    nodes: tuple[str, ...]
    diagonal: str

    @property
    def size(self) -> int:
        """The number of classes."""
        return len(self.classes)


def blocks(graph: LayerGraph) -> tuple[list[Block], Entries]:
    """Return the free classes of a network, grouped in blocks in equivalent positions, in the order of the network.

    Parameters
    ----------
    graph : LayerGraph
        What :func:`bnrank.graph.trace` returns; of its parameters only the values of frozen ones matter.
    """
    entries = Entries(graph)
    if any(node.op == "diagonal" for node in graph):
        entries = Entries(graph, shared_factors(entries))
    alike, parts = entries.contexts()
    free = np.zeros(len(alike), dtype=bool)
    for slot in entries.slots:
        free[entries.label[slot.entries[:, 0]]] = True
    free[entries.label[entries.fixed]] = False
    _, first, group = np.unique(alike[free], return_index=True, return_inverse=True)
    block = np.full(len(free), -1)
    block[free] = np.argsort(np.argsort(first))[group]  # numbered as in the graph
    return _assemble(entries, block, parts), entries


def numbers(entries: Entries) -> list[Block]:
    """Return the scalings of the inputs or outputs of a learnable number that multiplies several classes.

    :func:`blocks` treats such a number as fixed; here it absorbs the scaling. There is one block per class. A number
    connects its input class to its output class. Scaling all connected classes together is a sum of the scalings of
    :func:`blocks`, so one class is omitted, on the side with fewer classes, unless one of them is fixed.
    """
    tied = Entries(entries.graph)
    fixed = set(tied.label[tied.fixed].tolist())
    sides = {(slot.parameter, slot.role): tied.label[slot.entries[:, 0]] for slot in tied.slots}
    names = sorted(entries.kept)
    into, out = (np.concatenate([sides[name, role] for name in names]) for role in ("scale in", "scale out"))
    component = components(into, out, tied.label.max() + 1)
    chosen: list[int] = []
    for c in dict.fromkeys(component[into].tolist()):
        before, behind = (list(dict.fromkeys(side[component[side] == c].tolist())) for side in (into, out))
        members = dict.fromkeys([*before, *behind])
        if fixed.isdisjoint(members):
            del members[(before if len(before) < len(behind) else behind)[-1]]
        chosen += [label for label in members if label not in fixed]
    block = np.full(tied.label.max() + 1, -1)
    block[chosen] = np.arange(len(chosen))
    return _assemble(tied, block, block)


def _assemble(entries: Entries, block: Array, parts: Array) -> list[Block]:
    """Return the blocks, given the block (or -1) of every class, with consistent orders of what touches the classes."""
    names = [node.name for node in entries.graph]
    obstacles = [(reason, set(block[entries.label[where]].tolist())) for reason, where in entries.obstacles]
    sizes = [len(slot.entries) for slot in entries.slots]
    slots, none = np.repeat(np.arange(len(sizes)), sizes), np.zeros(0, dtype=np.int64)
    channels = np.concatenate([none, *map(np.arange, sizes)])
    firsts = np.concatenate([none, *(slot.entries[:, 0] for slot in entries.slots)])
    keys = np.array([slot.key for slot in entries.slots], dtype=np.uint64)[slots]
    touching = _by_block(block, entries.label[firsts], slots, keys, entries.rank[firsts])
    result = []
    for b, held in enumerate(_by_block(block, entries.label, entries.rank)):
        classes = np.unique(entries.label[held])
        table, columns = (part[touching[b]].reshape(len(classes), -1) for part in (slots, channels))
        result.append(
            Block(
                classes=classes,
                terms=_terms(entries, table, columns),
                slots=tuple(entries.slots[s] for s in np.unique(table)),
                parts=np.unique(parts[classes], return_inverse=True)[1],
                activations=held[entries.activated[held]].reshape(len(classes), -1),
                nodes=tuple(names[i] for i in np.unique(entries.node_of(held))),
                diagonal=next((reason for reason, tied in obstacles if b in tied), ""),
            )
        )
    return result


def _by_block(block: Array, classes: Array, *keys: Array) -> list[Array]:
    """Return the places in a list of classes that are in each block, sorted by class, then by keys, the last first."""
    order = np.lexsort((*keys, classes, block[classes]))
    return np.split(order, np.searchsorted(block[classes][order], np.arange(block.max() + 2)))[1:-1]


def _terms(entries: Entries, table: Array, columns: Array) -> tuple[Term, ...]:
    """Return the terms of a block, given the slots and channels that touch every class, (classes, places) each."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, pattern in enumerate(table.T.tolist()):
        places.setdefault(tuple(pattern), []).append(place)
    terms = []
    for pattern, chosen in places.items():
        pieces = []
        for s in sorted(set(pattern)):
            slot, members = entries.slots[s], np.flatnonzero(np.equal(pattern, s))
            shape = entries.shapes[slot.parameter]
            pieces.append(
                Piece(slot.parameter, slot.axis, slot.groups, shape, members, columns[members[:, None], chosen])
            )
        terms.append(Term(entries.slots[pattern[0]].sign, tuple(pieces)))
    return tuple(terms)


@dataclass(frozen=True)
class Stage:
    """Blocks between two cuts.

    Attributes
    ----------
    blocks : list of Block
        The blocks.
    cuts : tuple of two tuples of str
        Parameters of the cut before and of the cut after the stage: weights from the input side to the rest, and the
        biases in the rest. A weight with some of its entries in a cut is listed in it.
    inside : set of str
        Parameters that only connect the blocks with each other.
    """

    blocks: list[Block]
    cuts: tuple[tuple[str, ...], tuple[str, ...]]
    inside: set[str]


def stages(entries: Entries, found: list[Block]) -> Iterator[Stage]:
    """Yield the stages, in the order of the network.

    Vertices are the blocks (those with the same parameters are merged), the fixed classes and a constant that biases
    read; edges are the trained weights, and the operations outside the theory. A stage is a strongly connected
    component of blocks. It has two cuts: the edges from the vertices that do not come after it, without or with the
    stage itself, to the rest. Every path crosses each cut once. If an edge without a weight crosses, there is no such
    cut.
    """
    import networkx as nx

    first: dict[tuple[frozenset[str], ...], int] = {}
    vertices = len(found) + np.arange(entries.label.max() + 1)
    for b, block in enumerate(found):
        vertices[block.classes] = first.setdefault(tuple(map(frozenset, layers_of(block.terms))), b)
    done = set(vertices.tolist()) - set(first.values())
    vertex = vertices[entries.label]

    reads = {slot.parameter: vertex[slot.entries[:, 0]].tolist() for slot in entries.slots if slot.sign == -1}
    edges: list[tuple[str, set[tuple[int, int]]]] = []
    for slot in sorted(entries.slots, key=lambda slot: slot.role == "bias"):
        if slot.sign == 1:
            ends = reads.get(slot.parameter, [CONSTANT]), vertex[slot.entries[:, 0]].tolist()
            pairs = zip(*ends, strict=True) if slot.role == "scale out" else itertools.product(*map(set, ends))
            edges.append((slot.parameter, set(pairs)))
    for node in (node for node in entries.graph if node.op == "outside"):
        sides = [{v for name in names for v in vertex[entries.of(name)].flat} for names in (node.inputs, [node.name])]
        edges.append(("", set(itertools.product(*sides))))

    graph = nx.DiGraph(pair for _, pairs in edges for pair in pairs)
    graph.add_nodes_from(first.values())
    for b in first.values():
        after = {b, *nx.descendants(graph, b)}
        inside = after & {b, *nx.ancestors(graph, b)}
        if inside.isdisjoint(done):
            before, behind = (
                tuple(name for name, pairs in edges if any(v not in rest and w in rest for v, w in pairs))
                for rest in (after, after - inside)
            )
            if "" not in (*before, *behind):
                members = [block for block in found if vertices[block.classes[0]] in inside]
                within = {name for name, pairs in edges if all(inside.issuperset(pair) for pair in pairs)}
                yield Stage(members, (before, behind), within)
        done |= inside
