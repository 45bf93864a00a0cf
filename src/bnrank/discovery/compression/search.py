"""`compress`: a trained module reduced to its bottleneck, and the result in memory and on disk."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from bnrank._core import files, identity, store, validation
from bnrank._core.results import Printed
from bnrank.discovery import storage
from bnrank.discovery.compression import judging
from bnrank.discovery.compression.certificate import Certificate, certified
from bnrank.discovery.compression.judging import Judge, tuned
from bnrank.discovery.compression.lowrank import places
from bnrank.discovery.compression.parts import Parts, counts, is_linear, multiply_adds, parameters, segments
from bnrank.discovery.compression.stages import Cut, Step, cut_down, fewest
from bnrank.discovery.compression.timing import without_subnormals
from bnrank.discovery.compression.wholes import TUNED, factored, merged, put, split_attention
from bnrank.networks import Segment, Skipped
from bnrank.networks.attention import FactoredAttention
from bnrank.networks.functional import Functional, check_finite, unwrap

KIND = "compressed network"
SHARES = (0.0, 0.6, 0.9)  # of the tolerance for the segments of a larger module, before its layers are factored
MARGIN = 0.85  # fraction of the tolerance used: new samples differ more than those of the search
SELECTING = 0.25  # fraction of the search samples used for model selection


@dataclass(frozen=True)
class Compressed(Printed):
    """A smaller network, its certificate and the steps that led to it; ``print`` shows a table.

    Attributes
    ----------
    network : torch.nn.Module
        A ``nn.Sequential`` of torch layers where the module was one segment; else a copy of the module with each
        segment replaced by one. The module itself where nothing was changed.
    certificate : Certificate
        Changes, bound, parameters, multiply-adds and latency, before and after.
    steps : tuple of Step
        The steps, in order.
    skipped : tuple of Skipped
        The parts left unchanged, each with the reason.
    reason : str
        Why no bottleneck was collapsed, by segment; empty if every segment had one collapsed.
    plan : mapping
        From the name of every replaced segment to its layers, as plain values: see
        :func:`~bnrank.discovery.storage.rebuild`.
    identity : mapping
        The parts of the original module, without the values of parameters and buffers.
    """

    network: nn.Module
    certificate: Certificate
    steps: tuple[Step, ...]
    skipped: tuple[Skipped, ...]
    reason: str
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def changed(self) -> bool:
        """Whether the network differs from the given one."""
        return bool(self.steps)

    def save(self, path: str | os.PathLike[str], tag: str | None = None) -> Path:
        """Write network and plan to one safetensors file; return the path.

        Parameters
        ----------
        path : path
            A name ending in ``.safetensors``.
        tag : str, optional
            The version of parts of the module that cannot be identified, as in `bnrank.training.Save`; needed only
            where some segments of a larger module were replaced.

        Raises
        ------
        TypeError, ValueError
            If a part of a segment is not a torch layer that plain values describe, a part of the rest cannot be
            identified, or the path is invalid.
        """
        path = files.checked_path(path, "path", store.SUFFIX)
        if not self.plan:
            raise ValueError("network: nothing was compressed, expected replaced segments; save the module itself")
        unknown = [name or "the module" for name, layers in self.plan.items() if layers is None]
        if unknown:
            found = ", ".join(unknown)
            raise TypeError(f"network: {found} has parts that no plain values describe; save its state_dict")
        parts = {} if "" in self.plan else self.identity | ({} if tag is None else {"tag": repr(tag)})
        identity.require(parts)
        return store.save(path, self.network.state_dict(), {"plan": dict(self.plan), "identity": parts}, KIND)

    def __str__(self) -> str:
        lines = [] if self.changed else ["returned as it is"]
        for step in self.steps:
            where = f" ({step.where})" if step.where else ""
            lines.append(f"{step.kind}{where}: {step.what}; change so far {100 * step.change:.3g} %")
        lines += [self.reason] if self.reason else []
        lines += [f"skipped {part}" for part in self.skipped]
        return "\n".join([*lines, str(self.certificate)])


def compress(
    net: nn.Module,
    x: Tensor | np.ndarray | pd.DataFrame,
    y: Tensor | np.ndarray | pd.Series | None = None,
    *,
    tol: float = 0.01,
    held_out: float | Tensor | np.ndarray | pd.DataFrame | tuple[Any, Any] = 0.2,
    tune: int = 0,
    max_samples: int = 2000,
    batch_size: int = 256,
    repeats: int = 25,
    seed: int = 0,
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
    4. layers of low rank on the data become two, where that saves multiply-adds.

    Step 2 is tried with three shares of the tolerance (and omitted), step 3 with two. Of all outcomes within the
    tolerance, the one with the lowest mean of three relative costs is selected: parameters, multiply-adds, layers.

    The search uses the samples that are not held out: three quarters for fits, the others for model selection, where a
    standard error is added to the mean square. If there are fewer than 1000 samples for fits, points on lines through
    neighbors are added, up to the neighbors' distance beyond either of them; the change must be small there too.
    Fifteen percent of the tolerance is reserved for new samples. The held-out samples are used only for the
    certificate. All computations are in float64.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; it is not modified. Segments of Linear and convolutions with any parts in between, in eval mode, are
        compressed; everything else is left unchanged and listed.
    x : Tensor, ndarray or DataFrame
        Samples from the distribution the network is applied to, (N, ...), at least 8. Preferably many, and not the
        training data, on which the network may fit noise. No labels are needed.
    y : Tensor, ndarray or Series, optional
        (N,), the classes of x as integers from 0, where the largest output is the class: the certificate then has the
        accuracy before and after. They do not influence the search.
    tol : float
        Largest change of the output, ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, 0 < tol < 1, relative to the spread
        of the outputs. Relative to the outputs themselves the change is never larger.
    held_out : float, Tensor, ndarray, DataFrame or tuple
        Fraction of x reserved for the certificate, in (0, 1), or at least 8 separate samples; a pair of samples and
        classes where ``y`` is given.
    tune : int
        Iterations of L-BFGS that fit the remaining parameters to the original outputs; 0 for none. With tuning, cuts at
        1.4, 2 and 4 times the tolerance are also tried, and kept if tuning brings the change within the tolerance. The
        network never has more parameters or multiply-adds than without tuning.
    max_samples : int
        Largest number of samples of x used by the search; fewer where their values would take more than 160 MB.
    batch_size, repeats : int
        Settings of the measured latency.
    seed : int
        Random seed of the split.

    Returns
    -------
    Compressed
        ``network``, ``certificate``, ``steps``, ``skipped``, ``reason``. A module that cannot be reduced is returned
        unchanged, with the reason. Latencies in the certificate are measured with subnormal weights set to 0 on both
        sides; their share and what they cost is stated apart, and the network returned has none.

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
    original = unwrap(net)
    x = judging.read_samples(original, x, "x", judging.MIN_SAMPLES)
    tol = validation.number(tol, "tol", 0.0, strict=True)
    validation.expect(tol < 1, "tol", f"{tol:g}", "0 < tol < 1, relative to the spread of the outputs")
    tune = validation.integer(tune, "tune", 0)
    limit = validation.integer(max_samples, "max_samples", judging.MIN_SAMPLES)
    timing = validation.integer(batch_size, "batch_size"), validation.integer(repeats, "repeats")
    seed = validation.seed(seed)
    check_finite(net)
    parted = judging.split(original, x, y, held_out, seed)
    function = Functional(original)
    reference = judging.outputs(function, x, "x"), judging.outputs(function, parted.kept, "held_out")
    for labels, outputs, name in ((parted.y, reference[0], "y"), (parted.y_kept, reference[1], "held_out[1]")):
        if labels is not None:
            validation.classes(labels, name, outputs.shape[1])
    judging.check_spread(original, x, parted.kept, reference)
    work = copy.deepcopy(original).double().eval().requires_grad_(True)
    attentions = split_attention(work)
    deciding = parted.deciding.to(function.device, torch.float64 if x.is_floating_point() else x.dtype)
    with torch.no_grad():
        found, skipped = segments(work, deciding[:2])
    one = len(found) == 1 and not found[0].name
    several = [segment for segment in found if one or sum(map(is_linear, segment.parts)) > 1]
    limit = judging.affordable(work, several, deciding, limit)
    chunk_size = limit
    if not one:
        limit, chunk_size = judging.affordable_whole(work, deciding, limit)
    deciding = deciding[:limit]
    real, selecting = len(deciding), max(1, round(SELECTING * len(deciding)))
    deciding = judging.enriched(deciding, real - selecting, min(judging.ENRICH, limit), seed)
    search = _Search(deciding, function(deciding).detach(), len(deciding) - selecting, real, tune)
    if one:
        search = _smallest(search, work, found, MARGIN * tol)
    elif found:
        search = _whole(search, work, several, MARGIN * tol, attentions, chunk_size)
    new = search.new
    network = _finished(original, new) if new else net
    whole = (found[0].parts, new.get("", found[0].parts)) if one else None
    return Compressed(
        network=network,
        certificate=certified((original, network), parted, tol, reference, whole, timing),
        steps=tuple(search.steps),
        skipped=(*skipped, *search.skipped),
        reason="; ".join(search.reasons) if found else "no linear or convolutional layer that could be replaced",
        plan={name: storage.describe(parts) for name, parts in new.items()},
        identity=identity.describe(unwrap(net), "net", values=False),
    )


@dataclass
class _Search:
    """The reduction of segments, one after another.

    Attributes
    ----------
    x, reference : Tensor
        The samples of the search, and the module's output on them.
    fitted : int
        Number of samples for fits, which come first.
    real : int
        Number of given (not interpolated) samples, which come last.
    tune : int
        Iterations.
    new : dict
        From names of segments to their replacements.
    """

    x: Tensor
    reference: Tensor
    fitted: int
    real: int
    tune: int
    new: dict[str, Parts] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def cut(self, work: nn.Module, found: list[Segment], tol: float) -> None:
        """Reduce the segments of a module, in place.

        After each segment the squared change is at most its share: the fraction of the parameters considered so far.
        """
        sizes = [parameters(nn.Sequential(*segment.parts)) for segment in found]
        done = 0
        for segment, size in zip(found, sizes, strict=True):
            done += size
            limit = tol * (done / max(sum(sizes), 1)) ** 0.5
            try:
                judge = self._judge(work, segment)
                judge(segment.parts)
            except (AttributeError, TypeError, RuntimeError) as error:
                why = f"the module cannot be run with another module in its place: {error}"
                self.skipped.append(Skipped(segment.name, "segment", why))
                continue
            cut = _cut(judge, segment, limit, self.tune)
            own = list(cut.steps)
            if segment.folded:
                what = f"{segment.folded} batch normalization(s) into the layers before"
                own.insert(0, Step("fold", segment.name, what, 0.0))
            if cut.reason:
                self.reasons.append(f"{segment.name}: {cut.reason}" if segment.name else cut.reason)
            if own and cut.change <= limit:
                self.steps += own
                self.new[segment.name] = cut.parts
                work = replaced(work, segment.name, nn.Sequential(*cut.parts))

    def _judge(self, work: nn.Module, segment: Segment) -> Judge:
        with torch.no_grad():
            given = judging.entering(work, segment.name, self.x).detach()
        first, second = (
            (given[rows], _rest(work, segment.name, self.x[rows]), self.reference[rows].flatten(1))
            for rows in (slice(0, self.fitted), slice(self.fitted, None))
        )
        return Judge(first, second, self.reference[-self.real :])


def _smallest(search: _Search, work: nn.Module, found: list[Segment], tol: float) -> _Search:
    """Return the completed search; with tuning and several segments, the smaller outcome of with and without tuning.

    With tuning, a segment uses up more of the tolerance, which leaves less for the next.
    """
    if not search.tune or len(found) < 2:
        search.cut(work, found, tol)
        return search
    plain, other = _Search(search.x, search.reference, search.fitted, search.real, 0), copy.deepcopy(work)
    plain.cut(other, found, tol)
    search.cut(work, found, tol)
    tuned_size, size = ((parameters(net), multiply_adds(net, search.x)) for net in (work, other))
    return search if _no_larger(tuned_size, size) else plain


def _whole(
    search: _Search, work: nn.Module, several: list[Segment], tol: float, attentions: list[str], chunk_size: int
) -> _Search:
    """Return the outcome of fewest parameters: segments reduced by a share of the tolerance, then all layers factored.

    Segments of one layer are only factored.
    """
    outcomes = []
    whole = parameters(work), multiply_adds(work, search.x), sum(map(is_linear, work.modules()))
    names, skipped = places(work, search.x)
    for share in SHARES if several else (0.0,):
        own = _Search(search.x, search.reference, search.fitted, search.real, search.tune)
        net = copy.deepcopy(work)
        if share:
            own.cut(net, several, share * tol)
            names, skipped = places(net, search.x)
        first, second = (
            (search.x[rows], _flat, search.reference[rows].flatten(1))
            for rows in (slice(0, search.fitted), slice(search.fitted, None))
        )
        judge = Judge(first, second, search.reference[-search.real :])
        found = factored(judge, net, names, whole, tol, search.tune, chunk_size)
        own.steps += found.steps
        own.new = merged(net, own.new, found.choice, attentions)
        own.skipped += skipped
        if not own.reasons and not own.steps:
            own.reasons = ["no layer has low rank on the data within the tolerance"]
        outcomes.append((found.size, found.change, own))
    return min(outcomes, key=lambda one: one[:2])[2]


def _flat(value: Tensor) -> Tensor:
    return value.flatten(1)


def _no_larger(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(one <= other for one, other in zip(a, b, strict=True))


def _rest(work: nn.Module, name: str, x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map from a segment's output to the module's output, for given samples."""
    if not name:
        return lambda value: value.flatten(1)
    stub: Any = nn.Module()
    around = put(copy.deepcopy(work), name, stub)

    def rest(value: Tensor) -> Tensor:
        stub.forward = lambda _: value
        return cast(Tensor, around(x.clone())).flatten(1)

    return rest


def _cut(judge: Judge, segment: Segment, limit: float, tune: int) -> Cut:
    """Return a reduced segment; with tuning, the cheapest of the cuts at multiples of the limit that end within it.

    A tuned outcome counts only if it has no more parameters and multiply-adds than the outcome without tuning: in the
    cost alone, fewer layers could outweigh more of either.
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
            cut = replace(cut, parts=parts, steps=(*cut.steps, step), change=found)
        if cut.change <= limit:
            outcomes.append(cut)
    return min(outcomes, key=fewest)


def _finished(original: nn.Module, new: dict[str, Parts]) -> nn.Module:
    """Return the module with new segments and no subnormal weights, in its own precision, device and mode."""
    network = copy.deepcopy(original)
    first = next(p for p in original.parameters() if p.is_floating_point())
    for name, parts in new.items():
        segment = nn.Sequential(*(copy.deepcopy(part).to(first.device, first.dtype) for part in parts))
        segment.requires_grad_(True).zero_grad(set_to_none=True)
        network = replaced(network, name, segment)
    return without_subnormals(network).train(original.training)


def replaced(net: nn.Module, name: str, segment: nn.Sequential) -> nn.Module:
    """Return the module with a submodule replaced, in place; the segment itself for the name ""."""
    alone = len(segment) == 1 and isinstance(segment[0], FactoredAttention)
    return put(net, name, segment[0] if alone else segment)


def open_compressed(stored: store.Stored, net: nn.Module | None = None) -> nn.Module:
    """Return the network in a file of kind "compressed network", in eval mode and in the precision of the file.

    Parameters
    ----------
    stored : Stored
        The contents of the file.
    net : torch.nn.Module, optional
        A module of the original architecture, required where only some segments were replaced; it is copied.

    Raises
    ------
    ValueError
        If the file is corrupted, or ``net`` is missing or another network, apart from its parameters and buffers.
    """
    plan: Any = stored.about.get("plan")
    described = isinstance(plan, dict) and all(isinstance(layers, list) for layers in plan.values())
    validation.expect(described, "path", f"{stored.path} with a damaged plan", "layers by name of a segment")
    if "" not in plan and net is None:
        raise ValueError(f"net: got None, but {stored.path} holds segments {', '.join(plan)} of a larger module")
    network = copy.deepcopy(net) if net is not None else nn.Module()
    if "" not in plan:
        identity.expect_same(stored.about.get("identity", {}), unwrap(network), stored.path, values=False)
    try:
        for name, layers in plan.items():
            start = f"{name}." if name else ""
            own = {key.removeprefix(start): t for key, t in stored.tensors.items() if key.startswith(start)}
            alone = len(layers) == 1 and layers[0].get("type") == "FactoredAttention"
            inner = {f"0.{key}": t for key, t in own.items()} if alone else own
            network = replaced(network, name, storage.rebuild(layers, inner))
        floating = next((t.dtype for t in stored.tensors.values() if t.is_floating_point()), torch.float32)
        network = network.to(floating)
        network.load_state_dict(stored.tensors)
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"path: {stored.path} does not fit the module: {error}") from error
    return network.eval()
