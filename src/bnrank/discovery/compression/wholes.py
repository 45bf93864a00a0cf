"""Compression of modules of several segments: attention with separate projections, and all layers factored together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank.discovery.attention import FactoredAttention
from bnrank.discovery.compression import budget
from bnrank.discovery.compression.judging import Judge, tuned
from bnrank.discovery.compression.lowrank import Choice, Factoring
from bnrank.discovery.compression.parts import LINEAR, Counts, Parts, parameters, registered
from bnrank.discovery.compression.returned import alike
from bnrank.discovery.compression.stages import Step, inlined, most
from bnrank.discovery.compression.widths import Narrowing, pairs
from bnrank.discovery.gated import FactoredRecurrent
from bnrank.networks import Skipped
from bnrank.networks.replicas import copied

SPLIT = (FactoredAttention, FactoredRecurrent)
NARROW = 0.7  # of the tolerance for neurons and channels, before the layers are factored
SMALLEST = 1e-3  # scale, in multiples of the tolerance, at which hardly anything should change
STALLED = 0.5  # of the tolerance: a larger change there will not vanish
TUNED = (4.0, 2.0, 1.4, 1.0)  # multiples of the tolerance for the cuts before tuning


def split_up(net: nn.Module, x: Tensor) -> list[str]:
    """Replace attention and recurrent modules by ones made of linear layers, in place; return the names.

    These are ``nn.MultiheadAttention``, ``nn.LSTM``, ``nn.GRU`` and cells. The function is unchanged. One without which
    the module does not run on ``x`` or gives other outputs stays.
    """
    found = []
    for name, part in list(net.named_modules()):
        like: Any = next((kind for kind in SPLIT if kind.accepts(part)), None)
        if not name or like is None:
            continue
        nested = [module for module in net.modules() if getattr(module, "use_nested_tensor", False)]
        before, made = _output(net, x), like.like(part)
        if isinstance(made, FactoredRecurrent):
            made.unrolled = True
        put(net, name, made)
        after = _output(net, x)
        if before is not None and after is not None and alike(before, after):
            found.append(name)
        else:
            put(net, name, part)
            for module in nested:
                cast(Any, module).use_nested_tensor = True
    return found


def _output(net: nn.Module, x: Tensor) -> Any:
    """Return what a module returns; None where it does not run."""
    try:
        with torch.no_grad():
            return net(x.clone())
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        return None


def layer_widths(net: nn.Module, known: set[nn.Module] | None = None) -> tuple[tuple[str, int], ...]:
    """Return the linear and convolutional layers in order of registration, each with its number of units.

    Attention and recurrent modules count as the layers that they are split into. Modules in ``known`` are left out, and
    the others added to it: one with several names has the first.

    Examples
    --------
    >>> layer_widths(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
    (('0', 5), ('2', 2))
    >>> layer_widths(nn.MultiheadAttention(4, 2))
    (('q', 4), ('k', 4), ('v', 4), ('out', 4))
    """
    known = set() if known is None else known
    if net in known:
        return ()
    known.add(net)
    like: Any = next((kind for kind in SPLIT if kind.accepts(net)), None)
    if like is not None:
        return layer_widths(like.like(net))
    if isinstance(net, LINEAR):
        return (("", len(net.weight)),)
    return tuple(
        (".".join(filter(None, (own, name))), units)
        for own, part in net.named_children()
        for name, units in layer_widths(part, known)
    )


def put(net: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """Return the module with a submodule replaced, in place and wherever it is registered; the part for the name "".

    A ``nn.TransformerEncoder`` around a :class:`~bnrank.discovery.attention.FactoredAttention` no longer reads the
    weights of its first layer to pack sequences.
    """
    if not name:
        return part
    for holder, own in registered(net)[net.get_submodule(name)]:
        holder._modules[own] = part
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
    unseen : tuple of Skipped
        Layers that no gradient of the output reaches.
    """

    choice: Choice
    steps: tuple[Step, ...]
    change: float
    size: int
    unseen: tuple[Skipped, ...] = ()


def factored(
    judge: Judge, net: nn.Module, names: Sequence[str], whole: Counts, tol: float, tune: int, chunk_size: int
) -> Factored:
    """Return the outcome of fewest parameters: narrowed or not, factored by one exchange rate or by plain SVD, or not.

    With ``tune``, cuts at multiples of the tolerance are fine-tuned; those that end within it count.
    """
    outcomes, unseen = _tried(judge, net, names, whole, tol, tune, chunk_size)
    best = min(outcomes, key=lambda one: (one.size, one.change))
    return replace(best, unseen=tuple(unseen))


def _tried(
    judge: Judge, net: nn.Module, names: Sequence[str], whole: Counts, tol: float, tune: int, chunk_size: int
) -> tuple[list[Factored], list[Skipped]]:
    """Return the module as it is and the outcomes within the tolerance, and the layers that no gradient reaches."""
    outcomes = [Factored({}, (), 0.0, parameters(net))]
    if not names:
        return outcomes, []
    factoring = Factoring(judge, net, names, whole, chunk_size)
    unseen, factoring = factoring.unseen(), _sure(factoring, tol)
    outcomes += _outcomes(factoring, tol, tune, ("cost", "plain"), outcomes[0])
    if budget.current().over:
        return outcomes, unseen
    names = factoring.names
    narrowing = Narrowing(factoring, [pair for pair in pairs(net, names, judge.x) if pair.reader in names])
    got = most(lambda made: narrowing.change(made[0]), narrowing.at, NARROW * tol) if narrowing.pairs else None
    if got is not None and got[0][1]:
        (choice, kept), change = got
        slim = copied(net)
        for name, parts in choice.items():
            put(slim, name, copied(parts[0]))
        what = ", ".join(f"{name} {n} to {k}" for name, n, k in kept)
        step = Step("narrow", "", f"neurons or channels: {what}", change)
        start = Factored(choice, (step,), change, parameters(slim))
        outcomes.append(start)
        del factoring, narrowing  # their samples
        if not budget.current().over:
            outcomes += _outcomes(Factoring(judge, slim, names, whole, chunk_size), tol, tune, ("cost",), start)
    return outcomes, unseen


def _sure(factoring: Factoring, tol: float) -> Factoring:
    """Leave out the layers with few rows where factors that are exact on the samples of the fits change others.

    With fewer rows than units a layer has low rank on the samples of the fits at every scale: the change does not
    vanish with the scale, and no choice of ranks for the other layers makes up for it.
    """
    determined = factoring.determined()
    if len(determined) < len(factoring.names) and not budget.current().over:
        budget.current().trial("the smallest scale")
        if factoring.change(factoring.at(SMALLEST * tol)[0]) > STALLED * tol:
            factoring.names = determined
    return factoring


def _outcomes(factoring: Factoring, tol: float, tune: int, rules: Sequence[str], start: Factored) -> list[Factored]:
    """Return the outcomes within the tolerance of factoring a module, which ``start`` led to."""
    net, outcomes = factoring.net, []
    smallest = start.size
    for rule in rules:
        for factor in TUNED if tune else (1.0,):
            found = most(lambda made: factoring.change(made[0]), partial(factoring.at, rule=rule), factor * tol)
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


def _tuned(
    judge: Judge, net: nn.Module, choice: Choice, tune: int, change: float
) -> tuple[Choice, float, tuple[Step, ...]]:
    work = copied(net)
    for name, parts in choice.items():
        put(work, name, nn.Sequential(*copied(parts)))
    work.requires_grad_(False)
    (best,), found = tuned(judge, (work,), tune, list(choice))
    if found >= change:
        return choice, change, ()
    step = Step("tune", "", f"at most {tune} iterations of L-BFGS at fixed size", found)
    return {name: tuple(best.get_submodule(name)) for name in choice}, found, (step,)  # type: ignore[arg-type]


def merged(work: nn.Module, new: dict[str, Parts], choice: Choice, composites: Sequence[str]) -> dict[str, Parts]:
    """Return all replacements by name: those of segments, with factors inside them, of attentions and of layers.

    Parameters
    ----------
    work : torch.nn.Module
        The module with segments replaced and attentions split, before factoring.
    new : dict
        Replaced segments.
    choice : dict
        Factored layers of ``work``.
    composites : sequence of str
        Names of the modules that were split.
    """
    found = dict(new)
    touched = set()
    for name, parts in choice.items():
        segment = next((s for s in new if name.startswith(f"{s}.")), None)
        inside_of = next((a for a in composites if f"{name}.".startswith(f"{a}.")), None)
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
    for name in composites:
        parent, composite = name.rpartition(".")[0], work.get_submodule(name)
        fused = isinstance(work.get_submodule(parent), nn.TransformerEncoderLayer)
        also = fused and any(f.startswith(f"{parent}.") for f in found)
        if name not in touched and not also:
            continue
        made: Any = copied(composite)
        for part in [part for part in choice if part.startswith(f"{name}.")]:
            parts = choice[part]
            put(made, part.removeprefix(f"{name}."), parts[0] if len(parts) == 1 else nn.Sequential(*parts))
        found[name] = (made.refreshed(),)
    return found
