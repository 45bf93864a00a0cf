"""The fields that leave a function unchanged: singular values, the gap in them, and the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bnrank.discovery.symmetry_search.algebra import bracket_defect, only_constants
from bnrank.discovery.symmetry_search.fields import ENTRIES, AffineFields, Family
from bnrank.discovery.symmetry_search.finite import WITHIN
from bnrank.discovery.symmetry_search.models import outputs_of
from bnrank.discovery.symmetry_search.problem import Coordinates

__all__ = [
    "ALONE",
    "CLOSED",
    "CONTRAST",
    "EXACT",
    "Found",
    "LARGEST",
    "Sample",
    "carried_out",
    "change",
    "gap",
    "look",
    "residuals",
    "shuffled",
]

EXACT = 1e-6  # relative singular values up to this are rounding
IGNORED = 0.05  # the same for constant fields, of which few small ones can matter together
LARGEST = 0.2  # a field that changes f by more than a fifth of what an unrelated one does is no symmetry
CONTRAST = 3.0  # a gap counts if its log ratio is so many times that of any other near it
DOUBTFUL = 2.5  # gaps that fall short of it are none
AGREE = 0.9  # of the resamples have to find the same number of fields
CANDIDATES = 10  # gaps looked at, the largest first
LEAST = 1.15  # the least ratio that counts as a gap at all
ALONE = 10.0  # the ratio asked for where brackets say nothing: one field, or translations only
CLOSED = 0.3  # share of the brackets of the fields found that lies outside their span, at most
FLOOR = 1e-12  # below it ratios mean nothing
BLOCKS, FOLDS = 32, 5

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gap:
    """Where singular values, ascending, part into those of symmetries and the rest.

    Attributes
    ----------
    count : int
        Values below the gap; 0 if there is no gap.
    ratio : float
        First value above it over the last below; NaN without a gap.
    exact : bool
        Whether those below are rounding.
    defect : float
        Share of the brackets of the fields below that leaves their span; NaN for fewer than two fields or if unknown.
    contrast : float
        Logarithm of the ratio over the largest of any other ratio among the small values; infinite without another.
    reason : str
        Why the best candidate does not count, or an empty string.
    candidate : int
        The number of values below the largest gap looked at, counted or not.
    """

    count: int
    ratio: float
    exact: bool
    defect: float
    contrast: float
    reason: str
    candidate: int


@dataclass(frozen=True)
class Found:
    """Fields found among a family.

    Attributes
    ----------
    gap : Gap
        Of all samples.
    values : Tensor
        Relative singular values, ascending, (p,).
    vectors : Tensor
        Coefficients of the fields below the gap, (count, p).
    counts : ndarray
        Number of fields on every resample.
    held_out : float
        Largest relative singular value of fields found on four fifths of the samples on the fifth left out, over the
        five; NaN where none is found.
    status : str
        "exact", "approximate", "none" or "undetermined".
    reason : str
        What the status rests on.
    doubtful : Tensor
        Coefficients of the fields below the best gap where that does not count, (candidate, p).
    """

    gap: Gap
    values: Tensor
    vectors: Tensor
    counts: Array
    held_out: float
    status: str
    reason: str
    doubtful: Tensor

    @property
    def count(self) -> int:
        """The number of fields found."""
        return self.gap.count


def gap(values: Tensor, vectors: Tensor, family: Family, error: float | None) -> Gap:
    """Find the gap in singular values, ascending; ``vectors`` (p, p) has the fields in the same order.

    Values up to 1e-6 are rounding, and fields with such values exact. Without one, the candidate is the largest ratio
    s_{k+1} / s_k among small values, s_k <= 0.2 (constant fields, of an f of unknown error: 0.05). It counts if its
    logarithm is three times that of any other ratio up to 2 s_{k+1}, and the fields are closed under brackets to 30
    percent; one field and constant ones, whose brackets say nothing, need a ratio of 10, or one of 2 with a known
    error. With ``error`` 0 nothing but rounding counts.
    """
    s = values.clamp(min=FLOOR)
    p = len(s)
    exact = int((s <= EXACT).sum())
    if exact:
        ratio = float(s[exact] / s[exact - 1]) if exact < p else math.inf
        return Gap(exact, ratio, True, bracket_defect(family, vectors[:exact]), math.inf, "", exact)
    if error == 0:
        return Gap(0, math.nan, False, math.nan, math.nan, f"the smallest value, {float(s[0]):.2g}, is no rounding", 0)
    most = IGNORED if error is None and only_constants(family) else LARGEST
    small = min(int((s <= most).sum()), p - 1)
    if not small:
        reason = f"the smallest value, {float(s[0]):.2g}, is above {most:.2g}"
        return Gap(0, math.nan, False, math.nan, math.nan, reason, 0)
    logs = (s[1 : small + 1] / s[:small]).log()
    candidates = [int(i) for i in logs.argsort(descending=True)[:CANDIDATES] if logs[i] >= math.log(LEAST)]
    judged = [_judged(i + 1, logs, s, bracket_defect(family, vectors[: i + 1]), error) for i in candidates]
    if not judged:
        return Gap(0, math.nan, False, math.nan, math.nan, "no gap among the small values", int(logs.argmax()) + 1)
    return next((found for found in judged if found.count), max(judged, key=lambda found: found.contrast))


def _judged(k: int, logs: Tensor, s: Tensor, defect: float, error: float | None) -> Gap:
    """Say whether the gap after k values counts."""
    log = float(logs[k - 1])
    near = int((s[: len(logs)] <= 2 * s[k]).sum())  # ratios far above the gap say nothing about it
    others = torch.cat([logs[: k - 1], logs[k:near]])
    contrast = log / max(float(others.max()), 1e-3) if len(others) else math.inf
    ratio = math.exp(log)
    reason = ""
    if contrast < CONTRAST:
        reason = f"the gap of {ratio:.3g} after {k} values does not stand out"
    elif math.isnan(defect):
        if ratio < (ALONE if error is None else 2.0):
            reason = f"the gap of {ratio:.3g} after {k} values is too small for fields without brackets"
    elif defect > CLOSED:
        reason = f"the {k} fields below the gap are not closed under brackets ({defect:.0%} outside)"
    return Gap(0 if reason else k, ratio, False, defect, contrast, reason, k)


def look(sample: Sample, family: Family, error: float | None, resamples: int, seed: int) -> Found:
    """Find the fields of a family that leave f alone, with resamples and held-out parts of the sample.

    The relative singular value of a field v is

        s(v) = sqrt(q) rms_i ||J_i v(z_i)|| / (rms_i ||J_i||_F rms_i ||v(z_i)||),

    in coordinates z (N, q) with mean 0 and covariance 1: 1 for directions that have nothing to do with J.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sample), generator=generator)
    p = len(family)
    blocks = max(2, min(len(sample), BLOCKS, max(FOLDS, 2**26 // p**2)))
    parts = [sample.at(rows) for rows in order.tensor_split(blocks)]
    grams = torch.stack([_gram(part, family) for part in parts])
    sizes = torch.tensor([float(part.jacobian.square().sum()) for part in parts], dtype=torch.float64)
    values, vectors = _spectrum(grams.sum(0), float(sizes.sum()), sample.z.shape[1])
    values, vectors = _refined(sample, family, values, vectors)
    whole = gap(values, vectors, family, error)
    counts: list[int] = []
    for _ in range(resamples):
        times = torch.bincount(torch.randint(blocks, (blocks,), generator=generator), minlength=blocks).double()
        drawn = _spectrum(torch.einsum("b,bij->ij", times, grams), float(times @ sizes), sample.z.shape[1])
        counts.append(gap(*drawn, family, error).count)
    held = _cross_validated(grams, sizes, sample.z.shape[1], whole.count)
    status, reason = _status(whole, float(values[0]), np.array(counts), held, error)
    kept = whole.count if status in ("exact", "approximate") else 0
    doubtful = vectors[: 0 if whole.count else whole.candidate]
    return Found(whole, values, vectors[:kept], np.array(counts), held, status, reason, doubtful)


def residuals(sample: Sample, family: Family, vectors: Tensor) -> Tensor:
    """Return the relative singular values of the fields with coefficients (k, p), orthonormal, descending, (k,)."""
    if not len(vectors):
        return torch.zeros(0, dtype=torch.float64)
    triangle = torch.zeros(0, len(vectors), dtype=torch.float64)
    for part in _chunks(sample, len(family)):
        rows = family.rows(part.jacobian, part.x, part.z).flatten(0, 1) @ vectors.T
        triangle = torch.linalg.qr(torch.cat([triangle, rows]))[1]
    size = float(sample.jacobian.square().sum())
    values = torch.linalg.svdvals(triangle) * math.sqrt(sample.z.shape[1] / size)
    return torch.nn.functional.pad(values, (0, len(vectors) - len(values)))


def _status(whole: Gap, least: float, counts: Array, held: float, error: float | None) -> tuple[str, str]:
    agree = float(np.mean(counts == whole.count)) if len(counts) else 1.0
    if not whole.count:
        if agree < AGREE:
            return "undetermined", f"{whole.reason}; {1 - agree:.0%} of resamples find some"
        if error and least <= error:
            return (
                "undetermined",
                f"{whole.reason}; yet the smallest value, {least:.2g}, is within the error, {error:.2g}",
            )
        closed = whole.ratio >= 2 if math.isnan(whole.defect) else whole.defect <= CLOSED
        if error is None and whole.contrast >= DOUBTFUL and closed:
            return "undetermined", f"{whole.reason}; there may be {whole.candidate}: the error of f would help"
        return "none", whole.reason
    if whole.exact and held > EXACT:
        return "undetermined", (
            f"{whole.count} fields have values up to rounding here, but {held:.2g} on samples left out: too few samples"
        )
    if agree < AGREE:
        return "undetermined", f"only {agree:.0%} of resamples find {whole.count} fields"
    if whole.exact and whole.ratio < ALONE:
        return "undetermined", f"no gap above rounding: the next value is {whole.ratio:.2g} times larger"
    if whole.exact:
        return "exact", f"singular values are rounding, the next is {whole.ratio:.2g} times larger"
    if held > 2 * LARGEST:
        return "undetermined", f"fields found on some samples have {held:.2g} on others"
    words = f"gap {whole.ratio:.3g}"
    if not math.isnan(whole.defect):
        words += f", closed under brackets to {whole.defect:.0%}"
    return "approximate", words


def _chunks(sample: Sample, p: int) -> list[Sample]:
    size = max(1, ENTRIES // max(1, p * sample.jacobian.shape[1]))
    return [sample.at(slice(start, start + size)) for start in range(0, len(sample), size)]


def _gram(sample: Sample, family: Family) -> Tensor:
    total = torch.zeros(len(family), len(family), dtype=torch.float64)
    for part in _chunks(sample, len(family)):
        rows = family.rows(part.jacobian, part.x, part.z).flatten(0, 1)
        total += rows.T @ rows
    return total


def _spectrum(gram: Tensor, size: float, q: int) -> tuple[Tensor, Tensor]:
    """Return singular values, ascending, and fields as rows."""
    values, vectors = torch.linalg.eigh(gram * (q / size))
    return values.clamp(min=0).sqrt(), vectors.T


def _refined(sample: Sample, family: Family, values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the values that squaring has drowned in rounding again, from the rows themselves."""
    low = int((values < 1e-4).sum())
    if not low:
        return values, vectors
    triangle = torch.zeros(0, low, dtype=torch.float64)
    for part in _chunks(sample, len(family)):
        rows = family.rows(part.jacobian, part.x, part.z).flatten(0, 1) @ vectors[:low].T
        triangle = torch.linalg.qr(torch.cat([triangle, rows]))[1]
    _, s, turn = torch.linalg.svd(triangle, full_matrices=True)
    s = torch.nn.functional.pad(s, (0, low - len(s))) * math.sqrt(
        sample.z.shape[1] / float(sample.jacobian.square().sum())
    )
    return torch.cat([s.flip(0), values[low:]]), torch.cat([turn.flip(0) @ vectors[:low], vectors[low:]])


def _cross_validated(grams: Tensor, sizes: Tensor, q: int, count: int) -> float:
    if not count:
        return math.nan
    worst = 0.0
    for rows in torch.arange(len(grams)).tensor_split(min(FOLDS, len(grams))):
        rest = torch.ones(len(grams), dtype=torch.bool)
        rest[rows] = False
        _, vectors = _spectrum(grams[rest].sum(0), float(sizes[rest].sum()), q)
        out = vectors[:count] @ grams[rows].sum(0) @ vectors[:count].T
        largest = float(torch.linalg.eigvalsh(out * (q / float(sizes[rows].sum())))[-1])
        worst = max(worst, math.sqrt(max(largest, 0.0)))
    return worst


FLOWS = 8  # random one-parameter groups that are carried out
INSIDE = 0.95  # share of the samples that are nearer to the mean than an image may be


def change(net: nn.Module, x: Tensor, field: Tensor, where: Coordinates | None = None) -> float:
    """Return rms_i ||f(exp(v) x_i) - f(x_i)|| / rms_ij ||f(x_i) - f(x_j)|| for a field v, [A b] (d, d + 1).

    With coordinates ``where`` of the data, only of samples whose images are no farther from the mean than 95 percent of
    the samples: a field that is not bounded, such as a boost or a scaling, carries the others to where f was not
    learned. NaN if these are fewer than a third.

    Examples
    --------
    >>> import torch
    >>> turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> round(change(torch.nn.Identity(), x, torch.pi * turn), 6)         # x -> -x
    2.0
    """
    flow = torch.linalg.matrix_exp(torch.nn.functional.pad(field, (0, 0, 0, 1)))[:-1]
    before, images = outputs_of(net, x), x @ flow[:, :-1].T + flow[:, -1]
    size = float((before - before.mean(0)).square().sum() / len(x))
    inside = torch.ones(len(x), dtype=torch.bool)
    if where is not None:
        inside = where.of(images).norm(dim=1) <= where.of(x).norm(dim=1).quantile(INSIDE)
    if 3 * int(inside.sum()) < len(x):
        return math.nan
    changes = (outputs_of(net, images[inside]) - before[inside]).square().sum(1)
    return (float(changes.mean()) / (2 * size)) ** 0.5


def shuffled(net: nn.Module, tested: Sample, directions: Tensor, values: Tensor, generator: torch.Generator) -> float:
    """Return the change of f when coordinates ``values`` (N, m) along ``directions`` (d, m) go to other samples.

    Directions along each of which f changes little can matter much together; this moves along all.
    """
    order = torch.randperm(len(values), generator=generator)
    before = outputs_of(net, tested.x)
    after = outputs_of(net, tested.x + (values[order] - values) @ directions.T)
    return float((after - before).norm() / (before - before.mean(0)).norm()) / 2**0.5


def carried_out(
    net: nn.Module, found: Found, family: Family, where: Coordinates, tested: Sample, error: float | None, seed: int
) -> Found:
    """Move samples along approximate symmetries, and refuse these if f changes by more than 1.5 times its error.

    Random fields of the span found are carried out for as long as an average sample takes to move by one standard
    deviation of the data. Of directions that f ignores, the coordinates are shuffled among samples. Unlike derivatives,
    that compares values of f, and so with its error. Fields below a gap that does not count are moved along as well:
    where f stays within its error, the answer is "undetermined", not "none".
    """
    doubtful = found.status == "none" and 0 < len(found.doubtful) < len(family) and not found.gap.defect > CLOSED
    vectors = found.doubtful if doubtful else found.vectors
    if not error or not (doubtful or found.status == "approximate") or not isinstance(family, AffineFields):
        return found
    generator = torch.Generator().manual_seed(seed)
    if only_constants(family):
        directions = family.combined(vectors)[..., -1].T
        most = shuffled(net, tested, where.out @ directions, tested.z @ directions, generator)
        words = f"shuffling these coordinates among samples changes f by {most:.2g}; its error is {error:.2g}"
    else:
        weights = torch.randn(FLOWS, len(vectors), generator=generator, dtype=torch.float64)
        fields = where.to_x(family.combined(weights / weights.norm(dim=1, keepdim=True) @ vectors))
        changes = [change(net, tested.x, field, where) for field in fields]
        most = max((size for size in changes if not math.isnan(size)), default=math.nan)
        words = f"samples moved by one standard deviation along them change f by {most:.2g}; its error is {error:.2g}"
    if doubtful:
        within = most <= WITHIN * error
        return replace(found, status="undetermined", reason=f"{found.reason}, yet {words}") if within else found
    if math.isnan(most):
        words = "samples moved along them leave the data, so that its error does not judge them"
        return replace(found, reason=f"{found.reason}; {words}")
    if most > WITHIN * error:
        reason = f"{found.reason}, but {words}"
        return replace(found, vectors=found.vectors[:0], counts=0 * found.counts, status="none", reason=reason)
    return replace(found, reason=f"{found.reason}; {words}")


WITHIN = 1.5  # times the relative error of f: a change up to this is not told apart from none
