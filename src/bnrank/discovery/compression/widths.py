"""Neurons and channels removed anywhere in a module, where one layer alone reads them."""

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank.discovery.attention import FactoredAttention
from bnrank.discovery.compression.fits import with_weight
from bnrank.discovery.compression.lowrank import Choice, Factoring, step_of, swapped
from bnrank.discovery.compression.neurons import by_unit, forward_selection, rewritten, takes_constants
from bnrank.discovery.compression.parts import cheapest, first_input, share
from bnrank.discovery.compression.returned import alike
from bnrank.networks.replicas import copied

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
TRIED = 4  # samples on which it is checked that nothing else reads a layer's units


@dataclass(frozen=True)
class Pair:
    """A layer, the only layer that reads its output, unit by unit, and batch normalizations in between, by name."""

    layer: str
    reader: str
    norms: tuple[str, ...]


def pairs(net: nn.Module, names: Sequence[str], x: Tensor) -> list[Pair]:
    """Return the layers whose units can be removed: consecutive ones, by trial.

    Half of the units of the first layer, drawn at random, are removed with their weights in the next one; then the
    first unit alone, which leaves a number that nothing that groups units (heads) divides. The pair counts if the
    module then computes what it does when the next layer ignores them. Both have to run once on the few samples of the
    trial, which may not reach all experts of a mixture.
    """
    order: list[str] = []
    with ExitStack() as stack, torch.no_grad():
        for name, part in net.named_modules():
            if name in names or type(part) in NORMS:
                run = lambda _, __, out, name=name: order.extend([name] * bool(out.numel()))  # noqa: E731
                stack.callback(part.register_forward_hook(run).remove)
        net(x[:TRIED].clone())
    found = []
    generator = torch.Generator().manual_seed(0)
    for name, reader in itertools.pairwise(names):
        layer, follower = (cast(Any, net.get_submodule(one)) for one in (name, reader))
        n = len(layer.weight)
        if order.count(name) != 1 or order.count(reader) != 1:
            continue
        owners = (net.get_submodule(one.rpartition(".")[0]) for one in (name, reader))
        if any(isinstance(owner, FactoredAttention) for owner in owners):  # it has the sizes that it says
            continue
        if n < 2 or follower.weight[0].numel() % n:
            continue
        between = order[order.index(name) + 1 : order.index(reader)]
        norms = tuple(one for one in between if cast(Any, net.get_submodule(one)).num_features == n)
        pair = Pair(name, reader, norms)
        half = torch.randperm(n, generator=generator)[: n // 2].sort().values
        if all(_reads_alone(net, pair, units, x[:TRIED]) for units in (half, torch.arange(1, n))):
            found.append(pair)
    return found


def _reads_alone(net: nn.Module, pair: Pair, units: Tensor, x: Tensor) -> bool:
    """Return whether the module without the other units of a layer computes what it does when its reader ignores them.

    It does not where it cannot be run without them.
    """
    n, reader = len(cast(Any, net.get_submodule(pair.layer)).weight), cast(Any, net.get_submodule(pair.reader))
    weight = torch.zeros_like(by_unit(reader, n))
    weight[:, units] = by_unit(reader, n)[:, units]
    ignoring = with_weight(reader, weight, reader.bias)
    reading = with_weight(reader, weight[:, units], reader.bias)
    with torch.no_grad():
        try:
            with swapped(net, {pair.reader: (ignoring,)}):
                expected = net(x.clone())
            with swapped(net, slimmed(net, pair, units) | {pair.reader: (reading,)}):
                got = net(x.clone())
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever a forward raises where it relies on a width
            return False
    return alike(got, expected)


def slimmed(net: nn.Module, pair: Pair, units: Tensor, layer: Any = None) -> Choice:
    """Return the first layer of a pair, or a given one in its place, and the normalizations, with some units only."""
    layer = cast(Any, net.get_submodule(pair.layer)) if layer is None else layer
    bias = None if layer.bias is None else layer.bias[units]
    choice: Choice = {pair.layer: (with_weight(layer, layer.weight[units].flatten(1), bias),)}
    for name in pair.norms:
        norm: Any = copied(net.get_submodule(name))
        norm.num_features = len(units)
        for kind in ("running_mean", "running_var"):
            if getattr(norm, kind) is not None:
                setattr(norm, kind, getattr(norm, kind)[units].clone())
        for kind in ("weight", "bias"):
            if getattr(norm, kind) is not None:
                setattr(norm, kind, nn.Parameter(getattr(norm, kind).detach()[units].clone()))
        choice[name] = (norm,)
    return choice


class Narrowing:
    """The choice of the units of all pairs of layers, by one exchange rate between change and cost.

    Parameters
    ----------
    factoring : Factoring
        Has the module, the samples and the metrics.
    found : sequence of Pair
        In order of execution.
    """

    def __init__(self, factoring: Factoring, found: Sequence[Pair]) -> None:
        self.factoring, self.net = factoring, factoring.net
        self.pairs = [pair for pair in found if pair.reader in factoring.metrics]
        self.rows: dict[str, Tensor] = {}
        """Original inputs of the readers, (rows, units)."""
        units = {pair.reader: len(cast(Any, self.net.get_submodule(pair.layer)).weight) for pair in self.pairs}
        with ExitStack() as stack, torch.no_grad():
            for name, n in units.items():
                part = self.net.get_submodule(name)

                def note(layer: nn.Module, given: Any, by_name: Any, name: str = name, n: int = n) -> None:
                    own = _rows(layer, first_input(given, by_name), n)
                    self.rows[name] = own[:: step_of(*own.shape)].clone()

                stack.callback(part.register_forward_pre_hook(note, with_kwargs=True).remove)
            self.net(factoring.judge.x.clone())
        self.ranked = {pair.reader: self._ranked(pair) for pair in self.pairs}

    def at(self, scale: float) -> tuple[Choice, list[tuple[str, int, int]]]:
        """Return the replaced parts, and for every narrowed layer its name and its units before and after."""
        stubs = {reader: (_Reread(self, reader, scale),) for reader in self.ranked}
        choice: Choice = {}
        with torch.no_grad(), swapped(self.net, stubs):
            self.factoring.latest = choice, self.net(self.factoring.judge.x.clone())
        kept = []
        for pair in self.pairs:
            stub = stubs[pair.reader][0]
            if stub.units is not None:
                before = choice.get(pair.layer, (None,))[0]
                choice.update(slimmed(self.net, pair, stub.units, before) | {pair.reader: (stub.reader,)})
                kept.append((pair.layer, len(self.ranked[pair.reader][0]), len(stub.units)))
        return choice, kept

    def change(self, choice: Choice) -> float:
        """Return the change of the module's output without some units; infinite where it cannot be run without them."""
        try:
            return self.factoring.change(choice)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # whatever a forward raises where it relies on a width
            return math.inf

    def chosen(self, name: str, value: Tensor, scale: float) -> tuple[Tensor, nn.Module] | None:
        """Return the units of its input that a reader keeps, and the reader that makes up for the others."""
        order, tails, price = self.ranked[name]
        prices = price * torch.arange(1, len(tails), dtype=torch.float64)
        count = 1 + cheapest(prices, tails[1:], scale * self.factoring.judge.scale)
        if count == len(order):
            return None
        units = order[:count].sort().values
        rows = _rows(self.net.get_submodule(name), value, len(order))
        present = rows[:: step_of(*rows.shape)]
        if len(present) != len(self.rows[name]):  # an expert that other samples now reach
            present = self.rows[name]
        return units, rewritten(self._original(name), self.rows[name], present[:, units])

    def _original(self, name: str) -> Any:
        part = self.net.get_submodule(name)
        return part.layer if isinstance(part, _Reread) else part

    def _ranked(self, pair: Pair) -> tuple[Tensor, Tensor, float]:
        """Return the units by importance, the change to first order when so many are kept, and the cost of one."""
        layer, reader = (cast(Any, self.net.get_submodule(name)) for name in (pair.layer, pair.reader))
        rows, sizes = self.rows[pair.reader], self.factoring.sizes
        n = rows.shape[1]
        seen = torch.einsum("po,ouk->upk", self.factoring.metrics[pair.reader], by_unit(reader, n)).flatten(1)
        order, squares = forward_selection(rows - rows.mean(0) if takes_constants(reader) else rows, seen @ seen.T)
        own, read = layer.weight[0].numel(), reader.weight.numel() / n
        work = own * sizes[pair.layer] / n + read * sizes[pair.reader] / len(reader.weight)
        price = share((own + read + (layer.bias is not None), work, 0), self.factoring.whole)
        return order, (squares / len(rows)).clamp(min=0).sqrt(), price


class _Reread(nn.Module):
    """A reader that, when it runs, is fitted to some units of its input."""

    def __init__(self, narrowing: Narrowing, name: str, scale: float) -> None:
        super().__init__()
        self.name, self.scale = name, scale
        self._narrowing = narrowing
        self.layer: Any = narrowing.net.get_submodule(name)
        self.units: Tensor | None = None
        self.reader: Any = None

    def forward(self, input: Tensor) -> Tensor:
        value, found = input, self._narrowing.chosen(self.name, input, self.scale)
        if found is None:
            return cast(Tensor, self.layer(value))
        self.units, self.reader = found
        n = len(self._narrowing.ranked[self.name][0])
        if not isinstance(self.layer, nn.Linear):
            return cast(Tensor, self.reader(value[:, self.units]))
        return cast(Tensor, self.reader(value.unflatten(-1, (n, -1))[..., self.units, :].flatten(-2)))


def _rows(layer: nn.Module, value: Tensor, n: int) -> Tensor:
    """Return the input of a layer as rows over samples and positions and columns over units."""
    if isinstance(layer, _Reread):
        layer = layer.layer
    if isinstance(layer, nn.Linear):
        return value.unflatten(-1, (n, -1)).transpose(-2, -1).reshape(-1, n).double()
    return value.movedim(1, -1).reshape(-1, n).double()
