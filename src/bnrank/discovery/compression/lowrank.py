"""Low-rank factors of linear layers anywhere in a module, their ranks chosen together."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.fits import AffineFit, gram_fit, pointwise_pair
from bnrank.discovery.compression.judging import Judge, check_gradient
from bnrank.discovery.compression.parts import Counts, Parts, channel_rows, cheapest, is_linear, registered, share
from bnrank.networks import Skipped

MAX_ROWS = 8192  # (samples and positions) of one fit
MAX_VALUES = 2**20  # of the stored outputs of one layer
ROWS = 2  # rows per unit of a layer, from which on its rank on the samples tells about others
RULES = ("cost", "parameters", "plain")
DRAWS = 8  # random directions of the output per sample, where there are more outputs
IDLE = "no sample reaches it"
UNSEEN = (
    "no gradient of the output reaches it (torch.no_grad, detach, or an output that does not depend on it): "
    "only its activation-aware SVD was tried"
)

Choice = dict[str, Parts]
"""From the names of layers to the parts that replace them."""


def places(net: nn.Module, x: Tensor, aside: Sequence[Skipped] = ()) -> tuple[list[str], list[Skipped]]:
    """Return the names of the linear layers that can be replaced, in order of execution, and the others.

    A layer can be replaced if it runs, once only where it has several names, shares no parameter, nothing else reads
    its weight, and it is not among those ``aside``.
    """
    names = {name: part for name, part in net.named_modules() if is_linear(part)}
    known_as = Counter(id(part) for _, part in net.named_modules(remove_duplicate=False))
    holders = Counter(id(p) for part in net.modules() for p in part._parameters.values() if p is not None)
    calls: list[str] = []
    with ExitStack() as stack, torch.no_grad():
        for name, part in names.items():
            note = part.register_forward_hook(lambda *_, name=name: calls.append(name))
            stack.callback(note.remove)
        net(x[:2].clone())
    times, found, skipped = Counter(calls), [], [part for part in aside if part.name in names]
    for name, part in names.items():
        if (known_as[id(part)] > 1 and times[name] > 1) or any(holders[id(p)] > 1 for p in part.parameters()):
            skipped.append(Skipped.part(name, part, "its parameters are used in more than one place"))
        elif not times[name]:
            skipped.append(Skipped.part(name, part, "not called"))
    left = {part.name for part in skipped}
    found = [name for name in dict.fromkeys(calls) if name not in left]
    for name in list(found):
        try:
            with swapped(net, {name: (nn.Sequential(names[name]),)}), torch.no_grad():
                net(x[:2].clone())
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            why = f"the module cannot be run with another module in its place: {error}"
            skipped.append(Skipped(name, "segment", why))
            found.remove(name)
    return found, skipped


@contextmanager
def swapped(net: nn.Module, choice: Mapping[str, Sequence[nn.Module]]) -> Iterator[nn.Module]:
    """Run a module with some layers replaced by parts in sequence, wherever they are registered."""
    where = registered(net)
    originals = {name: net.get_submodule(name) for name in choice}
    try:
        for name, parts in choice.items():
            made = parts[0] if len(parts) == 1 else nn.Sequential(*parts)
            for holder, own in where[originals[name]]:
                holder._modules[own] = made
        yield net
    finally:
        for part in originals.values():
            for holder, own in where[part]:
                holder._modules[own] = part


class _Refit(nn.Module):
    """A layer that is replaced when it runs, by factors fitted from its present output to its original one."""

    def __init__(self, name: str, layer: nn.Module, factoring: "Factoring", scale: float, rule: str) -> None:
        super().__init__()
        self.name, self.factoring, self.scale, self.rule = name, factoring, scale, rule
        self.layer = layer
        self.choice: tuple[Parts, int] | None = None
        self.called = False

    def forward(self, input: Tensor) -> Tensor:
        value, out = input, self.layer(input)
        if not self.called or self.name not in self.factoring.repeated:
            self.choice = self.factoring.chosen(self.name, self.layer, out, self.scale, self.rule)
        self.called = True
        if self.choice is None:
            return out
        for part in self.choice[0]:
            value = part(value)
        return value


class Factoring:
    """The choice of ranks for several layers of a module, by one exchange rate between change and cost.

    A layer a -> W a + b whose values on the samples lie near c + B t, t in R^k, becomes a -> A W a and t -> c' + B t,
    with t chosen in the metric of the output. For a convolution, t has k channels and the second layer is a pointwise
    (one-tap) convolution. By the rule "cost", the price of a rank is its share of parameters, multiply-adds and layers,
    by the rule "parameters" that of parameters alone. By the rule "plain" the metric is the identity, every layer loses
    the same fraction of the variance of its output, and nothing is refitted: this is the truncated singular value
    decomposition of W C^{1/2}, C the covariance of the layer's inputs (activation-aware SVD).

    Parameters
    ----------
    judge : Judge
        Measures changes; its ``x`` is the input of ``net`` and its ``rest`` follows the output of ``net``.
    net : torch.nn.Module
        In eval mode, with parameters that require gradients.
    names : sequence of str
        Its layers that may be factored, see :func:`places`.
    whole : tuple of int
        The reference of relative costs.
    chunk_size : int, optional
        Samples per block, where ``rest`` does not depend on which samples it follows.
    """

    def __init__(
        self, judge: Judge, net: nn.Module, names: Sequence[str], whole: Counts, chunk_size: int | None = None
    ) -> None:
        self.judge, self.net, self.whole = judge, net, whole
        self.names = list(names)
        self.rows: dict[str, Tensor] = {}
        """Original outputs of each layer, (rows, units)."""
        self.sizes: dict[str, int] = {}
        """Entries of the output of each layer for one sample."""
        self.repeated: set[str] = set()
        """Layers that run several times, as those of a recurrent module: fitted to the original outputs of all runs."""
        self.idle: list[str] = []
        """Layers that no sample reaches, as those of an expert that is never chosen; not among ``names``."""
        self.latest: tuple[Choice, Tensor] | None = None
        """The latest choice that was made by running the module, and the output with it on the samples of the fits."""
        self.metrics = self._measured(chunk_size)
        """Square root of the mean of J^T J over samples, J from the output of the layer to that of the module."""

    def at(self, scale: float, rule: str = "cost") -> tuple[Choice, list[tuple[str, int]]]:
        """Return the replaced layers, and their names with their ranks.

        Parameters
        ----------
        scale : float
            The relative change of the output that is worth the whole cost; by the rule "plain", the square root of the
            fraction of the variance that every layer loses.
        rule : str
            One of ``RULES``.
        """
        choice: Choice = {}
        ranks = []
        if rule == "plain":
            for name in self.names:
                rows, layer = self.rows[name], cast(Any, self.net.get_submodule(name))
                fitted = gram_fit(rows, rows)
                k = min(int((fitted.tails > scale * fitted.tails[0]).sum()) or 1, len(fitted.reading))
                out, taps = layer.weight.flatten(1).shape
                if len(fitted.reading) and k * (out + taps) < out * taps:
                    choice[name] = pointwise_pair(layer, fitted, k)
                    ranks.append((name, k))
            return choice, ranks
        stubs = {name: (_Refit(name, self.net.get_submodule(name), self, scale, rule),) for name in self.names}
        with torch.no_grad(), swapped(self.net, stubs):
            self.latest = choice, self.net(self.judge.x.clone())
        for name, (stub,) in stubs.items():
            if stub.choice is not None:
                choice[name] = stub.choice[0]
                ranks.append((name, stub.choice[1]))
        return choice, ranks

    def change(self, choice: Choice) -> float:
        """Return the change of the module's output with layers replaced."""
        known = self.latest[1] if self.latest is not None and self.latest[0] is choice else None
        with swapped(self.net, choice):
            return self.judge((self.net,), known)

    def unseen(self) -> list[Skipped]:
        """Return the layers that no sample or no gradient of the output reaches, so that their effect is unknown."""
        missing = dict.fromkeys(self.idle, IDLE)
        missing |= {name: UNSEEN for name in self.names if name not in self.metrics}
        return [Skipped.part(name, self.net.get_submodule(name), why) for name, why in missing.items()]

    def determined(self) -> list[str]:
        """Return the layers with more rows than units by a factor of at least ``ROWS``.

        With fewer rows than units any layer has low rank on the samples of the fits, and not on others.
        """
        return [name for name in self.names if name in self.rows and _determined(self.rows[name])]

    def chosen(self, name: str, layer: Any, out: Tensor, scale: float, rule: str) -> tuple[Parts, int] | None:
        """Return the factors of a layer with present output ``out``, and the rank; None to keep the layer."""
        metric = self.metrics.get(name)
        if metric is None:
            return None
        rows = channel_rows(layer, out)
        present = rows[:: step_of(*rows.shape)]
        if name in self.repeated or len(present) != len(self.rows[name]):  # an expert that other samples now reach
            present = self.rows[name]
        fitted = gram_fit(present, self.rows[name], metric)
        entries = 0 if rule == "parameters" else self.sizes[name]
        k = _rank(layer, fitted, entries, scale * self.judge.scale, self.whole)
        return None if k is None else (pointwise_pair(layer, fitted, k), k)

    def _measured(self, chunk_size: int | None) -> dict[str, Tensor]:
        """Collect outputs and their metrics, in blocks of samples where ``rest`` needs not follow all of them."""
        x, grams, rows = self.judge.x.detach(), {}, {name: [] for name in self.names}  # type: ignore[var-annotated]
        generator = torch.Generator().manual_seed(0)
        for start in range(0, len(x), chunk_size or len(x)):
            given = x[start : start + (chunk_size or len(x))]
            out, leaves = self._outputs(given)
            self.repeated |= {name for name, values in leaves.items() if len(values) > 1}
            for name, values in leaves.items():
                own = torch.cat([channel_rows(self.net.get_submodule(name), value.detach()) for value in values])
                step = step_of(len(own) // len(given) * len(x), own.shape[1])
                rows[name].append(own[-(start * (len(own) // len(given))) % step :: step].clone())
                size = sum(value[:1].numel() if value.ndim > 1 else 1 for value in values)  # none of an idle expert
                self.sizes[name] = max(self.sizes.get(name, 0), size)
            for name, gradient in _gradients(out, leaves, generator):
                own = channel_rows(self.net.get_submodule(name), gradient)
                grams[name] = grams.get(name, 0) + own.T @ own
        self.rows = {name: torch.cat(found) for name, found in rows.items() if found}
        self.idle = [name for name in self.names if name in self.rows and not len(self.rows[name])]
        self.names = [name for name in self.names if name not in self.idle]
        metrics = {}
        for name, gram in grams.items():
            squares, vectors = torch.linalg.eigh(gram / len(x))
            metrics[name] = vectors * squares.clamp(min=0).sqrt() @ vectors.T
        return metrics

    def _outputs(self, x: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Return the output of the module, (N, outputs), and those of the layers, with the graph between them."""
        leaves: dict[str, list[Tensor]] = {}

        def keep(name: str, out: Tensor) -> Tensor:
            leaves.setdefault(name, []).append(out)
            return out.clone()  # the next part may modify it in place

        with ExitStack() as stack, torch.enable_grad():
            for name in self.names:
                part = self.net.get_submodule(name)
                hook = part.register_forward_hook(lambda _, __, out, name=name: keep(name, out))
                stack.callback(hook.remove)
            out = self.judge.joined(self.judge.rest(self.net(x.clone())))
        check_gradient(out)
        return out, leaves


def _gradients(
    out: Tensor, leaves: Mapping[str, Sequence[Tensor]], generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Yield gradients of outputs, or of random combinations of them, one per sample, in the leaves."""
    n = out.shape[1]
    for draw in range(min(n, DRAWS)):
        if n <= DRAWS:
            direction = torch.zeros_like(out)
            direction[:, draw] = 1
        else:
            direction = 2.0 * torch.randint(0, 2, out.shape, generator=generator).to(out) - 1
        with torch.enable_grad():
            along = (out * direction).sum() / (1 if n <= DRAWS else math.sqrt(DRAWS))
        pairs = [(name, value) for name, values in leaves.items() for value in values if value.requires_grad]
        if not pairs:  # all layers run under torch.no_grad()
            return
        names, flat = zip(*pairs, strict=True)
        found = torch.autograd.grad(along, flat, retain_graph=True, allow_unused=True)
        yield from ((name, gradient) for name, gradient in zip(names, found, strict=True) if gradient is not None)


def _determined(rows: Tensor) -> bool:
    return len(rows) >= ROWS * rows.shape[1]


def step_of(rows: int, columns: int) -> int:
    """Return which of many rows are used in one fit: every so many."""
    return max(1, rows // max(4 * columns, min(MAX_ROWS, MAX_VALUES // max(columns, 1))))


def _rank(part: Any, fitted: AffineFit, entries: int, scale: float, whole: Counts) -> int | None:
    """Return the best rank of a layer; None to leave it unchanged.

    ``entries`` is the number of entries of its output, 0 where parameters are the only price.
    """
    n, taps = len(part.weight), part.weight[0].numel()
    positions = entries / n
    bias = 0 if part.bias is None else n
    now = share((n * taps + bias, n * taps * positions, 1), whole)
    weights = (k * (n + taps) for k in range(1, len(fitted.tails)))
    each = [share((w + n, w * positions, 1 if entries == 0 else 2), whole) for w in weights]
    prices = torch.tensor([now, *each], dtype=torch.float64)
    tails = torch.cat([fitted.tails.new_zeros(1), fitted.tails[1:]])
    return cheapest(prices.to(tails), tails, scale) or None
