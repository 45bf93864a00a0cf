"""Samples of a compression (validation, split, interpolation), and the change of the output on them."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.compression import budget, returned
from bnrank.discovery.compression.parts import Parts, Segment, channel_rows, first_input, flow, is_linear, run
from bnrank.discovery.compression.returned import Judged
from bnrank.discovery.storage import plain_array
from bnrank.measures.derivatives import differentiating
from bnrank.networks import Skipped
from bnrank.networks.functional import Functional, example
from bnrank.networks.replicas import copied

Outputs = list[Tensor]  # (N, entries) each, in float64
Samples = tuple[Tensor, Callable[[Any], Outputs], Outputs]

MIN_SAMPLES = 8  # the minimum for a split into three groups
MAX_SAMPLES = 2000  # of a search
MAX_ENTRIES = 2e7  # of all values of a segment over the deciding samples: 160 MB
ENRICH = 1000  # samples of a fit; fewer are supplemented by points on lines through neighbors
REACH = 1.0  # how far these points extend beyond either neighbor, in units of the neighbors' distance
NEIGHBORS = 5
PROBES = 24  # random directions of the output for the metric, where there are more outputs
INNER = 10  # iterations of L-BFGS between two evaluations
PATIENCE = 4  # evaluations without improvement


def read_samples(net: nn.Module, value: Any, name: str, minimum: int = 1) -> Tensor:
    """Return samples for a module: finite floats (N, ...), or integers for a module that embeds them."""
    return example(net, plain_array(value, name), minimum, name)


def read_classes(y: Any, count: int, name: str) -> Tensor:
    """Return classes, integers from 0, one per sample."""
    y = plain_array(y, name)
    validation.expect(isinstance(y, Tensor | np.ndarray), name, validation.describe(y), "classes, integers", TypeError)
    validation.expect(y.ndim == 1, name, f"shape {tuple(y.shape)}", f"({count},), one class per sample")
    labels = validation.classes(y, name).cpu()
    got = f"shape {tuple(labels.shape)}"
    validation.expect(len(labels) == count, name, got, f"({count},), one class per sample")
    return labels


def outputs(function: Functional, judged: Judged, x: Tensor, chunk_size: int = 1024) -> Outputs:
    """Return the judged outputs of a module on x."""
    with torch.no_grad():
        blocks = [judged(returned.run(function, some)) for some in x.split(chunk_size)]
    return [torch.cat(values).cpu() for values in zip(*blocks, strict=True)]


def measured(
    function: Functional, parted: "Parted", names: Sequence[str] | None
) -> tuple[Judged, list[Skipped], tuple[Outputs, Outputs]]:
    """Return the outputs whose change is bounded, the others, and their values on all samples and on those held out.

    Parameters
    ----------
    function : Functional
        The module.
    parted : Parted
        Samples.
    names : sequence of str, optional
        Of outputs, as the caller gave them.

    Raises
    ------
    TypeError, ValueError
        If the module fails on the samples or on one of them, an output does not exist or does not vary, or classes do
        not fit.
    """
    x, kept = parted.x, parted.kept
    judged, others = returned.judged(function, x, names)
    reference = outputs(function, judged, x), outputs(function, judged, kept)
    for labels, values, name in ((parted.y, reference[0][0], "y"), (parted.y_kept, reference[1][0], "held_out[1]")):
        if labels is not None:
            shape = judged.shapes[0]
            got = f"one class per sample for outputs of shape {(len(x), *shape)}"
            validation.expect(max(shape, default=1) == shape.numel(), "y", got, "outputs of shape (N, classes)")
            validation.classes(labels, name, values.shape[1])
    check_spread(function.module, x, kept, reference)
    check_alone(function, x)
    return judged, others, reference


def check_alone(function: Functional, x: Tensor) -> None:
    """Raise ValueError for a module that runs on several samples, but not on one."""
    try:
        with torch.no_grad():
            function(x[:1])
    except ValueError as error:
        if error.__cause__ is None:  # it runs, and its output has no dimension for one sample, as after squeeze()
            return
        norms = [part for part in function.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        without = any(part.running_mean is None for part in norms)
        advice = " (batch normalization without running statistics?)" if without else ""
        why = str(error.__cause__) or type(error.__cause__).__name__
        raise ValueError(
            f"net: {type(function.module).__name__} runs on several samples, but not on one alone, expected a function "
            f"of one sample{advice}: {why}"
        ) from error


def check_backward(work: nn.Module, judged: Judged, x: Tensor) -> None:
    """Raise ValueError, with the reason, for a copy whose backward pass fails."""
    with torch.enable_grad():
        total = torch.stack([out.sum() for out in judged(work(x.clone()))]).sum()
    if total.requires_grad:
        with differentiating(work):
            parameters = [p for p in work.parameters() if p.requires_grad]
            torch.autograd.grad(total, parameters, allow_unused=True)


def check_spread(net: nn.Module, x: Tensor, kept: Tensor, found: tuple[Outputs, Outputs]) -> None:
    """Raise ValueError for samples on which the outputs do not vary, so that relative changes are undefined.

    A module that is constant on distinct samples is allowed: it is replaced by the constant.

    Parameters
    ----------
    net : torch.nn.Module
        Its precision determines round-off.
    x, kept : Tensor
        All samples, and those held out.
    found : tuple of lists of Tensor
        The outputs on both, (N, entries) each.
    """
    eps = rounding(net)
    validation.expect(not _equal(x), "x", f"{len(x)} equal samples", "different ones: the spread of the outputs is 0")
    for both in zip(*found, strict=True):
        varies, kept_varies = (float((out - out.mean(0)).norm()) > eps * float(out.norm()) for out in both)
        if not kept_varies and (varies or _equal(kept)):
            where = f"on the {len(kept)} samples held out"
            raise ValueError(f"held_out: the spread of the outputs {where} is 0, expected samples on which they vary")


def rounding(net: nn.Module) -> float:
    """Return the size of relative differences of outputs that are round-off in the precision of a module."""
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64)
    return 32 * torch.finfo(own).eps


def _equal(x: Tensor) -> bool:
    return bool((x == x[:1]).all())


class Parted(NamedTuple):
    """Samples in two groups, with their classes where known.

    Attributes
    ----------
    x, y : Tensor
        All samples, and their classes or None.
    deciding : Tensor
        The samples used by the search, in random order.
    kept : Tensor
        Held-out samples, used only for the certificate.
    y_kept : Tensor or None
        Their classes.
    """

    x: Tensor
    y: Tensor | None
    deciding: Tensor
    kept: Tensor
    y_kept: Tensor | None


def split(net: nn.Module, x: Tensor, y: Any, held_out: Any, seed: int) -> Parted:
    """Return the samples for the search and the held-out ones (a fraction of x, or separate samples)."""
    y = None if y is None else read_classes(y, len(x), "y")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    y_kept = None
    if isinstance(held_out, tuple):
        pair = "samples, or samples and classes where y is given, too"
        validation.expect(len(held_out) == 2 and y is not None, "held_out", "a tuple", pair)
        kept = read_samples(net, held_out[0], "held_out[0]", MIN_SAMPLES)
        held_out, y_kept = kept, read_classes(held_out[1], len(kept), "held_out[1]")
    held_out = plain_array(held_out, "held_out")
    if isinstance(held_out, Tensor | np.ndarray):
        kept = read_samples(net, held_out, "held_out", MIN_SAMPLES)
        shape, wanted = tuple(kept.shape[1:]), tuple(x.shape[1:])
        validation.expect(shape == wanted, "held_out", f"samples of shape {shape}", f"{wanted} as in x")
        alike = kept.is_floating_point() == x.is_floating_point()
        validation.expect(alike, "held_out", f"dtype {kept.dtype}", f"samples like x, of dtype {x.dtype}", TypeError)
        return Parted(x, y, x[order], kept, y_kept)
    share = validation.number(held_out, "held_out", 0.0, strict=True)
    validation.expect(share < 1, "held_out", f"{share:g}", "samples or a fraction of x in (0, 1)")
    count = min(max(2, round(share * len(x))), len(x) - 4)
    return Parted(x, y, x[order[count:]], x[order[:count]], None if y is None else y[order[:count]])


def enriched(x: Tensor, fitted: int, minimum: int, seed: int) -> Tensor:
    """Return the samples preceded by points on lines through neighbors among the fitted ones, ``minimum`` in all."""
    count = minimum - fitted
    if count <= 0 or not x.is_floating_point():
        return x
    generator = torch.Generator().manual_seed(seed)
    own = x[:fitted].flatten(1)
    near = torch.cdist(own, own).topk(min(NEIGHBORS + 1, fitted), largest=False).indices[:, 1:]
    i = torch.randint(0, fitted, (count,), generator=generator)
    j = near[i, torch.randint(0, near.shape[1], (count,), generator=generator)]
    u = torch.rand((count, 1), generator=generator, dtype=torch.float64) * (1 + 2 * REACH) - REACH
    between = own[i] + u.to(own) * (own[j] - own[i])
    return torch.cat([between.reshape(count, *x.shape[1:]), x])


def affordable(net: nn.Module, found: list[Segment], x: Tensor) -> int:
    """Return the number of samples for the search, fewer than usual where memory would not suffice."""
    entries = 1
    with torch.no_grad():
        for segment in found:
            values = flow(segment.parts, entering(net, segment.name, x[:2]))
            entries = max(entries, sum(value[0].numel() for value in values))
    return min(MAX_SAMPLES, max(64, int(MAX_ENTRIES / entries)))


def affordable_whole(net: nn.Module, x: Tensor, max_samples: int) -> tuple[int, int]:
    """Return the number of samples for the search in a whole module, and the number of those per block."""
    sizes: list[int] = []
    leaves = [part for part in net.modules() if not any(True for _ in part.children())]
    with contextlib.ExitStack() as stack, torch.no_grad():
        for part in leaves:
            note = part.register_forward_hook(lambda _, __, out: sizes.append(_entries(out)))
            stack.callback(note.remove)
        sizes.append(sum(tensor.numel() for tensor in returned.tensors(net(x[:2].clone()))))
    count = min(max_samples, max(64, int(4 * MAX_ENTRIES / max(sizes))))
    return count, max(1, int(MAX_ENTRIES / 4 / max(sum(sizes), 1)))


def _entries(out: Any) -> int:
    """Return the number of entries of one sample's output, from that of two samples."""
    return out.numel() // 2 if isinstance(out, Tensor) else 0


def entering(net: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return the input of a submodule, "" for the module itself, for the module's input x."""
    if not name:
        return x
    seen: list[Tensor] = []
    handle = net.get_submodule(name).register_forward_pre_hook(
        lambda _, given, by_name: seen.append(first_input(given, by_name).clone()), with_kwargs=True
    )
    try:
        net(x.clone())
    finally:
        handle.remove()
    return seen[0]


class Judge:
    """The change of the module's outputs when a segment is replaced, on the samples of the search.

    Parameters
    ----------
    fitted, selected : tuple of (Tensor, callable, list of Tensor)
        For the samples of the fits and for those that judge them: the input of the segment, the map from its output to
        the module's outputs, (N, entries) each, and the module's original outputs.
    given : list of Tensor
        The module's outputs on the given samples of both, without interpolated points.
    """

    def __init__(self, fitted: Samples, selected: Samples, given: Outputs) -> None:
        self.x, self.rest, self.f = fitted
        self._selected = selected
        self._metrics: tuple[Sequence[nn.Module], dict[int, Tensor]] | None = None  # of the latest parts
        self._trace: tuple[Sequence[nn.Module], list[Tensor]] | None = None
        self._spreads, self._given_spreads = list(map(_spread, self.f)), list(map(_spread, given))
        self.scale = self._spreads[0]
        """Root mean square distance of the first fitted output from its mean; its size where it is constant."""

    def __call__(self, parts: Sequence[nn.Module], known: Tensor | None = None) -> float:
        """Return the largest change of an output relative to its spread, on either group of samples.

        On the selection samples, a standard error is added to the mean square, and the spread is computed on the given
        samples only: interpolated points may spread much more. ``known`` is the output of the parts on the samples of
        the fits, where it has been computed.
        """
        with torch.no_grad():
            out = run(parts, self.x) if known is None else known
            fitted = map(_squares, self.rest(out), self.f)
            x, rest, f = self._selected
            selected = map(_squares, rest(run(parts, x)), f)
            changes = [math.sqrt(float(each.mean())) / s for each, s in zip(fitted, self._spreads, strict=True)]
            for each, spread in zip(selected, self._given_spreads, strict=True):
                error = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else 0.0
                changes.append(math.sqrt(float(each.mean()) + error) / spread)
        return max(changes) if all(map(math.isfinite, changes)) else math.inf

    def joined(self, outputs: Outputs) -> Tensor:
        """Return all outputs side by side, (N, entries), each with the spread of the first."""
        weighted = [out * (self.scale / spread) for out, spread in zip(outputs, self._spreads, strict=True)]
        return torch.cat(weighted, 1)

    def metrics(self, parts: Sequence[nn.Module]) -> dict[int, Tensor]:
        """Return the metric of the output at every linear part, by index.

        Each is G^{1/2} (n, n), symmetric, with G = mean over samples of J^T J and J the Jacobian of the module's output
        with respect to the part's output. The root mean square of G^{1/2} dz is the change of the output to first
        order. For convolutions n is the number of channels, and J^T J is summed over positions. With many outputs, J^T
        J is estimated from random directions.
        """
        if self._metrics is None or self._metrics[0] is not parts:
            self._metrics = parts, self._measured(parts)
        return self._metrics[1]

    def _measured(self, parts: Sequence[nn.Module]) -> dict[int, Tensor]:
        places = [i for i, part in enumerate(parts) if is_linear(part)]
        value, leaves = self.x.detach().clone(), []
        with torch.enable_grad():
            for i, part in enumerate(parts):
                value = part(value)
                if i in places:
                    leaves.append(value.requires_grad_(True))
                    value = leaves[-1].clone()  # the next part may modify it in place
            out = self.joined(self.rest(value))
        check_gradient(out)
        n = out.shape[1]
        if n <= PROBES:
            directions = torch.eye(n).to(out)
        else:
            signs = torch.randint(0, 2, (PROBES, n), generator=torch.Generator().manual_seed(0))
            directions = ((2.0 * signs - 1) / math.sqrt(PROBES)).to(out)
        grams: dict[int, Tensor] = {}
        for direction in directions:
            with torch.enable_grad():
                along = (out @ direction).sum()
            found = torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True)
            for place, gradient in zip(places, found, strict=True):
                if gradient is not None:
                    rows = channel_rows(parts[place], gradient)
                    grams[place] = grams.get(place, 0) + rows.T @ rows
        metrics = {}
        for place, gram in grams.items():
            values, vectors = torch.linalg.eigh(gram / len(self.x))
            metrics[place] = vectors * values.clamp(min=0).sqrt() @ vectors.T
        return metrics

    def trace(self, parts: Sequence[nn.Module]) -> list[Tensor]:
        """Return the input of the segment and the output of each part, on the samples of the fits."""
        if self._trace is None or self._trace[0] is not parts:
            with torch.no_grad():
                self._trace = parts, flow(parts, self.x)
        return self._trace[1]


def check_gradient(out: Tensor) -> None:
    """Raise ValueError for outputs without a gradient in the layers they come from."""
    if not out.requires_grad:
        raise ValueError(
            "net: got outputs without a gradient in its layers, expected a forward of PyTorch operations only"
        )


def relative(before: Outputs, after: Outputs) -> float:
    """Return the largest change of an output relative to its spread, or to its size where it is constant."""
    changes = (math.sqrt(float(_squares(b, a).mean())) / _spread(b) for b, a in zip(before, after, strict=True))
    return max(changes)


def _squares(before: Tensor, after: Tensor) -> Tensor:
    return (after - before).square().sum(1)


def _spread(outputs: Tensor) -> float:
    """Return the root mean square distance of outputs from their mean; their size where they are constant."""
    spread = (outputs - outputs.mean(0)).square().sum(1).mean()
    size = outputs.square().sum(1).mean()
    return math.sqrt(float(spread if spread > 1e-24 * size else size)) or 1.0


def tuned(judge: Judge, parts: Parts, steps: int, only: Sequence[str] | None = None) -> tuple[Parts, float]:
    """Return parts fine-tuned by L-BFGS to the original outputs: mean squared error over the samples of the fits.

    Parameters
    ----------
    judge : Judge
        Selects the best parameters, so that the change never increases.
    parts : tuple of torch.nn.Module
        The parts to start from; not modified.
    steps : int
        Largest number of iterations.
    only : sequence of str, optional
        The submodules of a single part whose parameters are tuned; default: all.

    Returns
    -------
    tuple of torch.nn.Module
        Copies with the tuned parameters.
    float
        Their change.
    """
    work = tuple(copied(part) for part in parts)
    best, change, idle = parts, judge(parts), 0
    chosen = work if only is None else [work[0].get_submodule(name) for name in only]
    parameters = [p.requires_grad_(True) for part in chosen for p in part.parameters()]
    if not parameters:
        return best, change
    optimizer = torch.optim.LBFGS(parameters, max_iter=INNER, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        changes = map(torch.sub, judge.rest(run(work, judge.x)), judge.f)
        loss = judge.joined(list(changes)).square().sum(1).mean() / judge.scale**2
        loss.backward()
        return loss

    for _ in range(0, steps, INNER):
        with torch.enable_grad():
            optimizer.step(closure)
        found = judge(work)
        idle += 1
        if found < change:
            best, change, idle = tuple(copied(part) for part in work), found, 0
        if idle >= PATIENCE or budget.current().over:
            break
    return best, change
