"""Classes of entries of the hidden values that must be scaled together, and blocks of classes that may be mixed.

Every entry of every value (for one sample) gets a number. Two entries are tied if the function is preserved only when
both are scaled by the same factor: before and after an activation, along an identity skip, over the positions of a
convolution's channel. The connected components are the *classes*. A class without fixed entries (the input, the output,
anything outside the theory) is free: the function does not change if the class and the weights that write it are scaled
by a positive number, and the weights that read it by the inverse. Classes in equivalent positions of the network may
also be mixed with each other.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from bnrank.networks.graph.layers import LayerGraph
from bnrank.theory.invariants.conserved import Array, Tensors
from bnrank.theory.invariants.entries import Entries, Slot, components, mixed, shared_factors


@dataclass(frozen=True)
class Block:
    """A set of n free classes in equivalent positions of the network.

    Attributes
    ----------
    terms : tuple of tuple of (Slot, ndarray, ndarray)
        The parameters that read or write the classes. A term has one or more pieces: a slot, its classes (k,), and its
        channels that read or write them (k, m), ordered so that equal positions correspond. The pieces of a term cover
        all n classes.
    parts : ndarray
        (n,), equal for classes that may be mixed: all of them, or those in the same group of a grouped convolution.
    activations : ndarray
        (n, a), the numbers of the entries of activation outputs, ordered so that equal positions correspond.
    nodes : tuple of str
        The nodes with an entry in the classes.
    diagonal : str
        Reason why the classes may not be mixed at all; "" if they may.
    """

    size: int
    terms: tuple[tuple[tuple[Slot, Array, Array], ...], ...]
    parts: Array
    activations: Array
    nodes: tuple[str, ...]
    diagonal: str

    @property
    def slots(self) -> list[Slot]:
        """The slots that read or write the classes, without repetitions, in the order of the network."""
        return list({id(slot): slot for pieces in self.terms for slot, _, _ in pieces}.values())


def blocks(graph: LayerGraph, parameters: Tensors) -> tuple[list[Block], Entries]:
    """Return the free classes of a network, grouped in blocks in equivalent positions, in the order of the network.

    Parameters
    ----------
    graph : LayerGraph
        What :func:`bnrank.graph.trace` returns.
    parameters : mapping
        The module's parameters by name; only the values of frozen parameters matter.
    """
    entries = Entries(graph, parameters)
    if any(node.op == "diagonal" for node in graph):
        entries = Entries(graph, parameters, shared_factors(entries))
    labels = entries.labels()
    free = np.ones(labels.max() + 1, dtype=bool)
    free[labels[entries.pinned]] = False
    rank, opening = _ranks(labels)
    coarse, fine = entries.contexts(rank)
    alike = _per_class(coarse, labels, rank, len(free))
    parts = _per_class(coarse + fine, labels, rank, len(free))
    touched = np.zeros(len(free), dtype=bool)
    for slot in entries.slots:
        touched[labels[slot.entries[:, 0]]] = True
    chosen = np.flatnonzero(free & touched)
    _, first, group = np.unique(alike[chosen], return_index=True, return_inverse=True)
    block = np.full(len(free), -1)
    block[chosen] = np.argsort(np.argsort(opening[chosen[first]]))[group]  # numbered as in the graph
    return _assemble(entries, labels, block, parts), entries


def numbers(graph: LayerGraph, parameters: Tensors, entries: Entries) -> list[Block]:
    """Return the scalings of the inputs or outputs of a learnable number that multiplies several classes.

    :func:`blocks` treats such a number as fixed; here it absorbs the scaling. There is one block per class. A number
    connects its input class to its output class. Scaling all connected classes together is a sum of the scalings of
    :func:`blocks`, so one class is omitted, on the side with fewer classes, unless one of them is fixed.
    """
    tied = Entries(graph, parameters)
    labels = tied.labels()
    fixed = set(labels[tied.pinned].tolist())
    sides = {(slot.parameter, slot.role): labels[slot.entries[:, 0]] for slot in tied.slots}
    names = sorted(entries.kept)
    into, out = (np.concatenate([sides[name, role] for name in names]) for role in ("scale in", "scale out"))
    component = components(into, out, labels.max() + 1)
    chosen: list[int] = []
    for c in dict.fromkeys(component[into].tolist()):
        before, behind = (list(dict.fromkeys(side[component[side] == c].tolist())) for side in (into, out))
        members = dict.fromkeys([*before, *behind])
        if fixed.isdisjoint(members):
            del members[(before if len(before) < len(behind) else behind)[-1]]
        chosen += [label for label in members if label not in fixed]
    block = np.full(labels.max() + 1, -1)
    block[chosen] = np.arange(len(chosen))
    return _assemble(tied, labels, block, block)


def _ranks(labels: Array) -> tuple[Array, Array]:
    """Return the rank of every entry within its class, and the first entry of every class."""
    order = np.argsort(labels, kind="stable")  # by class, within it by node, then by place
    starts = np.searchsorted(labels[order], np.arange(labels.max() + 1))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - starts[labels[order]]
    return rank, order[starts]


def _per_class(contexts: Array, labels: Array, rank: Array, number: int) -> Array:
    """Return a number per class; it is equal for classes whose contexts all agree, rank by rank."""
    result = np.zeros(number, dtype=np.uint64)
    np.add.at(result, labels, mixed(contexts + mixed(rank)))
    return result


def _assemble(entries: Entries, labels: Array, block: Array, parts: Array) -> list[Block]:
    """Return the blocks with the slots that read or write their classes, ordered consistently between classes."""
    entries.label, entries.block = labels, block
    rank, opening = _ranks(labels)
    number = block.max(initial=-1) + 1

    def by_block(classes: Array, *keys: Array) -> list[Array]:
        """Return the places of classes that are in each block: by class in the order of the network, then by keys."""
        order = np.lexsort((*keys, opening[classes], block[classes]))
        return np.split(order, np.searchsorted(block[classes][order], np.arange(number + 1)))[1:-1]

    firsts = np.concatenate([np.zeros(0, int), *(slot.entries[:, 0] for slot in entries.slots)])
    slots = np.repeat(np.arange(len(entries.slots)), [len(slot.entries) for slot in entries.slots])
    channels = np.concatenate([np.zeros(0, int), *(np.arange(len(slot.entries)) for slot in entries.slots)])
    keys = np.array([slot.key for slot in entries.slots], dtype=np.uint64)[slots]
    touching = by_block(labels[firsts], slots, keys, rank[firsts])
    activated = np.concatenate([np.zeros(0, int), *(a for _, a in entries.activations)])
    activations = by_block(labels[activated], rank[activated])
    classes = by_block(np.arange(len(block)))

    held = np.flatnonzero(block[labels] >= 0)
    inner = np.unique(np.stack([block[labels[held]], entries.node_of(held)]), axis=1)
    obstacles: dict[int, str] = {}
    for reason, where in entries.obstacles:
        for b in np.unique(block[labels[where]]):
            obstacles.setdefault(int(b), reason)

    names = [node.name for node in entries.graph]
    result = []
    for b, mine in enumerate(classes):
        chosen = touching[b].reshape(len(mine), -1)
        table, columns = slots[chosen], channels[chosen]
        patterns, first, which = np.unique(table, axis=1, return_index=True, return_inverse=True)
        terms = []
        for p in np.argsort(first):
            places = np.flatnonzero(which == p)
            pieces = []
            for s in np.unique(patterns[:, p]):
                members = np.flatnonzero(patterns[:, p] == s)
                pieces.append((entries.slots[s], members, columns[np.ix_(members, places)]))
            terms.append(tuple(pieces))
        result.append(
            Block(
                size=len(mine),
                terms=tuple(terms),
                parts=np.unique(parts[mine], return_inverse=True)[1],
                activations=activated[activations[b]].reshape(len(mine), -1),
                nodes=tuple(names[i] for i in inner[1][inner[0] == b]),
                diagonal=obstacles.get(b, ""),
            )
        )
    return result


@dataclass(frozen=True)
class Stage:
    """Blocks between two cuts.

    Attributes
    ----------
    blocks : tuple of int
        Indices of the blocks.
    cuts : tuple of two tuples of str
        Parameters of the cut before and of the cut after the stage: weights from the input side to the rest, and the
        biases in the rest. A weight with some of its entries in a cut is listed in it.
    """

    blocks: tuple[int, ...]
    cuts: tuple[tuple[str, ...], tuple[str, ...]]


def stages(entries: Entries, found: list[Block]) -> list[Stage]:
    """Return the stages without fixed classes, in the order of the network.

    Vertices are the blocks (those with the same parameters are merged) and the fixed classes; edges are the trained
    weights, and the operations outside the theory. A stage is a strongly connected component without a fixed class. It
    has two cuts: the edges from the vertices that do not come after it, without or with the stage itself, to the rest.
    Every path crosses each cut once. If an edge without a weight crosses, there is no such cut.
    """
    import networkx as nx

    block, labels = entries.block, entries.label
    alike: dict[tuple[frozenset[str], ...], int] = {}
    merged = np.arange(len(found))
    for b, item in enumerate(found):
        sets = tuple(frozenset(s.parameter for s in item.slots if s.sign == sign) for sign in (1, -1))
        merged[b] = alike.setdefault(sets, b)
    vertex = len(found) + np.arange(len(block))
    vertex[block >= 0] = merged[block[block >= 0]]

    def vertices(values: Array) -> list[int]:
        found: list[int] = vertex[labels[values.ravel()]].tolist()
        return found

    edges: list[tuple[int, int, str]] = []
    biases: list[tuple[int, str]] = []
    reads = {s.parameter: vertices(s.entries[:, 0]) for s in entries.slots if s.sign == -1}
    for slot in entries.slots:
        given = vertices(slot.entries[:, 0])
        if slot.role == "bias":
            biases += [(v, slot.parameter) for v in set(given)]
        elif slot.role == "scale out":
            edges += [(a, b, slot.parameter) for a, b in set(zip(reads[slot.parameter], given, strict=True))]
        elif slot.role == "write":
            edges += [(a, b, slot.parameter) for a, b in itertools.product(set(reads[slot.parameter]), set(given))]
    for node in entries.graph:
        if node.op == "outside":
            taken = {v for name in node.inputs for v in vertices(entries.of(name))}
            edges += [(a, b, "") for a, b in itertools.product(taken, set(vertices(entries.of(node.name))))]
    if not edges:
        return []

    graph = nx.DiGraph((a, b) for a, b, _ in edges)
    graph.add_nodes_from(merged.tolist())
    component = {v: members for members in nx.strongly_connected_components(graph) for v in members}
    left_out, result = set(vertex[block < 0].tolist()), []
    for first in merged.tolist():
        inside = component[first]
        if inside & left_out:
            continue
        left_out |= inside
        after = inside | nx.descendants(graph, first)
        cuts = []
        for behind in (after, after - inside):
            crossing = [name for a, b, name in edges if a not in behind and b in behind]
            if "" in crossing:
                break
            cuts.append(tuple(dict.fromkeys([*crossing, *(name for v, name in biases if v in behind)])))
        if len(cuts) == 2:
            blocks_inside = tuple(b for b, v in enumerate(merged.tolist()) if v in inside)
            result.append(Stage(blocks_inside, (cuts[0], cuts[1])))
    return result
