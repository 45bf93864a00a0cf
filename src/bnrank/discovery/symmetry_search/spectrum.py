"""The fields that leave a function unchanged: singular values, their gap, and the evidence."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank.discovery.symmetry_search.fields import Family, bracket_defect
from bnrank.discovery.symmetry_search.problem import Problem, Sample

EXACT = 1e-6  # relative singular values up to this are round-off
IGNORED = 0.05  # the largest value of a constant field: a few small ones can matter together
LARGEST = 0.2  # the largest value of a symmetry: a fifth of the change that an unrelated field makes
CONTRAST = 3.0  # smallest ratio of the logarithm of a gap to that of any other gap near it
AGREE = 0.9  # smallest fraction of the resamples that find the same number of fields
CANDIDATES = 10  # gaps considered, the largest first
MIN_RATIO = 1.15  # the smallest ratio of a gap
ALONE = 10.0  # the same where brackets give no evidence: one field, or translations only
CLOSED = 0.3  # largest fraction of the brackets of the detected fields outside their span
FLOOR = 1e-12  # ratios of smaller values are meaningless
BLOCKS, FOLDS = 32, 5
MAX_ENTRIES = 2**24  # of the largest intermediate tensor
UNSETTLED = 0.5  # fields with larger values change f by far more than symmetries of a learned network
MAX_LOWEST = 16  # fields whose effect on f is measured where there is no gap


@dataclass(frozen=True)
class Gap:
    """The gap between the singular values of symmetries and the others, in ascending order.

    Attributes
    ----------
    count : int
        Values below the gap; 0 if there is no gap.
    ratio : float
        First value above the gap over the last value below it; NaN without a gap.
    exact : bool
        Whether the values below are round-off.
    defect : float
        Fraction of the brackets of the fields below the gap outside their span; NaN for fewer than two fields or if
        unknown.
    contrast : float
        Logarithm of the ratio over the largest logarithm of any other ratio among the small values; infinite if
        there is no other ratio, NaN if there is no gap.
    reason : str
        Why the best candidate does not count, or an empty string.
    candidate : int
        The number of values below the largest gap considered, whether or not it counts.
    """

    count: int = 0
    ratio: float = math.nan
    exact: bool = False
    defect: float = math.nan
    contrast: float = math.nan
    reason: str = ""
    candidate: int = 0


@dataclass(frozen=True)
class Found:
    """The symmetries among a family of fields.

    Attributes
    ----------
    gap : Gap
        The gap for all samples.
    values : Tensor
        Relative singular values, ascending, (p,).
    vectors : Tensor
        Coefficients of the fields below the gap, (count, p).
    counts : ndarray
        Number of fields on every resample.
    held_out : float
        Cross-validation over five folds: the largest relative singular value, on a held-out fifth, of the fields found
        on the other four fifths; NaN where none is found.
    status : str
        "exact", "approximate", "none" or "undetermined".
    reason : str
        The evidence for the status.
    lowest : Tensor
        Coefficients of the fields with the smallest values, (k, p): those up to 0.5, at least 1 and at most 16.
    possible : int
        The number of fields that are not excluded.
    """

    gap: Gap
    values: Tensor
    vectors: Tensor
    counts: NDArray[np.int64]
    held_out: float
    status: str
    reason: str
    lowest: Tensor
    possible: int = 0

    @property
    def count(self) -> int:
        """The number of fields below the gap."""
        return self.gap.count

    @property
    def established(self) -> int:
        """The number of symmetries found."""
        return len(self.vectors)

    @property
    def interval(self) -> tuple[int, int]:
        """The smallest and the largest number of symmetries that resamples and the evidence leave open."""
        if self.status == "none":
            return 0, 0
        counts = [int(count) for count in self.counts] + [len(self.vectors)]
        if self.status == "undetermined":
            return 0, max(*counts, self.possible)
        return min(counts), max(counts)


def nothing(reason: str) -> Found:
    """Return the result of a search that was not made."""
    empty = torch.zeros(0, dtype=torch.float64)
    return Found(Gap(), empty, empty[:, None], np.zeros(0, int), math.nan, "none", reason, empty[:, None])


def find_gap(values: Tensor, vectors: Tensor, family: Family, rtol: float | None) -> Gap:
    """Return the gap in singular values, ascending; ``vectors`` (p, p) has the fields in the same order.

    Values up to 1e-6 are round-off, and fields with such values are exact. Otherwise the candidate is the largest ratio
    s_{k+1} / s_k among small values, s_k <= 0.2 (0.05 for constant fields, if the error of f is unknown). It counts if
    its logarithm is three times that of any other ratio up to 2 s_{k+1}, and the fields are closed under brackets up to
    30 percent. For a single field and for constant fields, brackets give no evidence, and a ratio of 10 is required, or
    of 2 with a known error ``rtol`` of f. With ``rtol`` 0, only values up to 1e-6 count.
    """
    s = values.clamp(min=FLOOR)
    p = len(s)
    exact = int((s <= EXACT).sum())
    if exact:
        ratio = float(s[exact] / s[exact - 1]) if exact < p else math.inf
        return Gap(exact, ratio, True, bracket_defect(family, vectors[:exact]), math.inf, "", exact)
    smallest = f"the smallest value, {float(s[0]):.2g}, is"
    if rtol == 0:
        return Gap(reason=f"{smallest} no rounding")
    limit = IGNORED if rtol is None and family.constant else LARGEST
    small = min(int((s <= limit).sum()), p - 1)
    if not small:
        return Gap(reason=f"{smallest} above {limit:.2g}")
    logs = (s[1 : small + 1] / s[:small]).log()
    candidates = [int(i) for i in logs.argsort(descending=True)[:CANDIDATES] if logs[i] >= math.log(MIN_RATIO)]
    judged = [_judged(i + 1, logs, s, bracket_defect(family, vectors[: i + 1]), rtol) for i in candidates]
    if not judged:
        return Gap(reason="no gap among the small values", candidate=int(logs.argmax()) + 1)
    return next((found for found in judged if found.count), max(judged, key=lambda found: found.contrast))


def _judged(k: int, logs: Tensor, s: Tensor, defect: float, rtol: float | None) -> Gap:
    """Return the gap after k values, with the reason where it does not count."""
    log = float(logs[k - 1])
    near = int((s[: len(logs)] <= 2 * s[k]).sum())  # ratios far above the gap are irrelevant
    others = torch.cat([logs[: k - 1], logs[k:near]])
    contrast = log / max(float(others.max()), 1e-3) if len(others) else math.inf
    ratio = math.exp(log)
    reason = ""
    if contrast < CONTRAST:
        reason = f"the gap of {ratio:.3g} after {k} values does not stand out"
    elif math.isnan(defect) and ratio < (ALONE if rtol is None else 2.0):
        reason = f"the gap of {ratio:.3g} after {k} values is too small for fields without brackets"
    elif defect > CLOSED:
        reason = f"the {k} fields below the gap are not closed under brackets ({defect:.0%} outside)"
    return Gap(0 if reason else k, ratio, False, defect, contrast, reason, k)


def find_fields(sample: Sample, family: Family, given: Problem) -> Found:
    """Return the fields of a family that leave f unchanged, with the evidence of resamples and held-out samples.

    The relative singular value of a field v is

        s(v) = sqrt(q) rms_i ||J_i v(z_i)|| / (rms_i ||J_i||_F rms_i ||v(z_i)||),

    in coordinates z (N, q) with mean 0 and covariance 1: 1 for directions unrelated to J.
    """
    generator = torch.Generator().manual_seed(given.seed)
    order = torch.randperm(len(sample), generator=generator)
    p, q = len(family), sample.z.shape[1]
    blocks = max(2, min(len(sample), BLOCKS, max(FOLDS, 2**26 // p**2)))
    parts = [sample.at(rows) for rows in order.tensor_split(blocks)]
    zero = torch.zeros(p, p, dtype=torch.float64)
    grams = torch.stack([sum((rows.T @ rows for rows in _rows(part, family)), zero) for part in parts])
    sizes = torch.tensor([float(part.jacobian.square().sum()) for part in parts], dtype=torch.float64)
    values, vectors = _spectrum(grams.sum(0), float(sizes.sum()), q)
    low = int((values < 1e-4).sum())
    if low:  # squaring has lost these values in rounding
        s, turn = _from_rows(sample, family, vectors[:low])
        values = torch.cat([s.flip(0), values[low:]])
        vectors = torch.cat([turn.flip(0) @ vectors[:low], vectors[low:]])
    whole = find_gap(values, vectors, family, given.rtol)
    counts, smallest = [], [float(values[0])]
    for _ in range(given.resamples):
        times = torch.bincount(torch.randint(blocks, (blocks,), generator=generator), minlength=blocks).double()
        drawn = _spectrum(torch.einsum("b,bij->ij", times, grams), float(times @ sizes), q)
        counts.append(find_gap(*drawn, family, given.rtol).count)
        smallest.append(float(drawn[0][0]))
    held = _cross_validated(grams, sizes, q, whole.count)
    small = int((values <= LARGEST).sum())
    status, reason = _status(whole, small, min(smallest), np.array(counts), held, given.rtol)
    kept = whole.count if status in ("exact", "approximate") else 0
    lowest = vectors[: max(1, min(MAX_LOWEST, int((values <= UNSETTLED).sum())))]
    possible = max(1, small, whole.count) if status == "undetermined" else kept
    return Found(whole, values, vectors[:kept], np.array(counts), held, status, reason, lowest, possible)


def residual(sample: Sample, family: Family, vectors: Tensor) -> float:
    """Return the largest relative singular value of the fields with coefficients (k, p), orthonormal."""
    return float(_from_rows(sample, family, vectors)[0][0])


def _from_rows(sample: Sample, family: Family, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return relative singular values, descending, (k,), and the rotation (k, k) to their fields, without squaring."""
    triangle = torch.zeros(0, len(vectors), dtype=torch.float64)
    for rows in _rows(sample, family):
        triangle = torch.linalg.qr(torch.cat([triangle, rows @ vectors.T]))[1]
    _, s, turn = torch.linalg.svd(triangle, full_matrices=True)
    s = torch.nn.functional.pad(s, (0, len(vectors) - len(s)))
    return s * math.sqrt(sample.z.shape[1] / float(sample.jacobian.square().sum())), turn


def _rows(sample: Sample, family: Family) -> Iterator[Tensor]:
    """Yield J(x_i) v_a(x_i) as matrices with p columns, a block of samples at a time."""
    size = max(1, MAX_ENTRIES // max(1, len(family) * sample.jacobian.shape[1]))
    for start in range(0, len(sample), size):
        part = sample.at(slice(start, start + size))
        yield family.rows(part.jacobian, part.x, part.z).flatten(0, 1)


def _spectrum(gram: Tensor, size: float, q: int) -> tuple[Tensor, Tensor]:
    """Return singular values, ascending, and fields as rows."""
    values, vectors = torch.linalg.eigh(gram * (q / size))
    return values.clamp(min=0).sqrt(), vectors.T


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


def _status(
    whole: Gap, small: int, smallest: float, counts: NDArray[np.int64], held: float, rtol: float | None
) -> tuple[str, str]:
    """Return the status and its reason; ``smallest`` is the smallest value of all resamples, ``small`` how many are."""
    agree = float(np.mean(counts == whole.count)) if len(counts) else 1.0
    reason = ""
    if not whole.count:
        if agree < AGREE:
            return "undetermined", f"{whole.reason}; {1 - agree:.0%} of resamples find some"
        if rtol == 0:
            return "none", f"f is exact, and {whole.reason}"
        if smallest > LARGEST:
            return "none", f"every field changes f: {whole.reason}, in every resample"
        small = max(small, 1)  # in some resample, if not in the whole
        low = f"{small} field{'s' if small > 1 else ''} may leave f unchanged, with values up to {LARGEST:.2g}"
        return "undetermined", f"{low} (unrelated fields have about 1), but {whole.reason}"
    if whole.exact and held > EXACT:
        found = f"{whole.count} fields have values up to rounding here"
        reason = f"{found}, but {held:.2g} on held-out samples: too few samples"
    elif agree < AGREE:
        reason = f"only {agree:.0%} of resamples find {whole.count} fields"
    elif whole.exact and whole.ratio < ALONE:
        reason = f"no gap above rounding: the next value is {whole.ratio:.2g} times larger"
    elif not whole.exact and held > 2 * LARGEST:
        reason = f"fields found on some samples have {held:.2g} on others"
    if reason:
        return "undetermined", reason
    if whole.exact:
        return "exact", f"singular values are rounding, the next is {whole.ratio:.2g} times larger"
    closed_to = "" if math.isnan(whole.defect) else f", closed under brackets to {whole.defect:.0%}"
    return "approximate", f"gap {whole.ratio:.3g}{closed_to}"
