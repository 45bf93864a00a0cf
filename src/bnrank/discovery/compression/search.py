"""`compress`: a trained module reduced to its bottleneck, and the result in memory and on disk."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bnrank._core import devices, identity, validation
from bnrank.discovery import storage
from bnrank.discovery.compression import budget, judging, returned
from bnrank.discovery.compression.certificate import certified
from bnrank.discovery.compression.long_kernels import LongKernels, for_kernels_of
from bnrank.discovery.compression.lowrank import places
from bnrank.discovery.compression.parts import is_linear, multiply_adds, nonzero, parameters, segments
from bnrank.discovery.compression.reduction import Search, no_larger
from bnrank.discovery.compression.result import Compressed, finished
from bnrank.discovery.compression.stages import Step
from bnrank.discovery.compression.taps import trimmed
from bnrank.discovery.compression.timing import Timing
from bnrank.discovery.compression.wholes import factored, layer_widths, merged, split_up
from bnrank.discovery.compression.zeros import with_zeros
from bnrank.networks import Segment
from bnrank.networks.functional import Functional, check_classified, check_finite, unwrap
from bnrank.networks.replicas import copied, in_precision

P = ParamSpec("P")
TIMING = Timing()
NONE = "no linear or convolutional layer that could be replaced"
BLOCKS = 8  # of samples up to which points on lines are added, where a whole module has to be run
WORK = 10**10  # multiply-adds of the module on all samples, up to which they are added
SHARES = (0.0, 0.6, 1.0)  # of the tolerance for the segments of a larger module, before its layers are factored
MARGIN = 0.85  # fraction of the tolerance used: new samples differ more than those of the search
BEFORE_ZEROS = (0.0, 0.5)  # of the tolerance for everything else, where entries are set to zero
ENOUGH = 64  # samples that show whether the module is random
SELECTING = 0.25  # fraction of the search samples used for model selection


def _keeping_generators(call: Callable[P, Compressed]) -> Callable[P, Compressed]:
    """Restore PyTorch's random generators after a call, which modules that are random in eval mode advance."""

    @functools.wraps(call)
    def kept(*args: P.args, **options: P.kwargs) -> Compressed:
        net = unwrap(cast(Any, args[0] if args else options.get("net")))
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        with devices.forked(device):
            return call(*args, **options)

    return kept


@_keeping_generators
def compress(
    net: nn.Module,
    x: Tensor | np.ndarray | pd.DataFrame,
    y: Tensor | np.ndarray | pd.Series | None = None,
    *,
    tol: float = 0.01,
    held_out: float | Tensor | np.ndarray | pd.DataFrame | tuple[Any, Any] = 0.2,
    tune: int = 0,
    completions: bool = False,
    zeros: bool = False,
    max_samples: int = 2000,
    timing: Timing = TIMING,
    seed: int = 0,
    max_minutes: float | None = None,
    progress: bool = True,
) -> Compressed:
    r"""Return a trained module reduced to its bottleneck, within a tolerance on the change of its output.

    In a network with a bottleneck, consecutive layers compute, on the data, a linear map of small rank k (T21 to T23,
    T27). Every segment of the module (a ``nn.Sequential``, an MLP, a single layer) is reduced in four steps:

    1. dead, constant and parallel neurons and channels are removed, which changes no output;
    2. the run of layers whose replacement saves most becomes one affine map of rank k: the least-squares map from the
       preactivations of its first layer to those of its last, in the metric of the output. The run and k are selected
       by the measured change of the output. Absorbed into the first layer, the map is two Linear, n -> k -> m. Between
       convolutions on a torus it is fitted frequency by frequency (T28);
    3. neurons and channels that are, on the data, linear combinations of others are removed; their columns are added to
       those of the remaining ones;
    4. layers of low rank on the data become two. Their ranks are chosen together, by one exchange rate between
       parameters and squared change; later layers are fitted to make up for the change of earlier ones.
       Activation-aware SVD (W C^{1/2} truncated, C the covariance of the layer's inputs, the same fraction of variance
       lost in every layer) is also tried.

    Step 2 is tried with three shares of the tolerance (and omitted), step 3 with two. Of the outcomes within the
    tolerance that have at most 2 percent more parameters than the smallest, and no more than activation-aware SVD
    alone, the one with the lowest mean of three relative costs is selected: parameters, multiply-adds, layers (weights
    0.8, 0.15, 0.05).

    In a module of several segments, steps 3 and 4 come last and cover all layers together, also those that code calls
    one by one; units are removed where a trial shows that only the next layer reads them. Before that, taps of kernels
    that read nothing but zeros on all samples (padding, on images smaller than the kernel reaches) are removed; the
    reduced module is then valid only for inputs of this size. The projections of ``nn.MultiheadAttention`` and the
    matrices of LSTM and GRU are layers, too: these modules become a
    :class:`~bnrank.networks.attention.FactoredAttention` or :class:`~bnrank.networks.gated.FactoredRecurrent`.
    Segments are reduced with 0, 60 or 100 percent of the tolerance before; the outcome with the fewest parameters is
    selected.

    The search uses the samples that are not held out: three quarters for fits, the others for model selection, where a
    standard error is added to the mean square. If there are fewer than 1000 samples for fits, points on lines through
    neighbors are added, up to the neighbors' distance beyond either of them (fewer where the module takes more than
    10^10 multiply-adds for all of them); the change must be small there too.
    Fifteen percent of the tolerance is reserved for new samples. The held-out samples are used only for the
    certificate. All computations are in float64.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; it is not modified. Of several outputs the change of the main one counts, as in `bnrank.profile`;
        the network returned has the same structure of outputs, and computes the others itself. Segments of Linear and
        convolutions with any parts in between, in eval mode, are compressed; everything else is left unchanged and
        listed.
    x : Tensor, ndarray or DataFrame
        Samples from the distribution the network is applied to, (N, ...), at least 8. Preferably many, and not the
        training data, on which the network may fit noise. No labels are needed.
    y : Tensor, ndarray or Series, optional
        (N,), the classes of x as integers from 0, for outputs (N, C) of which the largest is the class: the certificate
        then has the accuracy before and after. They do not influence the search.
    tol : float
        Largest change of the output, ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, 0 < tol < 1, relative to the spread
        of the outputs. Relative to the outputs themselves the change is never larger. A module whose outputs are
        constant on x, up to round-off, has to stay the same constant.
    held_out : float, Tensor, ndarray, DataFrame or tuple
        Fraction of x reserved for the certificate, in (0, 1), or at least 8 separate samples; a pair of samples and
        classes where ``y`` is given.
    tune : int
        Largest number of iterations of L-BFGS that fit the remaining parameters to the original outputs; 0 for none.
        With tuning, cuts at 1.4, 2 and 4 times the tolerance are also tried, and kept if tuning brings the change
        within the tolerance. The network never has more parameters or multiply-adds than without tuning.
    completions : bool
        Whether a layer of rank k, with n inputs and m units, may compute k of the units, k >= 0.1 (n + m), and the
        others as linear combinations of these, by a :class:`~bnrank.networks.completion.Completion`. It has k (n + m -
        k) weights, so that every such rank below n and m saves some, but it takes at least the time of two layers: a
        network of narrow layers becomes slower, as the certificate states. With few samples the tolerance is met less
        often on new ones. Not together with ``zeros``.
    zeros : bool
        Whether to also set single entries of the layers to zero; the others are fitted to make up for it. Either half
        of the tolerance is spent on everything else before, or all of it on zeros, whichever leaves fewer entries. The
        zeros leave sizes and latency of the layers as they are: this is for storage, or software that makes use of
        zeros. The certificate counts the entries that are not zero. Layers whose units have over 8,192 inputs get no
        zeros. If no entry can be set to zero, the result is that without zeros.
    max_samples : int
        Largest number of samples of x used by the search; fewer where their values would take more than 160 MB.
    timing : Timing
        Batch size and rounds of the measured latency, as in ``timing=Timing(repeats=3)``.
    seed : int
        Random seed of the split.
    max_minutes : float, optional
        So many minutes after the call the search begins no further trial and takes the best outcome so far, with a
        remark in ``reason``; the module itself, if there is none yet. Reading the module and the first measurement
        count, but are not cut short, nor is the trial under way. The certificate comes after.
    progress : bool
        Whether to show what is tried, on a terminal.

    Returns
    -------
    Compressed
        ``network``, ``certificate``, ``steps``, ``skipped``, ``reason``, ``widths_before``, ``widths``. A module that
        cannot be reduced is returned unchanged, with the reason. Latencies in the certificate are measured with
        subnormal weights set to 0 on both sides; their share and the speedup from setting them to 0 are stated apart. A
        network that was reduced has none.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, there are too few samples, all of them are equal, the outputs vary on x but not
        on the held-out samples, parameters are not finite, the module cannot be run on x or on one sample alone, or it
        returns integers.

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
    >>> found = compress(net, x, tol=0.01, timing=bnrank.discovery.Timing(repeats=3))
    >>> found.certificate.met, found.certificate.parameters < found.certificate.parameters_before / 5
    (True, True)
    """
    start = budget.now()
    max_minutes = validation.optional(validation.number, max_minutes, "max_minutes", 0.0, strict=True)
    original = unwrap(net)
    x = judging.read_samples(original, x, "x", judging.MIN_SAMPLES)
    tol = validation.number(tol, "tol", 0.0, strict=True)
    validation.expect(tol < 1, "tol", f"{tol:g}", "0 < tol < 1, relative to the spread of the outputs")
    tune, zeros = validation.integer(tune, "tune", 0), validation.flag(zeros, "zeros")
    completions = validation.flag(completions, "completions")
    validation.expect(not (zeros and completions), "completions", "True, with zeros=True", "one of the two")
    limit = validation.integer(max_samples, "max_samples", judging.MIN_SAMPLES)
    timing = validation.kind(timing, "timing", Timing)
    seed = validation.seed(seed)
    check_finite(net)
    described = identity.describe(original, "net", values=False)  # before it runs, which can change attributes
    parted = judging.split(original, x, y, held_out, seed)
    function = Functional(original, whole=x)
    name = "x" if isinstance(held_out, float) else "held_out"
    reference = judging.outputs(function, x, "x"), judging.outputs(function, parted.kept, name)
    if parted.y is not None:
        check_classified(function, x)
    for labels, outputs, name in ((parted.y, reference[0], "y"), (parted.y_kept, reference[1], "held_out[1]")):
        if labels is not None:
            validation.classes(labels, name, outputs.shape[1])
    judging.check_spread(original, x, parted.kept, reference)
    judging.check_alone(function, x)
    noise = returned.noise(function, x[:ENOUGH])
    work = in_precision(copied(original), torch.float64).eval().requires_grad_(True)
    deciding = parted.deciding.to(function.device, torch.float64 if x.is_floating_point() else x.dtype)
    judging.check_backward(work, deciding[:2])
    with torch.no_grad():
        split = split_up(work, deciding[:2])
        found, skipped = segments(work, deciding[:2])
    one = len(found) == 1 and not found[0].name
    layers = sum(map(is_linear, work.modules()))
    others = layers > sum(map(is_linear, found[0].parts)) if one else layers > 0
    several = [segment for segment in found if one or sum(map(is_linear, segment.parts)) > 1]
    aside = {part.name for part in returned.apart(work, [segment.name for segment in several], deciding[:2])}
    several = [segment for segment in several if segment.name not in aside]
    limit = judging.affordable(work, several, deciding, limit)
    chunk_size = limit
    if others:
        limit, chunk_size = judging.affordable_whole(work, deciding, limit)
    deciding = deciding[:limit]
    real, selecting = len(deciding), max(1, round(SELECTING * len(deciding)))
    enough = min(judging.ENRICH, min(limit, BLOCKS * chunk_size) if others else limit)
    enough = min(enough, WORK // max(multiply_adds(work, deciding), 1))
    deciding = judging.enriched(deciding, real - selecting, enough, seed)
    with for_kernels_of(work):
        search = Search(deciding, function(deciding).detach(), len(deciding) - selecting, real, tune, completions)
    with for_kernels_of(work), budget.budget(max_minutes, progress, start) as time_left:
        most = MARGIN * tol * (max(BEFORE_ZEROS) if zeros else 1)
        outcomes = [_smallest(search, work, found, most)] if one else []
        if others and not (outcomes and time_left.over):
            named = [segment for segment in several if segment.name]
            outcomes.append(_whole(search, work, named, most, split, chunk_size))
        skipped = [part for part in skipped if not _tried(part.name, work, outcomes)]
        rated = lambda one: parameters(finished(original, one.new)) if one.new else math.inf  # noqa: E731
        search = dense = min(outcomes or [search], key=rated)
        if zeros and layers:
            search = _thinnest(dense, original, MARGIN * tol)
    if time_left.stopped:
        search.reasons.append(f"max_minutes={max_minutes:g} was over before everything was tried")
    search, network = _rounded([dense, search] if search is not dense else [search], net, tol)
    minutes = None if max_minutes is None else max_minutes - (budget.now() - start) / 60
    if zeros and layers and not search.values and (minutes is None or minutes > 0):  # searched with half the tolerance
        settings: dict[str, Any] = {"max_samples": max_samples, "timing": timing, "seed": seed, "progress": progress}
        again = compress(net, x, y, tol=tol, held_out=held_out, tune=tune, max_minutes=minutes, **settings)
        why = search.reasons[len(dense.reasons) :]
        return replace(again, reason="; ".join(filter(None, [*why, again.reason])), identity=described)
    new = search.new
    whole = (found[0].parts, new.get("", found[0].parts)) if one and ("" in new or not new) else None
    if whole and search.values:
        whole = whole[0], segments(in_precision(copied(network), torch.float64).eval(), deciding[:2])[0][0].parts
    return Compressed(
        network=network,
        certificate=certified((original, network), parted, tol, reference, whole, timing, random=bool(noise)),
        steps=tuple(search.steps),
        skipped=(*skipped, *(part for part in search.skipped if part.name not in {one.name for one in skipped})),
        reason="; ".join(filter(None, [noise, *search.reasons])) if outcomes else NONE,
        widths_before=layer_widths(original),
        plan={name: storage.describe(parts) for name, parts in new.items()},
        identity=described,
    )


def _smallest(search: Search, work: nn.Module, found: list[Segment], tol: float) -> Search:
    """Return the completed search; with tuning and several segments, the smaller outcome of with and without tuning.

    With tuning, a segment uses up more of the tolerance, which leaves less for the next.
    """
    if not search.tune or len(found) < 2:
        search.cut(work, found, tol)
        return search
    plain, other = replace(search, tune=0, new={}, steps=[], reasons=[], skipped=[], tried=set()), copied(work)
    plain.cut(other, found, tol)
    search.cut(work, found, tol)
    tuned_size, size = ((parameters(net), multiply_adds(net, search.x)) for net in (work, other))
    return search if no_larger(tuned_size, size) else plain


def _whole(
    search: Search, work: nn.Module, several: list[Segment], tol: float, split: list[str], chunk_size: int
) -> Search:
    """Return the outcome of fewest parameters: segments reduced by a share of the tolerance, then all layers factored.

    Segments of one layer are only factored.
    """
    outcomes: list[tuple[int, float, Search]] = []
    names, skipped = places(work, search.x)
    inside = tuple(f"{segment.name}." for segment in several)
    taps = trimmed(work, [name for name in names if not name.startswith(inside)], search.x)
    names, skipped = places(work, search.x) if taps else (names, skipped)
    whole = parameters(work), multiply_adds(work, search.x), sum(map(is_linear, work.modules()))
    tried = set(names)
    shares = [(share, search.tune) for share in (SHARES if several else (0.0,))]
    if search.tune and several:  # with tuning, a segment uses up more of the tolerance, which leaves less for the next
        shares.append((1.0, 0))
    for share, tune in shares:
        if outcomes and budget.current().over:
            break
        own = Search(search.x, search.reference, search.fitted, search.real, tune, search.completing, tried=tried)
        net = copied(work)
        if share:
            own.cut(net, several, share * tol)
            names, skipped = places(net, search.x)
        judge = search.judge()
        found = factored(judge, net, names, whole, tol, tune, chunk_size)
        if taps:
            what = ", ".join(f"{name} {sizes}" for name, sizes in taps.items())
            own.steps.append(Step("prune", "", f"kernel taps that read only zeros: {what}", 0.0))
        own.steps += found.steps
        own.new = merged(net, own.new, found.choice, [*split, *taps])
        inside_new = tuple(f"{name}." for name in own.new)
        unseen = [part for part in found.unseen if not f"{part.name}.".startswith(inside_new)]
        own.skipped += [*skipped, *unseen]
        if not own.reasons and not own.steps and not budget.current().stopped:
            own.reasons = ["no layer has low rank on the data within the tolerance" if names else NONE]
        outcomes.append((found.size, found.change, own))
    return min(outcomes, key=lambda one: one[:2])[2]


def _thinnest(search: Search, original: nn.Module, tol: float) -> Search:
    """Return the outcome with the fewest entries that are not zero: of the module reduced so far, and as given."""
    judge, outcomes = search.judge(), [(nonzero(search.built(original)), search)]
    for share in BEFORE_ZEROS:
        if (share and not search.new) or (share and budget.current().over):
            continue
        start = search if share else replace(search, new={}, steps=[])
        thin = with_zeros(judge, finished(original, start.new), tol)
        if thin is None:
            continue
        steps, skipped = [*start.steps, thin.step], [*start.skipped, *thin.skipped]
        own = replace(start, new=start.new | thin.new, values=thin.values, steps=steps, skipped=skipped)
        outcomes.append((nonzero(own.built(original)), own))
    return min(outcomes, key=lambda one: one[0])[1]


def _rounded(found: Sequence[Search], net: nn.Module, tol: float) -> tuple[Search, nn.Module]:
    """Return the last outcome that is within the tolerance in the module's own precision, and its network.

    Without any, the module itself, with the reason.
    """
    why = ""
    for search in reversed(found):
        reasons = [*search.reasons, why] if why else search.reasons
        if not search.steps:
            return replace(search, reasons=reasons), net
        network = search.built(unwrap(net))
        x, reference = search.x[-search.real :], search.reference[-search.real :]
        with LongKernels():
            change = judging.relative(reference, Functional(network)(x).detach())
        if change <= tol:
            return replace(search, reasons=reasons), network
        own = next(p.dtype for p in network.parameters() if p.is_floating_point())
        zeros = " with zeros" if search.values else ""
        why = f"in {own} the reduced network{zeros} changes the output by {100 * change:.3g} percent on these samples"
        why = f"{why}, more than tol"
    return replace(found[0], new={}, values={}, steps=[], reasons=[why]), net


def _tried(name: str, work: nn.Module, outcomes: Sequence[Search]) -> bool:
    """Return whether a submodule has parameters, all of them those of layers that were tried."""
    layers = [work.get_submodule(layer) for own in outcomes for layer in own.tried]
    known = {id(p) for layer in layers for p in layer.parameters()}
    try:
        own = {id(p) for p in work.get_submodule(name).parameters()}
    except AttributeError:  # not a submodule
        return False
    return bool(own) and own <= known
