"""The layers of a linear tail: their two matrix forms, and the search for the beginning of the tail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.theory.invariants.classes import Block
from bnrank.theory.invariants.conserved import Conserved, Tensors
from bnrank.theory.invariants.derivation import quantities
from bnrank.theory.invariants.entries import Entries


@dataclass(frozen=True)
class Map:
    """A learnable linear map between two values whose channels may be mixed by any matrix.

    Attributes
    ----------
    name : str
        Of the node, e.g. "layers_2".
    kind : str
        "linear" or "conv".
    weight, bias : str
        Names of its parameters; "" for no bias.
    written : ndarray
        (channels out, ...): indices into the flattened weight that give the written form, with one row per channel of
        the value it writes.
    read : ndarray
        (..., channels in): indices that give the read form, with one column per channel of the value it reads.
    biases : ndarray or None
        (channels out, ...): indices into the flattened bias.
    """

    name: str
    kind: str
    weight: str
    bias: str
    written: np.ndarray = field(repr=False, compare=False)
    read: np.ndarray = field(repr=False, compare=False)
    biases: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def rest(self) -> int:
        """Number of entries per input and output channel: kernel size, positions of a flattened value, or 1."""
        return self.written.size // (self.written.shape[0] * self.read.shape[1])

    @property
    def factor(self) -> int:
        """Largest ratio of the squared operator norm of the written form to the read one's: min(channels in, rest)."""
        return min(self.read.shape[1], self.rest)

    def written_form(self, parameters: Tensors) -> Tensor:
        """Return the weight as a matrix (channels out, in times rest), float64."""
        return _taken(parameters, self.weight, self.written)

    def read_form(self, parameters: Tensors) -> Tensor:
        """Return the weight as a matrix (out times rest, channels in), float64."""
        return _taken(parameters, self.weight, self.read)

    def bias_form(self, parameters: Tensors) -> Tensor:
        """Return the bias as a matrix (channels out, entries of the bias per channel), float64; no columns without."""
        if self.biases is None:
            return torch.zeros(self.written.shape[0], 0, dtype=torch.float64)
        return _taken(parameters, self.bias, self.biases)


@dataclass(frozen=True)
class Layer:
    """A layer between two values of a linear tail: one map, or several chains of maps whose outputs are added.

    Attributes
    ----------
    name : str
        Of the node that gives its value, e.g. "layers_2" or "add".
    kind : str
        "linear", "conv", "free block" (two or more chains), or "sum" (the first layer of a tail, if what it adds comes
        from different places).
    branches : tuple of tuple of Map
        The chains, the map that reads first.
    inside : tuple of tuple of Conserved
        The conserved matrices E = in - out of the values inside the chains, biases with in; per chain.
    after : Conserved or None
        The conserved matrix D = in - out of the value that it writes, biases with in; None for the output.
    """

    name: str
    kind: str
    branches: tuple[tuple[Map, ...], ...]
    inside: tuple[tuple[Conserved, ...], ...] = ()
    after: Conserved | None = None

    @property
    def factor(self) -> int:
        """Largest ratio of the squared operator norm of the written form to that of the read form, up to a constant.

        It is the sum over the chains of the product over the maps: 1 for a fully connected layer, min(in, k) for a
        convolution, 2 for a free block.
        """
        return sum(int(np.prod([m.factor for m in branch])) for branch in self.branches)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the weights and biases."""
        names = [n for branch in self.branches for m in branch for n in (m.weight, m.bias) if n]
        return tuple(dict.fromkeys(names))

    def written(self, parameters: Tensors) -> Tensor:
        """Return the written form, float64: W, out x (in k), or [Z D]; a row per channel of the value it writes."""
        return torch.cat([branch[-1].written_form(parameters) for branch in self.branches], 1)

    def read(self, parameters: Tensors) -> Tensor:
        """Return the read form, float64: W, (out k) x in, or [Y; D]; a column per channel of the value it reads."""
        return torch.cat([branch[0].read_form(parameters) for branch in self.branches])

    def biases(self, parameters: Tensors) -> Tensor:
        """Return the biases added to the value it writes, (channels, entries per channel), float64."""
        return torch.cat([branch[-1].bias_form(parameters) for branch in self.branches], 1)

    def added(self, inner: Sequence[Sequence[Tensor]], rank: int) -> float:
        """Return a bound on the distance of the read form from rank r f minus that of the written form from rank r.

        f is the factor.

        Distances are sums of squared singular values; ``inner`` are the eigenvalues of :attr:`inside`, r is ``rank``.
        Along a chain X_1, ..., X_m (first map first) E_i = X_i X_i^T + c_i c_i^T - X_{i+1}^T X_{i+1}; a written form of
        rank r has a read form of rank at most f r, with f the map's factor; biases c_i only decrease the distance.
        """
        total = 0.0
        for branch, spectra in zip(self.branches, inner, strict=True):
            reached = rank
            for one, values in zip(reversed(branch[1:]), reversed(spectra), strict=True):
                reached *= one.factor
                total += largest(values, len(values) - reached)
        return total


def largest(values: Tensor, count: int) -> float:
    """Return the sum of the largest eigenvalues, given in ascending order; 0 of none.

    Examples
    --------
    >>> largest(torch.tensor([-1.0, 2.0, 3.0]), 2), largest(torch.tensor([1.0]), -1)
    (5.0, 0.0)
    """
    return float(values[len(values) - count :].sum()) if count > 0 else 0.0


def squares(matrix: Tensor) -> Tensor:
    """Return the squared singular values of a matrix in descending order, in float64; a single 0 for an empty matrix.

    Examples
    --------
    >>> squares(torch.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [16.0, 9.0]
    """
    matrix = matrix.to(torch.float64)
    if not matrix.numel():
        return torch.zeros(1, dtype=torch.float64)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0.0)


def _taken(parameters: Tensors, name: str, index: np.ndarray) -> Tensor:
    flat = parameters[name].detach().to(torch.float64).flatten()
    return flat[torch.from_numpy(index).to(flat.device)]


@dataclass(frozen=True, eq=False)
class _Value:
    """A value whose channels may be mixed by any matrix, with the channels that weights and biases write and read.

    The mappings are from names of nodes.
    """

    matrix: Conserved
    written: Mapping[str, np.ndarray]
    read: Mapping[str, np.ndarray]
    biases: Mapping[str, np.ndarray]


def layers(graph: LayerGraph, parts: list[Block], entries: Entries) -> tuple[tuple[Layer, ...], str]:
    """Return the layers of the linear tail, in order, and the reason why it does not begin earlier.

    Parameters
    ----------
    graph : LayerGraph
        What :func:`bnrank.graph.trace` returns.
    parts, entries
        What :func:`bnrank.theory.invariants.classes.blocks` returns for it.
    """
    last, other = _sources(graph, graph.output)
    if other or not last:
        return (), f"the output comes out of {_said(graph, other[0] if other else graph.output)}"
    values: list[_Value] = []
    if not any(_sources(graph, graph[name].inputs[0])[1] for name in last):  # else nothing is before them
        values = [v for v in (_value(block, entries) for block in parts) if v is not None]
    written = {name: value for value in values for name in value.written}
    read = {name: value for value in values for name in value.read}
    found: list[Layer] = []
    writers = tuple(dict.fromkeys(last))
    while True:
        chains, value, why = _back(graph, writers, written, read)
        maps = tuple(tuple(_map(graph[n], entries, written.get(n), read.get(n)) for n in chain) for chain in chains)
        inside = tuple(tuple(read[n].matrix for n in chain[1:]) for chain in chains)
        after = written[writers[0]].matrix if found else None
        single = len(chains) == 1
        kind = graph[chains[0][0]].op if single else "free block" if value is not None else "sum"
        found.append(Layer(_name([graph[n] for chain in chains for n in chain]), kind, maps, inside, after))
        if value is None:
            return tuple(reversed(found)), why
        writers = tuple(value.written)


def _back(
    graph: LayerGraph, writers: tuple[str, ...], written: Mapping[str, _Value], read: Mapping[str, _Value]
) -> tuple[list[tuple[str, ...]], _Value | None, str]:
    """Return the chains of maps that a value is written by, the value they all begin at, and why there is none."""
    alone: list[tuple[str, ...]] = [(name,) for name in writers]
    trails: list[list[_Value]] = []
    steps: list[list[str]] = []
    for name in writers:
        if name not in read:
            return alone, None, f"before it: {_before(graph, name)}"
        trail, chain = [read[name]], [name]
        while len(writers) > 1 and len(trail[-1].written) == 1 and tuple(trail[-1].read) == (chain[-1],):
            (inner,) = trail[-1].written
            if inner not in read:
                break
            chain.append(inner)
            trail.append(read[inner])
        trails.append(trail)
        steps.append(chain)
    for value in trails[0]:
        if not all(value in trail for trail in trails):
            continue
        lengths = [trail.index(value) + 1 for trail in trails]
        chains = [tuple(reversed(chain[:n])) for chain, n in zip(steps, lengths, strict=True)]
        further = set(value.read) - {chain[0] for chain in chains}
        if further:
            return alone, None, f"before it: a value that {_text(graph[min(further)])} reads as well"
        return chains, value, ""
    return alone, None, "before it: values that come from different places"


def _value(block: Block, entries: Entries) -> _Value | None:
    """Return the value of a block whose whole matrix is conserved, or None."""
    if block.diagonal or block.activations.size or len(np.unique(block.parts)) > 1:
        return None
    places: dict[str, dict[str, np.ndarray]] = {"write": {}, "read": {}, "bias": {}}
    slots = {(slot.parameter, slot.sign): slot for slot in block.slots}
    for piece, sign in ((piece, term.sign) for term in block.terms for piece in term.pieces):
        slot = slots[piece.parameter, sign]
        whole = np.array_equal(piece.members, np.arange(block.size)) and piece.channels.size == len(slot.entries)
        if not whole or slot.node in places.get(slot.role, {slot.node}) or slot.groups > 1:
            return None
        places[slot.role][slot.node] = piece.channels
    written, read, biases = places.values()
    if not written or not read or not set(biases) <= set(written):
        return None
    return _Value(replace(quantities(block, entries)[0], kind="matrix"), written, read, biases)


def _map(node: Node, entries: Entries, written: _Value | None, read: _Value | None) -> Map:
    """Return the map of a node in the forms that the values it writes and reads need."""
    shape = entries.shapes[node.weight]
    index = np.arange(int(np.prod(shape))).reshape(shape[0], shape[1], -1)
    if node.transposed:
        index = index.transpose(1, 0, 2)
    rows = written.written[node.name] if written is not None else np.arange(len(index))[:, None]
    columns = read.read[node.name] if read is not None else np.arange(index.shape[1])[:, None]
    taken = np.moveaxis(index[:, columns], 1, -1).reshape(-1, len(columns))  # (out, positions, rest, channels)
    biases = written.biases.get(node.name) if written is not None else None
    bias = node.bias if biases is not None else ""
    return Map(node.name, node.op, node.weight, bias, index[rows].reshape(len(rows), -1), taken, biases)


def _plain(node: Node) -> bool:
    """Return whether a node is linear and fixed."""
    return node.op in ("index", "average", "add") or (node.op == "activation" and node.slope == 1)


def _sources(graph: LayerGraph, name: str) -> tuple[list[str], list[str]]:
    """Return the learnable linear maps that write a value, through what is linear and fixed, and what else does."""
    node = graph[name]
    if node.op in ("linear", "conv") and node.weight in graph.trained:
        return [name], []
    if not _plain(node):
        return [], [name]
    found = [_sources(graph, one) for one in dict.fromkeys(node.inputs)]
    return [name for maps, _ in found for name in maps], [name for _, others in found for name in others]


def _before(graph: LayerGraph, name: str) -> str:
    """Return a description of what precedes a map whose input may not be mixed."""
    maps, others = _sources(graph, graph[name].inputs[0])
    if others:
        return _said(graph, others[0])
    grouped = [graph[n] for n in (*maps, name) if graph[n].groups > 1]
    if grouped:
        return f"{_text(grouped[0])} has groups"
    return f"a value that is also {' and '.join(sorted(_uses(graph, maps)))}" if maps else "a fixed value"


def _uses(graph: LayerGraph, maps: list[str]) -> set[str]:
    """Return the consumers of a value other than learnable linear maps; ``maps`` are its writers."""
    found, waiting, seen = set(), list(maps), set(maps)
    while waiting:
        for node in graph.consumers(waiting.pop()):
            if _plain(node) and node.name not in seen:
                seen.add(node.name)
                waiting.append(node.name)
                for one in node.inputs:
                    if one not in seen and not _plain(graph[one]) and graph[one].op not in ("linear", "conv"):
                        found.add(f"added to {_said(graph, one)}")
            elif not _plain(node) and node.op not in ("linear", "conv"):
                found.add(f"an input of {_said(graph, node.name)}")
    return found or {"read in part"}


def _said(graph: LayerGraph, name: str) -> str:
    node = graph[name]
    if node.op == "input":
        return "the input"
    if node.op in ("linear", "conv"):
        return f"{_text(node)}, which is frozen"
    return _text(node)


def _text(node: Node) -> str:
    return f"{node.text} ({node.module})" if node.text and node.module else node.text or node.name


def _name(nodes: list[Node]) -> str:
    """Name a layer: its module, or the module that the modules of a block are in."""
    parts = [(node.module or node.name).split(".") for node in nodes]
    if len(parts) == 1:
        return ".".join(parts[0])
    common = [names[0] for names in zip(*parts, strict=False) if len(set(names)) == 1]
    return ".".join(common) or " + ".join(".".join(p) for p in parts)
