"""`symmetries`: which transformations of x leave a function alone (T17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.discovery.symmetries import fields as families
from bnrank.discovery.symmetries import finite as finite_tests
from bnrank.discovery.symmetries.coordinates import Coordinates, whitened
from bnrank.discovery.symmetries.fields import Family, SampledFields
from bnrank.discovery.symmetries.finding import EXACT, Found, Gap, Sample, look, residuals
from bnrank.discovery.symmetries.flows import carried_out
from bnrank.discovery.symmetries.models import Mean, disagreement, module_of, relative_error
from bnrank.discovery.symmetries.naming import Piece, named, translations
from bnrank.discovery.symmetries.result import Symmetries, stacked
from bnrank.discovery.symmetries.wording import combination
from bnrank.measures import jacobian

__all__ = ["symmetries"]

MOST_FIELDS = 3000
RANK = 1e-3
ORBITS = 256  # samples at which the dimension of orbits is measured
IDEAL = ("translation", "rotation", "scaling")


def symmetries(
    model: Any,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    *,
    x_test: Tensor | np.ndarray | None = None,
    y_test: Tensor | np.ndarray | None = None,
    error: float | None = None,
    fields: str | Sequence[Any] = "affine",
    names: Sequence[str] | None = None,
    maps: Sequence[Any] = (),
    finite: bool = True,
    max_samples: int = 2000,
    resamples: int = 20,
    seed: int = 0,
) -> Symmetries:
    """Find the transformations of x that leave f(x) alone: vector fields v with Jf(x) v(x) = 0, flips, swaps.

    Fields are measured in coordinates z (N, q) in which the data have mean 0 and covariance 1 on their affine span:

        s(v) = sqrt(q) rms_i ||Jf(x_i) v(x_i)|| / (rms_i ||Jf(x_i)||_F rms_i ||v(x_i)||),

    both norms on the right in z. It has no units, is 0 for a symmetry and about 1 for a field whose directions have
    nothing to do with Jf, and an affine change of x does not change it. First come constant fields: directions that f
    ignores, which are divided out. Then all affine fields A x + b of the coordinates that are left (or the span of
    given fields): singular values s_1 <= s_2 <= ... of v -> (Jf(x_i) v(x_i))_i. Where some are rounding (s <= 1e-6),
    the fields are exact symmetries. A learned network has none; there the largest gap s_{k+1} / s_k among values up to
    0.2 counts if its logarithm is three times that of any other near it, the fields below are closed under Lie brackets
    up to 30 percent, and nine in ten resamples agree. One field, and directions that f ignores (s up to 0.05), for
    which brackets say nothing, need a gap of 10, or of 2 where the error of f is known. Where it is known, samples are
    moved along random fields of those found by one standard deviation (of ignored directions: the coordinates are
    shuffled among the samples), and f may change by 1.5 times its error; s
    itself may be larger, since the error of a piecewise linear network has larger derivatives than values.

    What is learned about f is where the data are: symmetries of f are meant on the data's affine span, and finite maps
    that lead away from the samples are marked.

    Parameters
    ----------
    model : torch.nn.Module, estimator or list
        f: a module, a fitted estimator with a method ``as_module()`` that returns one of raw x, or a list of these,
        such as members of an ensemble: then f is their mean, which has less of their noise, and their disagreement is
        its error.
    x : Tensor or ndarray
        Samples, (N, d).
    y : Tensor or ndarray, optional
        What f should be at x; gives the error. On the data f was trained on that is too small: better give test data.
    x_test, y_test : Tensor or ndarray, optional
        Held-out samples, on which residuals and (with ``y_test``) the error are measured.
    error : float, optional
        Relative error of f, rms ||f(x) - y|| / rms ||y - mean y||, where known. 0: f is exact, and nothing but exact
        symmetries count.
    fields : "affine" or sequence
        Fields to look among: all affine ones, or combinations of the given ones, each a matrix A, a pair (A, b) or a
        function from x (N, d) to (N, d) (such as :func:`~bnrank.discovery.symmetries.fields.rotations`).
    names : sequence of str, optional
        Of the columns; by default x1, ..., xd.
    maps : sequence
        Further finite maps to test, each a matrix A or a pair (A, b).
    finite : bool
        Whether to test flips, swaps and reflections.
    max_samples : int
        Of more rows of x that many are drawn.
    resamples : int
        Number of resamples, of 32 blocks of the data with replacement.
    seed : int
        Of the draws.

    Returns
    -------
    Symmetries
        Generators in readable pieces, finite symmetries, and dim Omega / G beside the rank.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range or does not fit, f is constant on x, or there are more than 3000 fields (all
        affine ones of more than 54 coordinates that f depends on).

    References
    ----------
    T17 (Jacot2023b section 5): Rank_BN(f) <= dim Omega / G.

    Examples
    --------
    >>> import torch
    >>> class Radius(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x[:, :2].square().sum(1, keepdim=True)
    >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> found = symmetries(Radius(), x, names=["a", "b", "c"])
    >>> found.dimension, found.status, found.quotient_dimension, found.rank
    (2, 'exact', 1, 1)
    >>> for piece in found.pieces:
    ...     print(piece.text)
    translation along c
    rotation in the plane (a, b), through 0: 1 generator
    """
    module = module_of(model)
    points = _validate.samples(x, "x", minimum=4).detach()
    resamples, seed = _validate.integer(resamples, "resamples", 0), _validate.integer(seed, "seed", 0)
    limit = _validate.integer(max_samples, "max_samples", 4)
    labels = _names(names, points.shape[1])
    held = None if x_test is None else _validate.samples(x_test, "x_test", features=points.shape[1], minimum=2).detach()
    error = _error(module, points, y, held, y_test, error)
    if len(points) > limit:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:limit]]
    where = whitened(points.double().cpu())
    if not where.dimension:
        raise ValueError(f"x: got {len(points)} samples that are all the same, expected some that vary")
    sample = _sample(module, points, where)
    if float(sample.jacobian.square().sum()) == 0:
        raise ValueError("model: got a function that is constant near x, which every transformation leaves alone")
    held_out = sample if held is None else _sample(module, held[:limit], where)
    rank = _rank(sample.jacobian)
    ignored, pieces = _nothing(), []
    inner, turned, tested = where, sample, held_out
    affine = isinstance(fields, str)
    family = families.family(fields, where, sample.x)
    if affine:
        constants = families.constant(where.dimension)
        ignored = look(sample, constants, error, resamples, seed)
        ignored = carried_out(module, ignored, constants, where, held_out, error, seed)
        directions = constants.combined(ignored.vectors)[..., -1].T
        if len(ignored.vectors):
            worst = float(residuals(held_out, constants, ignored.vectors)[0])
            pieces += translations(where.out @ directions, worst, labels)
            inner = where.without(directions)
            turned, tested = (_within(part, where, inner) for part in (sample, held_out))
            family = families.affine(inner.dimension) if inner.dimension else family
    if len(family) > MOST_FIELDS:
        raise ValueError(
            f"fields: got {len(family)} fields, expected at most {MOST_FIELDS}; f depends on {inner.dimension} "
            "coordinates: give a sequence of fields to look among"
        )
    found = look(turned, family, error, resamples, seed)
    found = carried_out(module, found, family, inner, tested, error, seed)
    pieces += _pieces(found, family, inner, tested, labels)
    generators = stacked(tuple(pieces), len(labels))
    count = len(ignored.vectors) + len(found.vectors)
    orbit = _orbit(sample, pieces, generators, found, family)
    counts = found.counts + (ignored.counts if len(ignored.counts) else 0)
    status, reason = _together(ignored, found)
    return Symmetries(
        dimension=count,
        interval=(int(counts.min()), int(counts.max())) if len(counts) else (count, count),
        status=status,
        reason=reason,
        pieces=tuple(pieces),
        generators=generators,
        residual=max((piece.residual for piece in pieces), default=0.0),
        values=found.values,
        translations=ignored,
        fields=found,
        domain_dimension=where.dimension,
        left_out=where.left_out,
        orbit_dimension=orbit,
        quotient_dimension=None if orbit is None else where.dimension - orbit,
        rank=rank,
        finite=finite_tests.tested(module, sample.x, where, finite_tests.candidates(where, pieces, labels, maps), error)
        if finite
        else (),
        error=error,
        samples=len(sample),
        names=labels,
    )


def _names(names: Sequence[str] | None, d: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"x{i + 1}" for i in range(d))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names: got {_validate.describe(names)}, expected a sequence of strings")
    if len(names) != d:
        raise ValueError(f"names: got {len(names)}, expected one per column, {d}")
    return tuple(names)


def _error(
    module: nn.Module, x: Tensor, y: object, x_test: Tensor | None, y_test: object, error: float | None
) -> float | None:
    if error is not None:
        return _validate.number(error, "error", 0.0)
    if y_test is not None:
        if x_test is None:
            raise ValueError("y_test: got values without x_test, expected both")
        return relative_error(module, x_test, _targets(y_test, "y_test", len(x_test)))
    if y is not None:
        return relative_error(module, x, _targets(y, "y", len(x)))
    if isinstance(module, Mean) and len(module.members) > 1:
        return disagreement(module, x if x_test is None else x_test)
    return None


def _targets(value: object, name: str, n: int) -> Tensor:
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        value = value[:, None]
    y = _validate.samples(value, name, ndim=None).detach().cpu()
    if len(y) != n:
        raise ValueError(f"{name}: got {len(y)} rows, expected one per sample, {n}")
    return y


def _sample(module: nn.Module, x: Tensor, where: Coordinates) -> Sample:
    parts = []
    for part in jacobian.jacobians(module, x, kink_rtol=None):
        inside = part.cpu() @ where.out
        if not bool(torch.isfinite(inside).all()):
            raise _validate.RangeError("model: its Jacobian has NaN or infinite entries, expected finite ones")
        parts.append(torch.linalg.qr(inside)[1] if inside.shape[1] > inside.shape[2] else inside)
    points = x.double().cpu()
    return Sample(points, where.of(points), torch.cat(parts))


def _within(sample: Sample, where: Coordinates, inner: Coordinates) -> Sample:
    """Return the sample in the coordinates of a quotient."""
    return Sample(sample.x, inner.of(sample.x), sample.jacobian @ (where.into @ inner.out))


def _rank(jacobians: Tensor) -> int:
    values = torch.linalg.svdvals(jacobians)
    return int((values > RANK * values[:, :1]).sum(1).max())


def _nothing() -> Found:
    empty = torch.zeros(0, dtype=torch.float64)
    gap = Gap(0, float("nan"), False, float("nan"), float("nan"), "", 0)
    return Found(gap, empty, empty[:, None], np.zeros(0), float("nan"), "none", "not looked for")


def _pieces(found: Found, family: Family, inner: Coordinates, tested: Sample, labels: Sequence[str]) -> list[Piece]:
    if not len(found.vectors):
        return []
    d = len(labels)
    if isinstance(family, SampledFields):
        weights = family.combined(found.vectors)
        empty, none = weights.new_zeros(0, d, d + 1), weights.new_zeros(d, 0)
        return [
            Piece(
                "field",
                combination(row / row.abs().max(), family.labels),
                empty,
                float(residuals(tested, family, vector[None])[0]),
                none,
            )
            for row, vector in zip(weights, found.vectors, strict=True)
        ]
    everything = families.affine(inner.dimension)

    def residual(group: Tensor) -> float:
        basis = torch.linalg.qr(group.flatten(1).T)[0].T
        return float(residuals(tested, everything, basis)[0])

    k = len(found.vectors)
    above = float(found.values[k]) if k < len(found.values) else 1.0
    most = EXACT if found.status == "exact" else (float(found.values[k - 1]) * above) ** 0.5
    return named(
        family.combined(found.vectors),
        inner,
        labels,
        lambda group: residual(group) <= most,
        residual,
        found.status == "exact",
    )


def _orbit(sample: Sample, pieces: Sequence[Piece], generators: Tensor, found: Found, family: Family) -> int | None:
    """Return the largest dimension that the fields span at a sample; None if they are known too roughly to say."""
    if found.status == "approximate" and not all(piece.kind in IDEAL for piece in pieces):
        return None
    part = sample.at(slice(ORBITS))
    if isinstance(family, SampledFields):
        eye = torch.eye(part.z.shape[1], dtype=torch.float64).expand(len(part), -1, -1)
        values = family.rows(eye, part.x, part.z) @ found.vectors.T
    else:
        values = torch.einsum("kij,nj->nik", generators[..., :-1], part.x) + generators[..., -1].T
    if not values.shape[2]:
        return 0
    spread = torch.linalg.svdvals(values)
    return int((spread > EXACT * spread[:, :1]).sum(1).max())


def _together(ignored: Found, found: Found) -> tuple[str, str]:
    """Return status and reason of translations and other fields together."""
    both = (ignored.status, found.status)
    for status in ("undetermined", "approximate", "exact"):
        if status in both:
            break
    else:
        status = "none"
    parts = []
    if ignored.status not in ("none",):
        parts.append(f"directions that f ignores: {ignored.reason}")
    if found.status != "none" or not parts:
        parts.append(found.reason)
    return status, "; ".join(parts)
