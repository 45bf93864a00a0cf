"""The entries of all hidden values of a network: their ties, the operations on them, and the fixed ones."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.theory.invariants.conserved import Array
from bnrank.theory.neurons.expansion import fixed_edges


@dataclass(frozen=True)
class Slot:
    """One side of a learnable parameter: the entries that its channels write or read.

    Attributes
    ----------
    node : str
        The node whose parameter it is.
    parameter : str
        Its name.
    role : str
        "write" and "read" of a matrix or kernel, "bias", and "scale in" and "scale out" of a diagonal.
    axis : int
        Axis of the parameter that indexes its channels: 0 or 1, or -1 if every entry is a channel.
    groups : int
        Number of groups of a convolution.
    entries : ndarray
        (channels, positions), the entries that each channel reads or writes; they are tied.
    key : int
        Equal for equivalent slots: the same operation on the same value, or into the same value.
    """

    node: str
    parameter: str
    role: str
    axis: int
    groups: int
    entries: Array = field(repr=False)
    key: int = field(repr=False)

    @property
    def sign(self) -> int:
        """1 if the slot writes the entries, -1 if it reads them."""
        return -1 if self.role in ("read", "scale in") else 1


class Entries:
    """The entries of a graph: their classes, the fixed ones, and those that learnable parameters read or write.

    Parameters
    ----------
    graph : LayerGraph
        What :func:`bnrank.graph.trace` returns.
    kept : frozenset of str
        Diagonal weights that are treated as fixed numbers: their inputs are tied to their outputs, entry by entry.
        The entries that one number of any other diagonal weight multiplies are tied with each other.

    Attributes
    ----------
    label : ndarray
        The class of every entry; classes are numbered in the order of the network.
    rank : ndarray
        The position of every entry within its class.
    fixed, activated : ndarray
        Whether every entry may not be scaled, and whether it is the output of an activation.
    slots : list of Slot
        The sides of the learnable parameters, in the order of the network.
    obstacles : list of (str, ndarray)
        Reasons why the classes with some entries may not be mixed.
    """

    def __init__(self, graph: LayerGraph, kept: frozenset[str] = frozenset()) -> None:
        self.graph, self.kept = graph, kept
        self.shapes = {name: tuple(p.shape) for name, p in graph.parameters.items()}
        self.starts = np.cumsum([0, *(node.size for node in graph)])
        self.start = {node.name: int(start) for node, start in zip(graph, self.starts, strict=False)}
        self.fixed, self.activated = np.zeros((2, self.starts[-1]), dtype=bool)
        self.slots: list[Slot] = []
        self.obstacles: list[tuple[str, Array]] = []
        self._ties: list[tuple[Array, Array]] = []
        self._maps: list[tuple[int, Array, Array, Array]] = []
        self.fixed[self.of(graph.output)] = True
        for node in graph:
            getattr(self, f"_{node.op}")(node)
        self.label = self.labels()
        counts = np.bincount(self.label)
        self.rank = np.empty_like(self.label)
        self.rank[np.argsort(self.label, kind="stable")] = np.concatenate([np.arange(count) for count in counts])

    def of(self, name: str) -> Array:
        """Return the numbers of a node's entries, in the shape of its value."""
        node = self.graph[name]
        return self.start[name] + np.arange(node.size).reshape(node.shape)

    def node_of(self, entries: Array) -> Array:
        """Return the position in the graph of the node that each entry belongs to."""
        return np.searchsorted(self.starts, entries, side="right") - 1

    def labels(self, without: Collection[str] = ()) -> Array:
        """Return the class of every entry, optionally without the ties by some parameters."""
        slots = [slot.entries for slot in self.slots if slot.parameter not in without]
        ties = [*self._ties, *((entries[:, :1], entries) for entries in slots)]
        pairs = [np.stack(np.broadcast_arrays(a, b)).reshape(2, -1) for a, b in ties]
        a, b = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs], axis=1)
        return components(a, b, int(self.starts[-1]))

    def contexts(self) -> tuple[Array, Array]:
        """Return a number per class that identifies the operations on it, without and with convolution groups."""
        coarse, fine = np.zeros((2, self.starts[-1]), dtype=np.uint64)
        for slot in self.slots:
            channels, positions = slot.entries.shape
            place = mixed(np.uint64(slot.key) + mixed(np.arange(positions)))
            np.add.at(coarse, slot.entries.ravel(), np.tile(place, channels))
            group = np.arange(channels) // (channels // slot.groups)
            np.add.at(fine, slot.entries.ravel(), np.repeat(mixed(np.uint64(slot.key) ^ mixed(group + 1)), positions))
        for key, given, source, weight in self._maps:
            np.add.at(coarse, given, mixed(np.uint64(key) + (mixed(self.rank[source]) ^ weight)))
        for node in self.graph:
            if node.op in ("linear", "conv") and node.weight not in self.graph.trained:
                self._add_frozen(node, coarse)
        classes = np.zeros((2, self.label.max() + 1), dtype=np.uint64)
        for contexts, numbers in zip((coarse, coarse + fine), classes, strict=True):
            np.add.at(numbers, self.label, mixed(contexts + mixed(self.rank)))
        return classes[0], classes[1]

    def _add_frozen(self, node: Node, contexts: Array) -> None:
        """Add a frozen matrix or kernel to the numbers that identify the operations on its outputs."""
        given, taken = self._sides(node)
        rows, columns, values = self._kernels(node)
        channel = np.zeros(len(given), dtype=np.uint64)
        np.add.at(channel, rows, mixed(mixed(self.rank[taken[columns, 0]]) ^ values))
        places = mixed(np.arange(given.shape[1]))
        how = (node.stride, node.padding, node.dilation, node.padding_mode, given.shape[1:], taken.shape[1:])
        frozen = np.uint64(_key("frozen", *map(str, how)))
        np.add.at(contexts, given.ravel(), mixed(frozen + mixed(channel[:, None] ^ places).ravel()))

    def _map(self, key: int, given: Array, source: Array, weight: Array) -> None:
        """Add a fixed map entry by entry: output entries, input entries, and weights."""
        self._maps.append((key, given, source, weight))
        self._ties.append((source, given))

    def _input(self, node: Node) -> None:
        self.fixed[self.of(node.name)] = True

    def _outside(self, node: Node) -> None:
        for name in (node.name, *node.inputs):
            self.fixed[self.of(name)] = True

    def _activation(self, node: Node) -> None:
        given, taken = self.of(node.name).ravel(), self.of(node.inputs[0]).ravel()
        if node.weight and self.graph.parameters[node.weight].numel() > 1:
            self.obstacles.append((f"{node.text or node.name} has a separate slope for every channel", given))
        self.activated[given] = node.slope != 1
        function = () if node.slope == 1 else ("activation", str(node.slope), node.weight)
        self._map(_key(*function), given, taken, mixed(np.ones(node.size).view(np.uint64)))

    def _add(self, node: Node, *function: str) -> None:
        """Add the fixed map of a sum or a reordering, or of a maximum over it."""
        for name, source, given, weight in fixed_edges(node, [self.graph[name] for name in node.inputs]):
            places = self.start[node.name] + given, self.start[name] + source
            self._map(_key(*function), *places, mixed(weight.view(np.uint64)))

    _index = _add

    def _average(self, node: Node, *function: str) -> None:
        if node.windows is None:  # the same places for every channel
            given, taken = node.pooled(self.graph[node.inputs[0]])
            given, taken = self.start[node.name] + given, self.start[node.inputs[0]] + taken
            places = mixed(np.tile(np.arange(given.shape[1]), len(given)))
            self._map(_key(node.op, node.name), given.ravel(), np.repeat(taken[:, 0], given.shape[1]), places)
            self._ties.append((taken[:, :1], taken))
        else:
            self._add(node, *function)

    def _maximum(self, node: Node) -> None:
        self._average(node, node.op)
        reason = f"{node.text or node.name} between: only scalings by positive numbers commute with a maximum"
        self.obstacles.append((reason, self.of(node.name).ravel()))

    def _diagonal(self, node: Node) -> None:
        given, taken = self.of(node.name).ravel(), self.of(node.inputs[0]).ravel()
        weight, places = self.graph.parameters[node.weight], node.weight_places()
        if node.weight in self.kept:
            self._map(_key("diagonal", node.weight), given, taken, mixed(places))
        elif node.weight in self.graph.trained:
            order = np.argsort(places, kind="stable").reshape(weight.numel(), -1)
            for role, values in (("scale out", given), ("scale in", taken)):
                self.slots.append(Slot(node.name, node.weight, role, -1, 1, values[order], _key(role, node.weight)))
            reason = f"{node.weight} is diagonal: only scalings can be undone in it"
            self.obstacles.append((reason, np.concatenate([given, taken])))
        else:
            numbers = weight.detach().cpu().double().numpy().ravel()[places]
            at = np.flatnonzero(numbers)
            self._map(_key("times"), given[at], taken[at], mixed(numbers[at].view(np.uint64)))

    def _sides(self, node: Node) -> tuple[Array, Array]:
        """Return the output and input entries of a matrix or kernel, (channels, positions) each."""
        given, taken = self.of(node.name), self.of(node.inputs[0])
        if node.op == "linear":
            return given.reshape(-1, given.shape[-1]).T, taken.reshape(-1, taken.shape[-1]).T
        return given.reshape(len(given), -1), taken.reshape(len(taken), -1)

    def _linear(self, node: Node) -> None:
        given, taken = self._sides(node)
        if node.weight in self.graph.trained:
            shape = (node.kernel, node.stride, node.padding, node.dilation, node.padding_mode, node.groups)
            how = (node.op, *map(str, (shape, taken.shape)))
            read = _key("read", self._target(node), str(given.shape), *how[:-1])
            axis, write = int(node.transposed), _key("write", node.inputs[0], *how)
            self.slots.append(Slot(node.name, node.weight, "write", axis, node.groups, given, write))
            self.slots.append(Slot(node.name, node.weight, "read", 1 - axis, node.groups, taken, read))
        else:
            rows, columns, _ = self._kernels(node)
            self._ties += [(given[:, :1], given), (taken[:, :1], taken), (given[rows, 0], taken[columns, 0])]
        if node.bias in self.graph.trained:
            self.slots.append(Slot(node.name, node.bias, "bias", -1, 1, given, _key("bias")))
        elif node.bias:
            self.fixed[given[self.graph.parameters[node.bias].detach().cpu().numpy() != 0]] = True

    _conv = _linear

    def _kernels(self, node: Node) -> tuple[Array, Array, Array]:
        """Return the nonzeros of a frozen matrix or kernel: output and input channels, and a hash of the values."""
        weight = self.graph.parameters[node.weight].detach().cpu().double()
        weight = weight.T if node.transposed else weight
        values = weight.reshape(*weight.shape[:2], -1).numpy()
        rows, columns = np.nonzero(np.abs(values).sum(2))
        taps = mixed(np.arange(values.shape[2]))
        found = mixed(values[rows, columns].view(np.uint64) ^ taps).sum(1, dtype=np.uint64)
        return rows, columns + rows // (len(values) // node.groups) * values.shape[1], found

    def _target(self, node: Node) -> str:
        """Return the name of the value a map adds to: its own, or the sum that is its only consumer."""
        factor = 1.0
        while node.name != self.graph.output:
            consumers = self.graph.consumers(node.name)
            if len(consumers) != 1 or consumers[0].op != "add" or consumers[0].inputs.count(node.name) != 1:
                break
            factor *= float(consumers[0].factors[consumers[0].inputs.index(node.name)])
            node = consumers[0]
        return f"{factor} {node.name}"


def shared_factors(entries: Entries) -> frozenset[str]:
    """Return the diagonal weights with a number that multiplies several classes, e.g. one number for all channels."""
    names = {node.weight for node in entries.graph if node.op == "diagonal"}
    label = entries.labels(without=names)
    sets = [slot for slot in entries.slots if slot.parameter in names]
    return frozenset(s.parameter for s in sets if (label[s.entries] != label[s.entries[:, :1]]).any())


def components(rows: Array, columns: Array, size: int) -> Array:
    """Return the connected component of every vertex of a graph given by its edges, in the order of the vertices."""
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    component = connected_components(matrix, directed=False)[1]
    first = np.unique(component, return_index=True)[1]
    return np.argsort(np.argsort(first))[component]


def _key(*words: str) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest(), "little")


def mixed(values: Array | np.uint64) -> Array:
    """Return a 64-bit hash of every number (the finalizer of splitmix64)."""
    z = np.atleast_1d(np.asarray(values)).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
