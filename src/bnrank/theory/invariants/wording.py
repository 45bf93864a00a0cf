"""Names of conserved quantities, and the reasons for their conservation."""

from collections.abc import Iterable
from dataclasses import dataclass

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.theory.invariants.classes import Block
from bnrank.theory.invariants.conserved import Term

STREAM = "T44-T45, identity stream"
SEVERAL = "T44-T45"
SUMS = "T44-T45, sums"
STILL = "no gradient"
BEYOND = "T45, beyond the source"


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
    """Return the texts for a block of classes; ``number`` for one learnable number that multiplies several."""
    slots = block.slots
    order = {node.name: i for i, node in enumerate(graph)}
    writers, readers = (
        sorted((graph[s.node] for s in slots if s.role in roles), key=lambda node: order[node.name])
        for roles in (("write", "scale out"), ("read", "scale in"))
    )
    layers = tuple(tuple(dict.fromkeys(s.parameter for s in slots if s.sign == sign)) for sign in (1, -1))
    biases = [s.parameter for s in slots if s.role == "bias"]
    still = ""
    if not readers:
        still = "nothing reads it, so what writes it has no gradient and stays as it is"
    elif not writers and not biases:
        still = "nothing writes it, so it is 0, and what reads it has no gradient and stays as it is"
    case = STILL if still else _case(graph, writers, readers, order)
    nodes = [graph[name] for name in block.nodes]
    bends = dict.fromkeys(n.text or n.name for n in nodes if n.op == "activation" and n.slope != 1)
    between = " and ".join(bends)
    stream = "; identity skips tie the value from its first writer to its last reader, so all of them enter"
    tail = stream if case == STREAM else ""
    if still:
        only = still
    elif number:
        only = "one number multiplies all of these channels, and takes up their scaling"
    elif block.diagonal:
        only = block.diagonal
    elif bends:
        only = f"{between} between: only scalings by positive numbers commute with it"
    elif block.size == 1:
        only = "one channel, which can be scaled"
    else:
        only = "every channel is a separate group, and can be scaled"
    groups = len(set(block.parts.tolist()))
    within = f" within each of the {groups} groups of channels" if groups > 1 else ""
    maps = "only trained free linear maps, sums and reorderings touch it"
    if any(n.op in ("linear", "conv", "diagonal") and n.weight not in graph.trained for n in nodes):
        maps = "only trained free linear maps, and frozen ones that treat its channels alike, touch it"
    return Words(
        name=f"{_names(writers)} | {_names(readers)}",
        case=case,
        vertex=only + tail,
        pair=f"{between} between: where it acts alike on u and v, on every sample, it commutes with mixing them{within}"
        + tail,
        matrix=still or f"{maps}: any mixing of its channels{within} can be undone" + tail,
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


def _case(graph: LayerGraph, writers: list[Node], readers: list[Node], order: dict[str, int]) -> str:
    """Return the case of T45 of a value, by what writes and what reads it."""
    if not writers or not readers:
        return SEVERAL
    if min(order[r.name] for r in readers) < max(order[w.name] for w in writers):
        return STREAM
    before, behind = _side(graph, writers, before=True), _side(graph, readers, before=False)
    if (before, behind) == ("linear", "linear") and _skipped(graph, writers[0], readers[0]) is not None:
        return "T45 (3)"
    cases = {
        ("linear", "linear"): "T45 (1)",
        ("conv", "conv"): "T45 (2)",
        ("block", "block"): "T45 (4)",
        ("conv", "linear"): "T45 (5)",
        ("conv", "block"): "T45 (6)",
        ("block", "linear"): "T45 (7)",
        ("linear", "block"): "T45 (7)",
        ("linear", "conv"): BEYOND,
        ("block", "conv"): BEYOND,
    }
    several = SUMS if len(writers) > 1 or len(readers) > 1 else SEVERAL
    return cases.get((before, behind), several)


def _side(graph: LayerGraph, nodes: list[Node], *, before: bool) -> str:
    """Return "linear", "conv", "block" (Z and D, or Y and D, of a residual block) or ""."""
    if len(nodes) == 1:
        return nodes[0].op
    if len(nodes) != 2:
        return ""
    for one, skip in (nodes, nodes[::-1]):
        others = [n for n in graph if n.op == "linear"]
        pairs = [(y, one) for y in others] if before else [(one, z) for z in others]
        if one.op == "linear" and any(_skipped(graph, y, z) is skip for y, z in pairs):
            return "block"
    return ""


def _skipped(graph: LayerGraph, first: Node, second: Node) -> Node | None:
    """Return D where two maps are Y and Z of a block x -> Z sigma(Y x) + D x; the sum itself where D is the identity.

    Between Y and Z there is an activation at most. D is the identity or trained: diagonal or any matrix.
    """
    inner = graph[second.inputs[0]]
    if inner.op == "activation":
        inner = graph[inner.inputs[0]]
    if inner is not first:
        return None
    consumers = graph.consumers(second.name)
    if len(consumers) != 1:
        return None
    total, value = consumers[0], first.inputs[0]
    if total.op != "add" or len(total.inputs) != 2 or total.factors != (1.0, 1.0):
        return None
    others = [name for name in total.inputs if name != second.name]
    if len(others) != 1:
        return None
    skip = graph[others[0]]
    if others[0] == value:
        return total
    kept = skip.op in ("linear", "diagonal") and skip.weight in graph.trained
    return skip if kept and skip.inputs == (value,) else None
