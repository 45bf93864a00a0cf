"""What conserved quantities are called, and why they are conserved, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bnrank.networks.graph.layers import LayerGraph, Node
from bnrank.theory.invariants.classes import Block
from bnrank.theory.invariants.conserved import Term

__all__ = ["Words", "title", "words"]

STREAM = "T44-T45, identity stream"
SEVERAL = "T44-T45"


@dataclass(frozen=True)
class Words:
    """Name, case of T45, reasons and biases of a block."""

    name: str
    case: str
    vertex: str
    pair: str
    matrix: str
    biases: str
    layers: tuple[tuple[str, ...], tuple[str, ...]]


def words(graph: LayerGraph, block: Block, *, number: bool = False) -> Words:
    """Say in words what a block of classes conserves; ``number`` for one learnable number that multiplies several."""
    slots = block.slots
    writers = [graph[s.node] for s in slots if s.role in ("write", "scale out")]
    readers = [graph[s.node] for s in slots if s.sign == -1]
    order = {node.name: i for i, node in enumerate(graph)}

    def trained(name: str) -> bool:
        return graph[name].weight in graph.trained

    writers.sort(key=lambda node: order[node.name])
    readers.sort(key=lambda node: order[node.name])
    layers = tuple(tuple(dict.fromkeys(s.parameter for s in slots if s.sign == sign)) for sign in (1, -1))
    biases = [s.parameter for s in slots if s.role == "bias"]
    case = _case(graph, writers, readers, order)
    bends = list(
        dict.fromkeys(_text(n) for n in map(graph.__getitem__, block.nodes) if n.op == "activation" and n.slope != 1)
    )
    between = " and ".join(bends)
    tail = ""
    if case == STREAM:
        tail = "; identity skips tie the value from its first writer to its last reader, so all of them enter"
    if not readers:
        only = "nothing reads it, so what writes it has no gradient"
    elif not writers and not biases:
        only = "nothing writes it, so it is 0 and what reads it has no gradient"
    elif number:
        only = "one number multiplies all of these channels, and takes up their scaling"
    elif block.diagonal:
        only = block.diagonal
    elif bends:
        only = f"{between} between: only scalings by positive numbers commute with it"
    elif block.size == 1:
        only = "one channel, which can be scaled"
    else:
        only = "every channel is in a group of its own, and can be scaled"
    groups = len(set(block.parts.tolist()))
    within = f" within each of the {groups} groups of channels" if groups > 1 else ""
    maps = "only trained free linear maps, sums and reorderings touch it"
    if any(graph[n].weight and graph[n].op in ("linear", "conv", "diagonal") and not trained(n) for n in block.nodes):
        maps = "only trained free linear maps, and frozen ones that treat its channels alike, touch it"
    return Words(
        name=f"{_names(writers)} | {_names(readers)}",
        case=case,
        vertex=only + tail,
        pair=f"{between} between: where it acts alike on u and v, on every sample, it commutes with mixing them{within}"
        + tail,
        matrix=f"{maps}: any mixing of its channels{within} can be undone" + tail,
        biases=f"{', '.join(biases)}: in-weights from a constant 1" if biases else "none",
        layers=(layers[0], layers[1]),
    )


def title(graph: LayerGraph, terms: Iterable[Term]) -> str:
    """Name a difference of two sets of weights by the layers on either side."""
    sides: list[list[Node]] = []
    for sign in (1, -1):
        names = dict.fromkeys(p.parameter for t in terms if t.sign == sign for p in t.pieces)
        sides.append([node for node in graph if node.weight and node.weight in names])
    return f"{_names(sides[0])} | {_names(sides[1])}"


def _names(nodes: list[Node]) -> str:
    names = list(dict.fromkeys(node.weight.removesuffix(".weight") for node in nodes))
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return " + ".join(names) or "nothing"


def _text(node: Node) -> str:
    return node.text or node.name


def _case(graph: LayerGraph, writers: list[Node], readers: list[Node], order: dict[str, int]) -> str:
    """Say which case of T45 a value is, by what writes and what reads it."""
    if not writers or not readers:
        return SEVERAL
    if min(order[r.name] for r in readers) < max(order[w.name] for w in writers):
        return STREAM
    before, behind = _side(graph, writers, before=True), _side(graph, readers, before=False)
    if (before, behind) == ("linear", "linear") and _inside(graph, writers[0], readers[0]):
        return "T45 (3)"
    cases = {
        ("linear", "linear"): "(1)",
        ("conv", "conv"): "(2)",
        ("block", "block"): "(4)",
        ("conv", "linear"): "(5)",
        ("conv", "block"): "(6)",
        ("block", "linear"): "(7)",
        ("linear", "block"): "(7)",
        ("linear", "conv"): "(7)",
        ("block", "conv"): "(7)",
    }
    return f"T45 {cases[before, behind]}" if (before, behind) in cases else SEVERAL


def _side(graph: LayerGraph, nodes: list[Node], *, before: bool) -> str:
    """Return "linear", "conv", "block" (Z and D, or Y and D, of a residual block) or ""."""
    if len(nodes) == 1:
        return nodes[0].op
    if len(nodes) != 2 or "linear" not in {node.op for node in nodes} or "conv" in {node.op for node in nodes}:
        return ""
    if not before:
        return "block" if nodes[0].inputs == nodes[1].inputs else ""
    sums = [graph.consumers(node.name) for node in nodes]
    return "block" if all(len(s) == 1 and s[0].op == "add" for s in sums) and sums[0] == sums[1] else ""


def _inside(graph: LayerGraph, first: Node, second: Node) -> bool:
    """Say whether two maps are Y and Z of a residual block."""
    consumers = graph.consumers(second.name)
    if len(consumers) != 1 or consumers[0].op != "add":
        return False
    value = first.inputs[0]
    others = [name for name in consumers[0].inputs if name != second.name]
    return any(name == value or graph[name].inputs == (value,) for name in others)
