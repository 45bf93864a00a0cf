"""`compress`: a trained module reduced to its bottleneck, and the result in memory and on disk."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bnrank._core import identity, validation
from bnrank.discovery import storage
from bnrank.discovery.compression import budget, judging, returned
from bnrank.discovery.compression.certificate import certified
from bnrank.discovery.compression.lowrank import places
from bnrank.discovery.compression.parts import Segment, is_linear, multiply_adds, parameters, segments
from bnrank.discovery.compression.reduction import Search
from bnrank.discovery.compression.result import Compressed, finished, prepared
from bnrank.discovery.compression.returned import Judged
from bnrank.discovery.compression.timing import Timing
from bnrank.discovery.compression.wholes import factored, layer_widths, merged, split_up
from bnrank.networks import Skipped
from bnrank.networks.functional import Functional, check_finite, unwrap
from bnrank.networks.replicas import copied

TIMING = Timing()
NONE = "no linear or convolutional layer that could be replaced"
BLOCKS = 8  # of samples up to which points on lines are added, where a whole module has to be run
WORK = 10**10  # multiply-adds of the module on all samples, up to which they are added
SHARES = (0.0, 0.6, 1.0)  # of the tolerance for the segments of a larger module, before its layers are factored
MARGIN = 0.85  # fraction of the tolerance used: new samples differ more than those of the search
ENOUGH = 64  # samples that show whether the module is random
SELECTING = 0.25  # fraction of the search samples used for model selection


def compress(
    net: nn.Module,
    x: Tensor | np.ndarray | pd.DataFrame,
    y: Tensor | np.ndarray | pd.Series | None = None,
    *,
    tol: float = 0.01,
    held_out: float | Tensor | np.ndarray | pd.DataFrame | tuple[Any, Any] = 0.2,
    outputs: Sequence[str] | None = None,
    tune: int = 0,
    timing: Timing = TIMING,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    max_minutes: float | None = None,
    progress: bool = True,
) -> Compressed:
    r"""Return a trained module reduced to its bottleneck, within a tolerance on the change of its outputs.

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
    one by one; units are removed where a trial shows that only the next layer reads them. The projections of
    ``nn.MultiheadAttention`` and the matrices of LSTM and GRU are layers, too: these modules become a
    :class:`~bnrank.discovery.attention.FactoredAttention` or :class:`~bnrank.discovery.gated.FactoredRecurrent`.
    Segments are reduced with 0, 60 or 100 percent of the tolerance before; the outcome with the fewest parameters is
    selected. Layers with masks of ``torch.nn.utils.prune`` count with the masked weights.

    The search uses at most 2000 of the samples that are not held out: three quarters for fits, the others for model
    selection, where a standard error is added to the mean square. If there are fewer than 1000 samples for fits, points
    on lines through neighbors are added, up to the neighbors' distance beyond either of them (fewer where the module
    takes more than 10^10 multiply-adds for all of them); the change must be small there too.
    Fifteen percent of the tolerance is reserved for new samples. The held-out samples are used only for the
    certificate.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; it is not modified, and runs in eval mode. Segments of Linear and convolutions with any parts in
        between are compressed; everything else is left unchanged and listed. The network returned has the same outputs,
        and every part of it the mode that it has here.
    x : Tensor, ndarray or DataFrame
        Samples from the distribution the network is applied to, (N, ...), at least 8. Preferably many, and not the
        training data, on which the network may fit noise. No labels are needed.
    y : Tensor, ndarray or Series, optional
        (N,), the classes of x as integers from 0, for outputs (N, C) of which the largest is the class: the certificate
        then has the accuracy before and after. They do not influence the search. Of several outputs, the main one or
        the first in ``outputs``.
    tol : float
        Largest change of every output, ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, 0 < tol < 1, relative to its
        spread. Relative to the output itself the change is never larger. An output that is constant on x, up to
        round-off, has to stay the same constant.
    outputs : sequence of str, optional
        The outputs whose change is bounded, by name: "logits", "[1]", "hidden[0]". Default: every tensor of floating
        point with an entry per sample in the tuples, mappings and dataclasses that the module returns. Layers on which
        only other outputs depend are left unchanged.
    held_out : float, Tensor, ndarray, DataFrame or tuple
        Fraction of x reserved for the certificate, in (0, 1), or at least 8 separate samples; a pair of samples and
        classes where ``y`` is given.
    tune : int
        Largest number of iterations of L-BFGS that fit the remaining parameters to the original outputs; 0 for none.
        With tuning, cuts at 1.4, 2 and 4 times the tolerance are also tried, and kept if tuning brings the change
        within the tolerance. The network never has more parameters or multiply-adds than without tuning.
    timing : Timing
        Batch size and rounds of the measured latency, as in ``timing=Timing(repeats=3)``.
    seed : int
        Random seed of the split.
    dtype : torch.dtype
        Precision in which networks run; fits are in float64. ``torch.float32`` for operations that torch has not in
        float64, and for long kernels, which are slow in float64.
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
    >>> found = bnrank.compress(net, x, tol=0.01, timing=bnrank.discovery.Timing(repeats=3))
    >>> found.certificate.met, found.certificate.parameters < found.certificate.parameters_before / 5
    (True, True)
    """
    start = budget.now()
    max_minutes = validation.optional(validation.number, max_minutes, "max_minutes", 0.0, strict=True)
    original, dtype = unwrap(net), validation.dtype(dtype)
    x = judging.read_samples(original, x, "x", judging.MIN_SAMPLES)
    tol = validation.number(tol, "tol", 0.0, strict=True)
    validation.expect(tol < 1, "tol", f"{tol:g}", "0 < tol < 1, relative to the spread of the outputs")
    tune = validation.integer(tune, "tune", 0)
    timing = validation.kind(timing, "timing", Timing)
    seed = validation.seed(seed)
    check_finite(net)
    described = identity.describe(original, "net", values=False)  # before it runs, which can change attributes
    parted = judging.split(original, x, y, held_out, seed)
    function = Functional(original, dtype, whole=x)
    judged, unbounded, reference = judging.measured(function, parted, outputs)
    noise = returned.noise(function, x[:ENOUGH])
    confined = returned.confinement(lambda: function(x[:2]))
    with confined(), budget.budget(max_minutes, progress, start) as time_left:
        work = prepared(original, dtype)
        deciding = parted.deciding.to(function.device, dtype if x.is_floating_point() else x.dtype)
        judging.check_backward(work, judged, deciding[:2])
        anatomy = _anatomy(work, deciding[:2], judged)
        search, chunk_size = _posed(anatomy, function, judged, deciding, tune, seed)
        outcomes = _outcomes(search, anatomy, MARGIN * tol, chunk_size)
        skipped = [*unbounded, *(part for part in anatomy.skipped if not _tried(part.name, work, outcomes))]
        search = min(outcomes or [search], key=lambda one: _size(original, one))
        if time_left.stopped:
            search.reasons.append(f"max_minutes={max_minutes:g} was over before everything was tried")
        search, network = _rounded(search, net, tol, dtype)
        whole = None
        if anatomy.whole is not None and len(judged.names) == 1 and set(search.new) <= {""}:
            whole = anatomy.whole.parts, search.new.get("", anatomy.whole.parts)
        nets = original, network
        certificate = certified(nets, parted, tol, judged, reference, whole, timing, dtype=dtype, random=bool(noise))
    known = {part.name for part in skipped}
    return Compressed(
        network=network,
        certificate=certificate,
        steps=tuple(search.steps),
        skipped=(*skipped, *(part for part in search.skipped if part.name not in known)),
        reason="; ".join(filter(None, [noise, *search.reasons])) if outcomes else NONE,
        widths_before=layer_widths(original),
        plan={name: storage.describe(parts) for name, parts in search.new.items()},
        identity=described,
    )


def _size(original: nn.Module, search: Search) -> float:
    """Return the number of parameters of an outcome; infinite where nothing was found."""
    return parameters(finished(original, search.new)) if search.new else math.inf


@dataclass(frozen=True)
class Anatomy:
    """What of a working copy can be reduced.

    Attributes
    ----------
    work : torch.nn.Module
        The copy.
    split : list of str
        Attention and recurrent modules that were split into linear layers.
    whole : Segment or None
        The module, where it is one segment.
    segments : list of Segment
        Segments of several layers inside the module.
    others : bool
        Whether the module has linear layers outside of ``whole``.
    aside, skipped : list of Skipped
        Layers that no judged output depends on, and everything else that is no part of a segment.
    """

    work: nn.Module
    split: list[str]
    whole: Segment | None
    segments: list[Segment]
    others: bool
    aside: list[Skipped]
    skipped: list[Skipped]


def _anatomy(work: nn.Module, x: Tensor, judged: Judged) -> Anatomy:
    """Return what can be reduced in a working copy, in which attention and recurrent modules are split."""
    with torch.no_grad():
        split = split_up(work, x)
        found, skipped = segments(work, x)
    whole = found[0] if len(found) == 1 and not found[0].name else None
    layers = [name for name, part in work.named_modules() if is_linear(part)]
    inside = [segment for segment in found if segment.name and sum(map(is_linear, segment.parts)) > 1]
    aside = returned.apart(work, dict.fromkeys([*layers, *(segment.name for segment in inside)]), x, judged)
    names = {part.name for part in aside}
    others = len(layers) > (0 if whole is None else sum(map(is_linear, whole.parts)))
    inside = [segment for segment in inside if segment.name not in names]
    return Anatomy(work, split, whole, inside, others, aside, skipped)


def _posed(
    anatomy: Anatomy, function: Functional, judged: Judged, x: Tensor, tune: int, seed: int
) -> tuple[Search, int]:
    """Return the search on as many samples as memory allows, supplemented if there are few, and those per block."""
    work, whole = anatomy.work, anatomy.whole
    limit = chunk_size = judging.affordable(work, anatomy.segments if whole is None else [whole], x)
    if anatomy.others:
        limit, chunk_size = judging.affordable_whole(work, x, limit)
    x = x[:limit]
    real, selecting = len(x), max(1, round(SELECTING * len(x)))
    enough = min(judging.ENRICH, min(limit, BLOCKS * chunk_size) if anatomy.others else limit)
    enough = min(enough, WORK // max(multiply_adds(work, x), 1))
    x = judging.enriched(x, real - selecting, enough, seed)
    with torch.no_grad():
        reference = judged(returned.run(function, x))
    return Search(x, judged, reference, len(x) - selecting, real, tune), chunk_size


def _outcomes(search: Search, anatomy: Anatomy, tol: float, chunk_size: int) -> list[Search]:
    """Return what was found for the module as one segment, and as one of several."""
    outcomes = []
    if anatomy.whole is not None:
        search.cut(anatomy.work, [anatomy.whole], tol)
        outcomes.append(search)
    if anatomy.others and not (outcomes and budget.current().over):
        outcomes.append(_of_several(search, anatomy, tol, chunk_size))
    return outcomes


def _of_several(search: Search, anatomy: Anatomy, tol: float, chunk_size: int) -> Search:
    """Return the outcome of fewest parameters: segments reduced by a share of the tolerance, then all layers factored.

    Segments of one layer are only factored.
    """
    outcomes: list[tuple[int, float, Search]] = []
    work, several = anatomy.work, anatomy.segments
    names, skipped = places(work, search.x, anatomy.aside)
    whole = parameters(work), multiply_adds(work, search.x), sum(map(is_linear, work.modules()))
    tried = set(names)
    shares = [(share, search.tune) for share in (SHARES if several else (0.0,))]
    if search.tune and several:  # with tuning, a segment uses up more of the tolerance, which leaves less for the next
        shares.append((1.0, 0))
    for share, tune in shares:
        if outcomes and budget.current().over:
            break
        own = replace(search, tune=tune, new={}, steps=[], reasons=[], skipped=[], tried=tried)
        net = copied(work)
        if share:
            own.cut(net, several, share * tol)
            names, skipped = places(net, search.x, anatomy.aside)
        found = factored(search.judge(), net, names, whole, tol, tune, chunk_size)
        own.steps += found.steps
        own.new = merged(net, own.new, found.choice, anatomy.split)
        inside_new = tuple(f"{name}." for name in own.new)
        unseen = [part for part in found.unseen if not f"{part.name}.".startswith(inside_new)]
        own.skipped += [*skipped, *unseen]
        if not own.reasons and not own.steps and not budget.current().stopped:
            own.reasons = ["no layer has low rank on the data within the tolerance" if names else NONE]
        outcomes.append((found.size, found.change, own))
    return min(outcomes, key=lambda one: one[:2])[2]


def _rounded(search: Search, net: nn.Module, tol: float, dtype: torch.dtype) -> tuple[Search, nn.Module]:
    """Return the outcome and its network, if that is within the tolerance in the module's own precision.

    Otherwise the module itself, with the reason.
    """
    if not search.steps:
        return search, net
    network = finished(unwrap(net), search.new)
    with torch.no_grad():
        after = search.judged(returned.run(Functional(network, dtype), search.x[-search.real :]))
    change = judging.relative(search.given, after)
    if change <= tol:
        return search, network
    own = next(p.dtype for p in network.parameters() if p.is_floating_point())
    by = f"{100 * change:.3g} percent on these samples, more than tol"
    why = f"in {own} the reduced network changes the output by {by}"
    return replace(search, new={}, steps=[], reasons=[why]), net


def _tried(name: str, work: nn.Module, outcomes: Sequence[Search]) -> bool:
    """Return whether a submodule has parameters, all of them those of layers that were tried."""
    layers = [work.get_submodule(layer) for own in outcomes for layer in own.tried]
    known = {id(p) for layer in layers for p in layer.parameters()}
    try:
        own = {id(p) for p in work.get_submodule(name).parameters()}
    except AttributeError:  # not a submodule
        return False
    return bool(own) and own <= known
