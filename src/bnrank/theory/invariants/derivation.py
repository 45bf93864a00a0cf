"""Conserved quantities of blocks and stages, with their names and the reasons for their conservation."""

from typing import Any

import numpy as np

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.theory.invariants.classes import Block, stages
from bnrank.theory.invariants.conserved import Conserved, layers_of
from bnrank.theory.invariants.entries import Entries
from bnrank.theory.invariants.patterns import Pair

STREAM = "T44-T45, identity stream"
SEVERAL = "T44-T45"
SUMS = "T44-T45, sums"
STILL = "no gradient"
BEYOND = "T45, beyond the source"
FLOW = "gradient flow; any loss, any data"
PATTERNS = "gradient flow; neurons u and v active on the same samples"
CROSSED = "every path from the input to the output crosses each of the two cuts once"
CASES = {
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


def quantities(block: Block, entries: Entries, *, number: bool = False) -> list[Conserved]:
    """Return the conserved quantities of a block; ``number`` for a learnable number that multiplies several classes."""
    graph = entries.graph
    writers, readers = (
        [graph[slot.node] for slot in block.slots if slot.role in roles]
        for roles in (("write", "scale out"), ("read", "scale in"))
    )
    biases = ", ".join(slot.parameter for slot in block.slots if slot.role == "bias")
    why = "nothing reads it, so what writes it" if not readers else "nothing writes it, so it is 0, and what reads it"
    still = "" if readers and (writers or biases) else f"{why} has no gradient and stays as it is"
    case = STILL if still else _case(entries, writers, readers)
    name = f"{_names(writers)} | {_names(readers)}"
    groups = len(np.unique(block.parts))
    within = f" within each of the {groups} groups of channels" if groups > 1 else ""
    tail = "; identity skips tie the value from its first writer to its last reader, so all of them enter"
    tail = tail if case == STREAM else ""
    held = f"{biases}: in-weights from a constant 1" if biases else "none"
    common: dict[str, Any] = {"biases": held, "terms": block.terms, "parts": block.parts, "every": entries.shapes}
    mixed, activated = groups < block.size and not block.diagonal, block.activations.size > 0
    if mixed and not activated:
        why = still or f"{_mixing(entries, block)}: any mixing of its channels{within} can be undone{tail}"
        return [Conserved(f"matrix {name}", "matrix", (case,), why, FLOW, **common)]
    nodes = [graph[node] for node in block.nodes]
    between = " and ".join(dict.fromkeys(n.text or n.name for n in nodes if n.op == "activation" and n.slope != 1))
    only = f"{between} between: only scalings by positive numbers commute with it"
    if number or block.diagonal or not between:
        only = _scaling(block, number)
    ids = ("T44", case) if case.startswith("T45 (") else (STILL if still else "T44",)
    found = [Conserved(f"vertex {name}", "vertex", ids, still or only + tail, FLOW, **common)]
    if activated and mixed and not still:
        alike = f"{between} between: where it acts alike on u and v, on every sample, it commutes with mixing them"
        owners = entries.node_of(block.activations)
        chosen, node_of = np.unique(owners, return_inverse=True)
        common |= {"graph": graph, "nodes": tuple(graph.nodes[i].name for i in chosen)}
        common |= {"node_of": node_of.reshape(owners.shape), "entry_of": block.activations - entries.starts[owners]}
        found.append(Pair(f"pair {name}", "pair", ("T44", "T47"), alike + within + tail, PATTERNS, **common))
    return found


def _mixing(entries: Entries, block: Block) -> str:
    nodes = [entries.graph[name] for name in block.nodes]
    if any(n.op in ("linear", "conv", "diagonal") and n.weight not in entries.graph.trained for n in nodes):
        return "only trained free linear maps, and frozen ones that treat its channels alike, touch it"
    return "only trained free linear maps, sums and reorderings touch it"


def _scaling(block: Block, number: bool) -> str:
    if number:
        return "one number multiplies all of these channels, and takes up their scaling"
    one = "one channel, which can be scaled" if block.size == 1 else ""
    return block.diagonal or one or "every channel is a separate group, and can be scaled"


def differences(entries: Entries, found: list[Block]) -> list[Conserved]:
    """Return the quantities of T46, the differences of the cut before and the cut after every stage."""
    graph, result = entries.graph, []
    for stage in stages(entries, found):
        every = [term for block in stage.blocks for term in block.terms]
        terms = tuple(term for term in every if not stage.inside.issuperset(piece.parameter for piece in term.pieces))
        before, behind = layers_of(terms)
        if not before or not behind:  # nothing reads it, or nothing writes it: no path goes through
            continue
        name = " | ".join(_names([node for node in graph if node.weight in side]) for side in (before, behind))
        biases = ", ".join(name for name in before if any(node.bias == name for node in graph))
        held = f"a cut holds the biases behind it as well; {biases} are behind one cut only"
        held = held if biases else "no biases between the cuts"
        parts = np.zeros(sum(block.size for block in stage.blocks), dtype=np.int64)
        fields: dict[str, Any] = {"terms": terms, "parts": parts, "cuts": stage.cuts, "every": entries.shapes}
        result.append(Conserved(f"layer {name}", "layer", ("T46",), CROSSED, FLOW, held, **fields))
    return result


def _names(nodes: list[Node]) -> str:
    names = list(dict.fromkeys(node.weight.removesuffix(".weight") for node in nodes))
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} more"]
    return " + ".join(names) or "nothing"


def _case(entries: Entries, writers: list[Node], readers: list[Node]) -> str:
    """Return the case of T45 that applies to a value, from its writers and readers in the order of the network."""
    graph = entries.graph
    if not writers or not readers:
        return SEVERAL
    if entries.start[readers[0].name] < entries.start[writers[-1].name]:
        return STREAM
    before = writers[0].op if len(writers) == 1 else _block(graph, writers, before=True)
    behind = readers[0].op if len(readers) == 1 else _block(graph, readers, before=False)
    adds = any(node.op == "add" for node in graph)
    if (before, behind) == ("linear", "linear") and adds and _skipped(graph, writers[0], readers[0]) is not None:
        return "T45 (3)"
    return CASES.get((before, behind), SUMS if len(writers) > 1 or len(readers) > 1 else SEVERAL)


def _block(graph: LayerGraph, nodes: list[Node], *, before: bool) -> str:
    """Return "block" if two nodes are Z and D, or Y and D, of a residual block, else ""."""
    for one, skip in (nodes, nodes[::-1]) if len(nodes) == 2 else ():
        others = [n for n in graph if n.op == "linear"]
        pairs = [(y, one) for y in others] if before else [(one, z) for z in others]
        if one.op == "linear" and any(_skipped(graph, y, z) is skip for y, z in pairs):
            return "block"
    return ""


def _skipped(graph: LayerGraph, first: Node, second: Node) -> Node | None:
    """Return D if two maps are Y and Z of a block x -> Z sigma(Y x) + D x, or the sum node if D is the identity.

    Between Y and Z there is at most an activation. D is the identity or trained: diagonal or any matrix.
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
    if total.op != "add" or total.factors != (1.0, 1.0) or total.inputs[0] == total.inputs[1]:
        return None
    (other,) = {*total.inputs} - {second.name}
    if other == value:
        return total
    skip = graph[other]
    kept = skip.op in ("linear", "diagonal") and skip.weight in graph.trained
    return skip if kept and skip.inputs == (value,) else None
