"""Compression of modules of several segments: attention with separate projections, and all layers factored together."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bnrank.discovery.compression import budget
from bnrank.discovery.compression.judging import Judge, tuned
from bnrank.discovery.compression.lowrank import Choice, Factoring
from bnrank.discovery.compression.parts import Counts, Parts, parameters
from bnrank.discovery.compression.stages import Step, inlined, most
from bnrank.discovery.compression.widths import Narrowing, pairs
from bnrank.networks.attention import FactoredAttention

NARROW = (0.7,)  # of the tolerance for neurons and channels, before the layers are factored
TUNED = (4.0, 2.0, 1.4, 1.0)  # multiples of the tolerance for the cuts before tuning


def split_attention(net: nn.Module) -> list[str]:
    """Replace each ``nn.MultiheadAttention`` by one with separate projections, in place; return the names.

    The function is unchanged. One that is registered in several places stays.
    """
    found = []
    for name, part in list(net.named_modules(remove_duplicate=False)):
        if name and FactoredAttention.accepts(part) and list(net.modules()).count(part) == 1:
            put(net, name, FactoredAttention.like(part))
            found.append(name)
    return found


def put(net: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """Return the module with a submodule replaced, in place; the part itself for the name "".

    A ``nn.TransformerEncoder`` around a :class:`~bnrank.networks.attention.FactoredAttention` no longer reads the
    weights of its first layer to pack sequences.
    """
    if not name:
        return part
    parent, _, own = name.rpartition(".")
    net.get_submodule(name)
    setattr(net.get_submodule(parent), own, part)
    if isinstance(part, FactoredAttention):
        for module in net.modules():
            if isinstance(module, nn.TransformerEncoder) and part in set(module.modules()):
                module.use_nested_tensor = False
    return net


@dataclass(frozen=True)
class Factored:
    """A module whose layers are factored.

    Attributes
    ----------
    choice : dict
        From names of layers to their factors.
    steps : tuple of Step
        What was done.
    change : float
        The change of the output.
    size : int
        Number of parameters left.
    """

    choice: Choice
    steps: tuple[Step, ...]
    change: float
    size: int


def factored(
    judge: Judge, net: nn.Module, names: Sequence[str], whole: Counts, tol: float, tune: int, chunk_size: int
) -> Factored:
    """Return the outcome of fewest parameters: narrowed or not, factored by one exchange rate or by plain SVD, or not.

    With ``tune``, cuts at multiples of the tolerance are fine-tuned; those that end within it count.
    """
    outcomes = [Factored({}, (), 0.0, parameters(net))]
    if not names:
        return outcomes[0]
    factoring = Factoring(judge, net, names, whole, chunk_size)
    found = _outcomes(factoring, tol, tune, (False, True), outcomes[0])
    determined = factoring.determined()
    if not found and len(determined) < len(factoring.names):  # one layer that fits only the samples spoils every choice
        factoring.names = determined
        found = _outcomes(factoring, tol, tune, (False, True), outcomes[0])
    outcomes += found
    narrowing = Narrowing(factoring, pairs(net, names, judge.x)) if not budget.current().over else None
    for part in NARROW if narrowing is not None and narrowing.pairs else ():
        got = most(lambda made: factoring.change(made[0]), narrowing.at, part * tol)  # type: ignore[union-attr]
        if got is None or not got[0][1]:
            continue
        (choice, kept), change = got
        slim = copy.deepcopy(net)
        for name, parts in choice.items():
            put(slim, name, copy.deepcopy(parts[0]))
        what = ", ".join(f"{name} {n} to {k}" for name, n, k in kept)
        start = Factored(
            choice, (Step("narrow", "", f"neurons or channels: {what}", change),), change, parameters(slim)
        )
        outcomes.append(start)
        if not budget.current().over:
            outcomes += _outcomes(Factoring(judge, slim, names, whole, chunk_size), tol, tune, (False,), start)
    return min(outcomes, key=lambda one: (one.size, one.change))


def _outcomes(factoring: Factoring, tol: float, tune: int, rules: Sequence[bool], start: Factored) -> list[Factored]:
    """Return the outcomes within the tolerance of factoring a module, which ``start`` led to."""
    net, outcomes = factoring.net, []
    smallest = start.size
    for plain in rules:
        for factor in TUNED if tune else (1.0,):
            found = most(lambda made: factoring.change(made[0]), _at(factoring, plain), factor * tol)
            if found is None or not found[0][1]:
                continue
            (choice, ranks), change = found
            saved = [parameters(net.get_submodule(name)) - sum(map(parameters, new)) for name, new in choice.items()]
            size = start.size - sum(saved)
            what = ", ".join(f"{name} to rank {k}" for name, k in ranks)
            steps: tuple[Step, ...] = (Step("factor", "", what, change),)
            if tune and size <= smallest:
                choice, change, more = _tuned(factoring.judge, net, choice, tune, change)
                steps += more
            if change <= tol:
                smallest = min(smallest, size)
                outcomes.append(Factored({**start.choice, **choice}, (*start.steps, *steps), change, size))
    return outcomes


def _at(factoring: Factoring, plain: bool) -> Callable[[float], Any]:
    return lambda scale: factoring.at(scale, plain)


def _tuned(
    judge: Judge, net: nn.Module, choice: Choice, tune: int, change: float
) -> tuple[Choice, float, tuple[Step, ...]]:
    work = copy.deepcopy(net)
    for name, parts in choice.items():
        put(work, name, nn.Sequential(*copy.deepcopy(parts)))
    work.requires_grad_(False)
    (best,), found = tuned(judge, (work,), tune, list(choice))
    if found >= change:
        return choice, change, ()
    step = Step("tune", "", f"at most {tune} iterations of L-BFGS at fixed size", found)
    return {name: tuple(best.get_submodule(name)) for name in choice}, found, (step,)  # type: ignore[arg-type]


def merged(work: nn.Module, new: dict[str, Parts], choice: Choice, attentions: Sequence[str]) -> dict[str, Parts]:
    """Return all replacements by name: those of segments, with factors inside them, of attentions and of layers.

    Parameters
    ----------
    work : torch.nn.Module
        The module with segments replaced and attentions split, before factoring.
    new : dict
        Replaced segments.
    choice : dict
        Factored layers of ``work``.
    attentions : sequence of str
        Names of the attentions that were split.
    """
    found = dict(new)
    touched = set()
    for name, parts in choice.items():
        segment = next((s for s in new if name.startswith(f"{s}.")), None)
        inside_of = next((a for a in attentions if name.startswith(f"{a}.")), None)
        if inside_of is not None:
            touched.add(inside_of)
        elif segment is not None:
            continue
        else:
            found[name] = parts
    for segment in new:
        inside = {
            name.removeprefix(f"{segment}."): parts for name, parts in choice.items() if name.startswith(f"{segment}.")
        }
        own = {name: parts for name, parts in inside.items() if "." not in name}
        for name in inside.keys() - own.keys():
            index, _, rest = name.partition(".")
            put(found[segment][int(index)], rest, nn.Sequential(*inside[name]))
        found[segment] = inlined(found[segment], own)
    for name in attentions:
        parent = name.rpartition(".")[0]
        layer = work.get_submodule(parent)
        fused = isinstance(layer, nn.TransformerEncoderLayer)
        if name in touched or (fused and any(f.startswith(f"{parent}.") for f in found)):
            attention: Any = copy.deepcopy(work.get_submodule(name))
            for part in ("q", "k", "v", "out"):
                if f"{name}.{part}" in choice:
                    setattr(attention, part, nn.Sequential(*choice[f"{name}.{part}"]))
            found[name] = (attention.refreshed(),)
    return found
