"""A trained module cut down to its bottleneck."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery import storage
from bnrank.discovery.compression import costs
from bnrank.discovery.compression.certificate import certified
from bnrank.discovery.compression.chain import Parts, segments
from bnrank.discovery.compression.costs import counts
from bnrank.discovery.compression.judging import Judge, tuned
from bnrank.discovery.compression.result import Compressed, replace
from bnrank.discovery.compression.samples import (
    ENRICH,
    LEAST,
    affordable,
    check_classes,
    check_spread,
    enriched,
    entering,
    outputs,
    split,
)
from bnrank.discovery.compression.samples import samples as given
from bnrank.discovery.compression.stages import Cut, Step, cut_down
from bnrank.networks import Segment, Skipped
from bnrank.networks.functional import Functional, check_finite, unwrap

__all__ = ["compress"]

TUNED = (4.0, 2.0, 1.4, 1.0)  # times the tolerance that is cut down to before tuning
MARGIN = 0.85  # of the tolerance is spent: new samples differ more than those that decided
SELECTING = 0.25  # of the deciding samples


def compress(
    net: nn.Module,
    x: Tensor | np.ndarray | pd.DataFrame,
    tol: float = 0.01,
    *,
    y: Tensor | np.ndarray | pd.Series | None = None,
    held_out: float | Tensor | np.ndarray | pd.DataFrame | tuple[Any, Any] = 0.2,
    tune: int = 0,
    samples: int = 2000,
    batch: int = 256,
    repeats: int = 25,
    seed: int = 0,
) -> Compressed:
    r"""Cut a trained module down to its bottleneck, as far as its output allows.

    In a network with a bottleneck a run of layers computes, on the data, a linear map of small rank k (T21 to T23,
    T27). Every segment of the module (a ``nn.Sequential``, an MLP, a single layer) is cut down so:

    1. dead, constant and parallel neurons and channels go, which changes no output;
    2. the run of layers whose replacement saves most becomes one affine map of rank k: the least-squares map from the
       preactivations of its first layer to those of its last, in the metric of the output, with the run and k chosen by
       the measured change of the output; multiplied into the first layer it is two Linear, n -> k -> m. Between
       convolutions on a torus it is fitted frequency by frequency (T28);
    3. neurons and channels go that are, on the data, linear combinations of others, which take over their columns;
    4. layers of low rank on the data become two, where that saves multiply-adds.

    Three shares of the tolerance for step 2 (and leaving it out) are tried with two for step 3. Of all outcomes within
    the tolerance the cheapest wins, by the mean of three shares in what there was: parameters, multiply-adds, layers.

    What decides: the samples not held out, three quarters of them for fits and the others to judge the fits, where a
    standard error is added to the mean square. Fewer than 1000 for fits are joined by points on lines through
    neighbors, up to their distance beyond either of them; the module is asked what it gives there, and the change
    must be small there too. Fifteen percent of the tolerance are left for new samples. The held-out samples decide
    nothing. Everything is computed in float64.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; it is not changed. What can be compressed are segments of Linear and convolutions with anything
        between, in eval mode; the rest stays and is listed.
    x : Tensor, ndarray or DataFrame
        Samples like those that the network is for, (N, ...), at least 8; more are better, and such as it was not
        trained on: there it may have fitted noise. They need no labels.
    tol : float
        Largest change of the output, ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, 0 < tol < 1: relative to the spread
        of the outputs, which is the stricter way: relative to the outputs themselves it is never more. 1 is a constant.
    held_out : float, Tensor, ndarray or DataFrame
        Share of x that is kept for the certificate, in (0, 1), or at least 8 samples for it; a pair of samples and
        classes where ``y`` is given.
    tune : int
        Iterations of L-BFGS that fit the parameters left to the outputs before; 0 for none. Then 1.4, 2 and 4 times
        the tolerance are tried for the cuts, too, and taken if tuning brings the change within it. The network has
        never more parameters, or multiply-adds, than without.
    y : Tensor, ndarray or Series, optional
        (N,), the classes of x as integers from 0, where the largest output is the class: the certificate then says the
        accuracy before and after. They decide nothing.
    samples : int
        At most so many of x decide; fewer where their values would take more than 160 MB.
    batch, repeats : int
        Of the measured latency.
    seed : int
        Of the split.

    Returns
    -------
    Compressed
        ``network``, ``certificate``, ``steps``, ``untouched``, ``reason``. A module of which nothing can be saved is
        returned as it is, with the reason.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, there are too few samples, the outputs do not vary on them, parameters are not
        finite, or the module cannot be run on x.

    Notes
    -----
    Sources: Jacot2023a, Jacot2023b for the bottleneck. Neurons as combinations of others: Chee, Renz, Damle and De Sa,
    "Model preserving compression for neural networks", 2022, with forward selection in the metric of the output.

    Examples
    --------
    >>> import torch, bnrank
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(500, 10, generator=generator)
    >>> to_two = torch.randn(40, 2, generator=generator) @ torch.randn(2, 10, generator=generator)
    >>> read = torch.rand(3, 40, generator=generator)
    >>> net = bnrank.networks.from_layers([to_two / 5, torch.eye(40), torch.eye(40), read])
    >>> found = compress(net, x, tol=0.01, repeats=3)
    >>> found.certificate.met, found.certificate.parameters < found.certificate.parameters_before / 5
    (True, True)
    """
    x = given(unwrap(net), x, "x", LEAST)
    tol = validation.number(tol, "tol", 0.0, strict=True)
    if tol >= 1:
        raise ValueError(f"tol: got {tol:g}, expected 0 < tol < 1, a share of the spread of the outputs")
    tune, samples = validation.integer(tune, "tune", 0), validation.integer(samples, "samples", LEAST)
    batch, repeats = validation.integer(batch, "batch"), validation.integer(repeats, "repeats")
    seed = validation.integer(seed, "seed", 0)
    check_finite(net)
    original = unwrap(net)
    parted = split(original, x, y, held_out, seed)
    function = Functional(original)
    reference = outputs(function, x, "x"), outputs(function, parted.kept, "held_out")
    check_classes(parted.y, reference[0], "y")
    check_classes(parted.y_kept, reference[1], "held_out[1]")
    check_spread(original, x, parted.kept, reference)
    work = copy.deepcopy(original).double().eval().requires_grad_(True)
    deciding = parted.deciding.to(function.device, torch.float64 if x.is_floating_point() else x.dtype)
    with torch.no_grad():
        found, untouched = segments(work, deciding[:2])
    most = affordable(work, found, deciding, samples)
    deciding = deciding[:most]
    selecting = max(1, round(SELECTING * len(deciding)))
    real = len(deciding)
    deciding = enriched(deciding, real - selecting, min(ENRICH, most), seed)
    search = _Search(deciding, function(deciding).detach(), len(deciding) - selecting, real, tune)
    search = _smallest(search, work, found, MARGIN * tol)
    new = search.new
    network = _finished(original, new) if new else net
    whole = (found[0].parts, new.get("", found[0].parts)) if len(found) == 1 and not found[0].name else None
    certificate = certified(original, network, parted, tol, reference, whole, batch, repeats)
    reason = "; ".join(search.reasons) if found else "no linear or convolutional layer that could be replaced"
    left = (*untouched, *search.untouched)
    plan = {name: storage.describe(parts) for name, parts in new.items()}
    return Compressed(network, certificate, tuple(search.steps), left, reason, plan)


@dataclass
class _Search:
    """Segments cut down one after another, and what was done.

    Attributes
    ----------
    x, reference : Tensor
        Samples that decide, and the module's output on them.
    fitted : int
        How many of them fits are made on; they come first.
    real : int
        How many of them were given; they come last.
    tune : int
        Iterations.
    new : dict
        From names of segments to what replaces them.
    """

    x: Tensor
    reference: Tensor
    fitted: int
    real: int
    tune: int
    new: dict[str, Parts] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    untouched: list[Skipped] = field(default_factory=list)

    def cut(self, work: nn.Module, found: list[Segment], tol: float) -> None:
        """Cut the segments of a module, which is changed.

        The squared change may have grown, after each, to the share of the parameters that were looked at by then.
        """
        sizes = [costs.parameters(nn.Sequential(*segment.parts)) for segment in found]
        done = 0
        for segment, size in zip(found, sizes, strict=True):
            done += size
            limit = tol * (done / max(sum(sizes), 1)) ** 0.5
            try:
                judge = _judge(work, segment, self.x, self.reference, self.fitted, self.real)
                judge(segment.parts)
            except (AttributeError, TypeError, RuntimeError) as error:
                why = f"the module cannot be run with another module in its place: {error}"
                self.untouched.append(Skipped(segment.name, "segment", why))
                continue
            cut = _cut(judge, segment, limit, self.tune)
            own = _fold_step(segment) + list(cut.steps)
            if cut.reason:
                self.reasons.append(f"{segment.name}: {cut.reason}" if segment.name else cut.reason)
            if own and cut.change <= limit:
                self.steps += own
                self.new[segment.name] = cut.parts
                work = replace(work, segment.name, nn.Sequential(*cut.parts))


def _smallest(search: _Search, work: nn.Module, found: list[Segment], tol: float) -> _Search:
    """Run a search; with tuning and several segments without tuning, too, and take that one where it is smaller.

    What tuning of one segment does to the change decides how much is left to the next.
    """
    if not search.tune or len(found) < 2:
        search.cut(work, found, tol)
        return search
    plain, other = _Search(search.x, search.reference, search.fitted, search.real, 0), copy.deepcopy(work)
    plain.cut(other, found, tol)
    search.cut(work, found, tol)
    tuned_size, size = ((costs.parameters(net), costs.multiply_adds(net, search.x)) for net in (work, other))
    return search if _no_larger(tuned_size, size) else plain


def _no_larger(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(one <= other for one, other in zip(a, b, strict=True))


class _Given(nn.Module):
    """Stands for a segment of which the output is given."""

    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.value


def _judge(work: nn.Module, segment: Segment, x: Tensor, reference: Tensor, fitted: int, real: int) -> Judge:
    with torch.no_grad():
        given = entering(work, segment.name, x).detach()
    rows = slice(0, fitted), slice(fitted, None)
    first, second = ((given[r], _rest(work, segment.name, x[r]), reference[r].flatten(1)) for r in rows)
    return Judge(first, second, reference[-real:])


def _rest(work: nn.Module, name: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map from what leaves a segment to the module's output, on given samples."""
    if not name:
        return lambda value: value.flatten(1)
    stub = _Given()
    around = replace(copy.deepcopy(work), name, stub)

    def rest(value: Tensor) -> Tensor:
        stub.value = value
        return cast(Tensor, around(x.clone())).flatten(1)

    return rest


def _cut(judge: Judge, segment: Segment, limit: float, tune: int) -> Cut:
    """Cut a segment down; with tuning, to the largest multiple of the limit that tuning brings back within it.

    Of what is tuned that counts which has no more parameters and multiply-adds than without tuning: fewer layers could
    make up for more of them in the price that everything else is chosen by.
    """
    plain = cut_down(judge, segment.parts, segment.name, limit)
    if not tune:
        return plain
    outcomes = [plain]
    size = counts(plain.parts, judge.x)[:2]
    for factor in TUNED:
        cut = plain if factor == 1 else cut_down(judge, segment.parts, segment.name, factor * limit)
        if not cut.steps or not _no_larger(counts(cut.parts, judge.x)[:2], size):
            continue
        parts, found = tuned(judge, cut.parts, tune)
        step = Step("tune", segment.name, f"at most {tune} iterations of L-BFGS at fixed size", found)
        if found < cut.change:
            cut = Cut(parts, (*cut.steps, step), cut.cost, found, cut.reason)
        if cut.change <= limit:
            outcomes.append(cut)
    return min(outcomes, key=lambda c: (c.cost, c.change))


def _fold_step(segment: Segment) -> list[Step]:
    if not segment.folded:
        return []
    return [Step("fold", segment.name, f"{segment.folded} batch normalization(s) into the layers before", 0.0)]


def _finished(original: nn.Module, new: dict[str, Parts]) -> nn.Module:
    """Return a network in the module's precision, on its device and in its mode, with new segments."""
    network = copy.deepcopy(original)
    first = next(p for p in original.parameters() if p.is_floating_point())
    for name, parts in new.items():
        own = [copy.deepcopy(part).to(first.device, first.dtype) for part in parts]
        segment = nn.Sequential(*own).requires_grad_(True)
        for p in segment.parameters():
            p.grad = None
        network = replace(network, name, segment)
    return network.train(original.training)
