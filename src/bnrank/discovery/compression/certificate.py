"""The certificate of a compression: what changed, what was saved, and a bound on a whole domain."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.content import Headline, Part, Table
from bnrank._core.results import Printed
from bnrank.discovery.compression.judging import Outputs, Parted, outputs, rounding
from bnrank.discovery.compression.parts import Parts, flow, lipschitz, multiply_adds, parameters
from bnrank.discovery.compression.returned import Judged
from bnrank.discovery.compression.timing import Latency, Subnormals, Timing, latency, like, subnormals
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.functional import Functional, unwrap

MAX_POINTS = 64  # samples at which Jacobians are evaluated
MAX_ENTRIES = 2e7  # of all these Jacobians together
CONSTANT = 1e-12  # relative to the size of outputs, in float64: a smaller spread is round-off
RTOL = 1e-6  # relative to the largest singular value of a Jacobian; larger ones count toward its rank
ROUNDING = 1e3  # units of rounding, relative to it, that count at least where the network runs in another precision


@dataclass(frozen=True)
class Change:
    """The difference of the outputs of two networks over N samples.

    Attributes
    ----------
    relative : float
        ||f^(X) - f(X)||_F / ||f(X)||_F.
    centered : float
        ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, never smaller than ``relative``. Where f is constant on the
        samples, up to round-off: 0 if f^ is the same constant, else infinite.
    worst : float
        max_i ||f^(x_i) - f(x_i)|| / (root mean square over i of ||f(x_i)||).
    decisions : float
        Fraction of the samples whose largest output has another index; NaN for a single output.
    samples : int
        N.
    """

    relative: float
    centered: float
    worst: float
    decisions: float
    samples: int


def change(before: Tensor, after: Tensor, rounding: float = 0.0) -> Change:
    """Return the difference of outputs, (N, ...) both.

    From outputs that are constant, up to round-off in float64, a difference of at most ``rounding`` is none.

    Examples
    --------
    >>> found = change(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    >>> found.relative, round(found.worst, 3), found.decisions
    (0.2, 0.283, 0.0)
    """
    before, after = before.flatten(1).double(), after.flatten(1).double()
    n = len(before)
    each = (after - before).norm(dim=1)
    size, spread = float(before.norm()), float((before - before.mean(0)).norm())
    total = float(each.norm())
    decisions = float("nan")
    if before.shape[1] > 1:
        decisions = float((before.argmax(1) != after.argmax(1)).double().mean())
    centered = ratio(total, spread)
    if spread <= CONSTANT * size:
        centered = 0.0 if total <= max(rounding, CONSTANT) * size else math.inf
    worst = ratio(float(each.max()) * math.sqrt(n), size)
    return Change(ratio(total, size), centered, worst, decisions, n)


def ratio(part: float, whole: float) -> float:
    """Return part / whole. Where the whole is 0: 0 if the part is also 0, else infinite."""
    if whole > 0:
        return part / whole
    return 0.0 if part == 0 else math.inf


@dataclass(frozen=True)
class OutputChange:
    """The change of one output of a network.

    Attributes
    ----------
    name : str
        "logits", "boxes", "[1]", "hidden[0]"; "" for a network that returns one tensor.
    on_x, held_out : Change
        On all of x, and on the held-out samples.
    """

    name: str
    on_x: Change
    held_out: Change


@dataclass(frozen=True)
class Bound(Printed):
    """An upper bound on the difference of two networks at any input near the samples.

    ||f^(x) - f(x)|| <= max_i ||f^(x_i) - f(x_i)|| + (Lip f + Lip f^) r for every x within r of a sample x_i, in
    Euclidean norms. The Lipschitz constants are products of operator norms: valid everywhere, and usually far from
    tight.

    Attributes
    ----------
    lipschitz_before, lipschitz_after : float
        Of f and f^.
    at_samples : float
        max_i ||f^(x_i) - f(x_i)|| over the samples.
    size : float
        Root mean square of ||f(x_i)||.

    Examples
    --------
    >>> print(Bound(lipschitz_before=3.0, lipschitz_after=1.0, at_samples=0.5, size=10.0))
    bound at distance r from the samples: 5 % + 40 % r of the outputs (Lipschitz constants)
    """

    lipschitz_before: float
    lipschitz_after: float
    at_samples: float
    size: float

    def within(self, distance: float) -> float:
        """Return the bound at all inputs no farther than ``distance`` from a sample, relative to ``size``.

        Where ``size`` is 0 (all outputs are 0 on the samples), the bound is 0 if nothing can change, else infinite.
        """
        distance = validation.number(distance, "distance", 0.0)
        return ratio(self.at_samples + self._lipschitz * distance, self.size)

    @property
    def per_distance(self) -> float:
        """Increase of the bound per unit of distance, relative to ``size``; as in ``within`` where ``size`` is 0."""
        return ratio(self._lipschitz, self.size)

    @property
    def _lipschitz(self) -> float:
        return self.lipschitz_before + self.lipschitz_after

    def __str__(self) -> str:
        where = "bound at distance r from the samples:"
        if self.size > 0:
            at, more = (f"{100 * value:.3g} %" for value in (self.within(0.0), self.per_distance))
            return f"{where} {at} + {more} r of the outputs (Lipschitz constants)"
        total = f"{self.at_samples:.3g} + {self._lipschitz:.3g} r"
        return f"{where} {total}, absolute, as the outputs are 0 on the samples (Lipschitz constants)"


@dataclass(frozen=True)
class Accuracy:
    """The fraction of correctly classified samples (largest output = class), before and after."""

    before: float
    after: float
    samples: int


@dataclass(frozen=True)
class Certificate(Printed):
    """Measurements of a network before and after compression.

    Attributes
    ----------
    tol : float
        The given tolerance.
    outputs : tuple of OutputChange
        The change of every output that is bounded; the first is the main one.
    bound : Bound or None
        For all inputs near the samples; None where a part has no known Lipschitz constant, or the module has more than
        one segment or output.
    rank : int or None
        The smallest dimension of the input or of the output of a part of f^: f^ = h o g with this inner dimension,
        which bounds its bottleneck rank, on all inputs (T18). None where the module has more than one segment or
        output.
    parameters_before, parameters : int
        Total number of entries of the parameters.
    multiply_adds_before, multiply_adds : int
        Of linear and convolutional layers, per sample.
    latency_before, latency : Latency
        Seconds per forward pass, interleaved timing, with subnormal values set to 0; equal where nothing changed.
    rank_before : int or None
        As ``rank``, for the original module.
    jacobian_rank, jacobian_rank_before : int or None
        Largest rank of the Jacobian (singular values above 1e-6 of its largest) at up to 64 samples: a lower
        bound on the bottleneck rank (T5). None where ``rank`` is, x holds no floats, inputs times outputs exceed 2e7,
        or the module is random in eval mode.
    accuracy, held_out_accuracy : Accuracy or None
        Of the first output, on x and on the held-out samples; None without classes.
    subnormals : Subnormals
        The subnormal weights of the original network, and the speedup from setting them to 0, in which
        ``latency_before`` is already without them. The compressed network has none.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.ones(6, 4), torch.ones(3, 6)])         # equal neurons
    >>> timing = bnrank.discovery.Timing(repeats=3)
    >>> certificate = bnrank.compress(net, torch.rand(40, 4), tol=0.01, timing=timing).certificate
    >>> certificate.met, certificate.parameters_before, certificate.parameters
    (True, 42, 7)
    """

    tol: float
    outputs: tuple[OutputChange, ...]
    bound: Bound | None
    rank: int | None
    parameters_before: int
    parameters: int
    multiply_adds_before: int
    multiply_adds: int
    latency_before: Latency
    latency: Latency
    rank_before: int | None = None
    jacobian_rank: int | None = None
    jacobian_rank_before: int | None = None
    accuracy: Accuracy | None = None
    held_out_accuracy: Accuracy | None = None
    subnormals: Subnormals = field(default_factory=lambda: Subnormals(0, 0))

    @property
    def on_x(self) -> Change:
        """The change on all of x of the output that changes most, relative to its spread."""
        return max((output.on_x for output in self.outputs), key=lambda change: change.centered)

    @property
    def held_out(self) -> Change:
        """The change on the held-out samples of the output that changes most, relative to its spread."""
        return max((output.held_out for output in self.outputs), key=lambda change: change.centered)

    @property
    def met(self) -> bool:
        """Whether the change of every output is at most ``tol`` of its spread, on x and on the held-out samples."""
        return max(self.on_x.centered, self.held_out.centered) <= self.tol

    @property
    def sizes(self) -> list[tuple[str, int, int]]:
        """What is counted, before and after: parameters and multiply-adds."""
        parameters = "parameters", self.parameters_before, self.parameters
        return [parameters, ("multiply-adds per sample", self.multiply_adds_before, self.multiply_adds)]

    @property
    def speedup(self) -> float:
        """Minimum latency before over minimum latency after, 1 where nothing changed."""
        return self.latency_before.minimum / self.latency.minimum

    @property
    def speedup_certain(self) -> bool:
        """Whether nothing changed, or the quartile ranges of the times do not overlap."""
        before, after = self.latency_before, self.latency
        if self._unchanged:
            return True
        return before.low > after.high if self.speedup > 1 else after.low > before.high

    @property
    def _unchanged(self) -> bool:
        """Whether both networks are the same, so that one latency was measured."""
        return self.latency_before == self.latency

    @property
    def share_beyond(self) -> float:
        """Upper bound (95 percent confidence) on the fraction of new samples that change more than the held-out ones.

        For samples i.i.d. with the n held-out ones: 1 - 0.05^(1/n), for any distribution. The change of a sample is
        ||f^(x) - f(x)||, compared with ``held_out.worst`` times the root mean square output.
        """
        return 1 - 0.05 ** (1 / self.held_out.samples)

    def _content(self) -> list[Part]:
        return [Headline(self.headline), *self._table(), *self._changes(), *self._ranks()]

    @property
    def headline(self) -> str:
        """Size, speed and whether the tolerance is met, in a line."""
        size = f"{self.parameters_before:,} to {self.parameters:,} parameters"
        speed = f"{self.speedup:.3g} times as fast" if self.speedup_certain else "speedup uncertain"
        return f"{size}, {speed}; tolerance {_percent(self.tol)} of the spread {'met' if self.met else 'NOT met'}"

    def _table(self) -> list[Part]:
        before, after = self.latency_before, self.latency
        rows = [
            {"": label, "before": f"{a:,}", "after": f"{b:,}", "ratio": f"{a / max(b, 1):.3g}"}
            for label, a, b in self.sizes
        ]
        label = f"minimum latency in ms, batch {after.batch_size}"
        times = {"before": f"{1e3 * before.minimum:.3f}", "after": f"{1e3 * after.minimum:.3f}"}
        rows.append({"": label, **times, "ratio": f"{self.speedup:.3g}"})
        if not self.speedup_certain:
            remark = "uncertain: quartiles of the times overlap"
            rows = [row | {"remark": remark if row is rows[-1] else ""} for row in rows]
        found = [f"{self.subnormals} (not part of the ratio above)"] if self.subnormals.count else []
        return [Table("Size and latency", rows), *found]

    def _changes(self) -> list[str]:
        lines = []
        for output in self.outputs:
            what = f"change of {output.name}" if output.name else "change"
            lines.append(f"{what} on x {_described(output.on_x)}")
            lines.append(f"{what} held out {_described(output.held_out)}")
        for label, of in (("on x", self.accuracy), ("held out", self.held_out_accuracy)):
            if of is not None:
                lines.append(f"accuracy {label}: {100 * of.before:.2f} % before, {100 * of.after:.2f} % after")
        lines.append(f"tolerance {_percent(self.tol)} of the spread: {'met' if self.met else 'NOT met'}")
        if self._unchanged:
            return lines
        beyond = f"new samples beyond the largest held-out change: at most {_percent(self.share_beyond)}"
        return [*lines, f"{beyond} (95 percent confidence)"]

    def _ranks(self) -> list[str]:
        lines = []
        before = "before", self.rank_before, self.jacobian_rank_before
        for label, rank, lower in (before, ("after", self.rank, self.jacobian_rank)):
            if rank is not None:
                below = "" if lower is None else f", Jacobians of rank {lower} on the samples"
                lines.append(f"bottleneck rank {label}: at most {rank}, on all inputs{below}")
        return lines if self.bound is None else [*lines, str(self.bound)]


def _described(change: Change) -> str:
    spread = "their spread is 0" if math.isinf(change.centered) else f"{_percent(change.centered)} of their spread"
    text = f"({change.samples} samples): {_percent(change.relative)} of the outputs, {spread}"
    text += f", largest {_percent(change.worst)}"
    return text if math.isnan(change.decisions) else f"{text}, largest output another in {_percent(change.decisions)}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def certified(
    nets: tuple[nn.Module, nn.Module],
    parted: Parted,
    tol: float,
    judged: Judged,
    reference: tuple[Outputs, Outputs],
    whole: tuple[Parts, Parts] | None,
    timing: Timing,
    dtype: torch.dtype = torch.float64,
    random: bool = False,
) -> Certificate:
    """Return the certificate of a compression.

    Parameters
    ----------
    nets : tuple of torch.nn.Module
        The original network and the compressed one.
    parted : Parted
        Samples.
    tol : float
        The given tolerance.
    judged : Judged
        The outputs that are bounded.
    reference : tuple of lists of Tensor
        These outputs of the original network on all samples and on those held out, (N, entries) in float64.
    whole : tuple of parts, optional
        The parts of both networks, where the module is one segment.
    timing : Timing
        How latency is measured.
    dtype : torch.dtype
        Precision in which the networks run.
    random : bool
        Whether two runs of the original network differ, so that it has no Jacobian.
    """
    (before, after), x = nets, parted.x
    same = unwrap(after) is before
    function = Functional(after, dtype)
    found = reference if same else tuple(outputs(function, judged, part, "x") for part in (x, parted.kept))
    on_x, on_kept = (list(zip(*both, strict=True)) for both in zip(reference, found, strict=True))
    eps = rounding(before)
    changes = [
        OutputChange(name, change(*own, eps), change(*kept, eps))
        for name, own, kept in zip(judged.names, on_x, on_kept, strict=True)
    ]
    sample = like(before, x[:1])
    given = sample.to(dtype) if sample.is_floating_point() else sample
    random = random or not x.is_floating_point()
    ranks = [
        _ranks(parts, net, given, x[:0] if random else x, dtype)
        for parts, net in zip(whole or (None, None), nets, strict=True)
    ]
    timed = latency([before] if same else nets, x, batch_size=timing.batch_size, repeats=timing.repeats)
    return Certificate(
        tol=tol,
        outputs=tuple(changes),
        bound=None if whole is None else _bound(whole, given, on_x[0]),
        rank=ranks[1][0],
        parameters_before=parameters(before),
        parameters=parameters(after),
        multiply_adds_before=multiply_adds(before, sample),
        multiply_adds=multiply_adds(after, sample),
        latency_before=timed[0],
        latency=timed[-1],
        rank_before=ranks[0][0],
        jacobian_rank=ranks[1][1],
        jacobian_rank_before=ranks[0][1],
        accuracy=_accuracy(on_x[0], parted.y),
        held_out_accuracy=_accuracy(on_kept[0], parted.y_kept),
        subnormals=subnormals(before, x, batch_size=timing.batch_size, repeats=timing.repeats),
    )


def _bound(whole: tuple[Parts, Parts], sample: Tensor, found: tuple[Tensor, Tensor]) -> Bound | None:
    before, after = (lipschitz(parts, sample) for parts in whole)
    if before is None or after is None:
        return None
    each = (found[0] - found[1]).norm(dim=1)
    return Bound(before, after, float(each.max()), float(found[0].norm()) / len(each) ** 0.5)


def _ranks(
    parts: Parts | None, net: nn.Module, sample: Tensor, x: Tensor, dtype: torch.dtype
) -> tuple[int | None, int | None]:
    """Return the smallest dimension of an input or output of a part, and the largest rank of a Jacobian on x."""
    if parts is None:
        return None, None
    with torch.no_grad():
        values = flow(parts, sample)
    upper = min(value[0].numel() for value in values)
    entries = values[0][0].numel() * values[-1][0].numel()
    points = min(MAX_POINTS, len(x), int(MAX_ENTRIES / max(entries, 1)))
    if not points:
        return upper, None
    with torch.enable_grad():
        some = x[:points]
        some = some[~Jacobian(net, some, dtype=dtype).near_kinks().cpu()]
        if not len(some):
            return upper, None
        found = Jacobian(net, some, dtype=dtype, kink_rtol=None).singular_values
    return upper, int(linalg.rank(found, max(RTOL, ROUNDING * torch.finfo(dtype).eps)).max())


def _accuracy(found: tuple[Tensor, Tensor], y: Tensor | None) -> Accuracy | None:
    if y is None:
        return None
    before, after = (float((out.argmax(1) == y).double().mean()) for out in found)
    return Accuracy(before, after, len(y))
