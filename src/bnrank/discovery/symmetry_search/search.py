"""`symmetries`: which transformations of x leave a function alone (T17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.discovery.symmetry_search import fields as families
from bnrank.discovery.symmetry_search import finite as finite_tests
from bnrank.discovery.symmetry_search.fields import Family, SampledFields
from bnrank.discovery.symmetry_search.naming import named, translations
from bnrank.discovery.symmetry_search.pieces import Piece, combination
from bnrank.discovery.symmetry_search.problem import Coordinates, Problem, read
from bnrank.discovery.symmetry_search.result import Symmetries, stacked
from bnrank.discovery.symmetry_search.spectrum import EXACT, Found, Gap, Sample, carried_out, look, residuals

__all__ = ["symmetries"]

MOST_FIELDS = 3000
RANK = 1e-3
ORBITS = 256  # samples at which the dimension of orbits is measured
IDEAL = ("translation", "rotation", "scaling")


def symmetries(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    x_test: Any = None,
    y_test: Any = None,
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
    nothing to do with Jf, and an affine change of x does not change it. (The longest Jacobians are cut until no single
    sample holds more than 2 percent of the sum of ||Jf(x_i)||_F^2: near a pole one sample would decide.)

    First come constant fields: directions that f ignores, which are divided out. Then all affine fields A x + b of the
    coordinates that are left (or the span of given fields): singular values s_1 <= s_2 <= ... of v -> (Jf(x_i)
    v(x_i))_i. Where some are rounding (s <= 1e-6), the fields are exact symmetries. A learned network has none; there
    the largest gap s_{k+1} / s_k among values up to 0.2 counts if its logarithm is three times that of any other near
    it, the fields below are closed under Lie brackets up to 30 percent, and nine in ten resamples agree. One field, and
    directions that f ignores (s up to 0.05), for which brackets say nothing, need a gap of 10, or of 2 where the error
    of f is known. Where it is known, samples are moved along random fields of those found by one standard deviation (of
    ignored directions: the coordinates are shuffled among the samples), and f may change by 1.5 times its error; s
    itself may be larger, since the error of a piecewise linear network has larger derivatives than values.

    What is learned about f is where the data are: symmetries of f are meant on the data's affine span, and finite maps
    that lead away from the samples are marked.

    Parameters
    ----------
    model : torch.nn.Module, estimator, Pipeline or list
        f: a module, a fitted estimator with a method ``as_module()`` that returns one of raw x, a fitted pipeline of
        affine steps (scalers, PCA) that ends in one, or a list of these, such as members of an ensemble: then f is
        their mean, which has less of their noise, and their disagreement is its error.
    x : Tensor, ndarray or DataFrame
        Samples, (N, d), before the steps of a pipeline.
    y : Tensor or ndarray, optional
        What f should be at x; gives the error. On the data f was trained on that is too small: better give test data.
    x_test, y_test : Tensor or ndarray, optional
        Held-out samples, on which residuals and (with ``y_test``) the error are measured.
    error : float, optional
        Relative error of f, rms ||f(x) - y|| / rms ||y - mean y||, where known. 0: f is exact, and nothing but exact
        symmetries count.
    fields : "affine" or sequence
        Fields to look among: all affine ones, or combinations of the given ones, each a matrix A, a pair (A, b) or a
        function from x (N, d) to (N, d) (such as :func:`~bnrank.discovery.symmetry_search.fields.rotations`).
    names : sequence of str, optional
        Of the columns; by default those of a DataFrame or those that an estimator was fitted with, else x1, ..., xd.
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
    given = read(model, x, (y, x_test, y_test), error, names, (max_samples, resamples, seed))
    if not isinstance(finite, bool):
        raise TypeError(f"finite: got {validation.describe(finite)}, expected True or False")
    family = families.family(fields, given.where, given.sample.x)
    moves = finite_tests.given_maps(maps, len(given.names))
    pieces: list[Piece] = []
    ignored, inner = _nothing(), given.where
    turned, tested = given.sample, given.held_out
    if isinstance(fields, str):
        ignored, pieces, inner = _ignored(given)
        turned, tested = (_within(part, given.where, inner) for part in (turned, tested))
        family = families.affine(inner.dimension)
    if len(family) > MOST_FIELDS:
        raise ValueError(
            f"fields: got {len(family)} fields, expected at most {MOST_FIELDS}; f depends on {inner.dimension} "
            "coordinates: give a sequence of fields to look among"
        )
    found = look(turned, family, given.error, given.resamples, given.seed)
    found = carried_out(given.module, found, family, inner, tested, given.error, given.seed)
    pieces += _pieces(found, family, inner, tested, given.names)
    tests: tuple[finite_tests.FiniteTest, ...] = ()
    if finite:
        candidates = finite_tests.candidates(given.where, pieces, given.names) + moves
        tests = finite_tests.tested(given.module, given.sample.x, given.where, candidates, given.error)
    return _result(given, ignored, found, family, pieces, tests)


def _ignored(given: Problem) -> tuple[Found, list[Piece], Coordinates]:
    """Find the directions that f ignores, and the coordinates of the quotient by them."""
    where = given.where
    constants = families.constant(where.dimension)
    found = look(given.sample, constants, given.error, given.resamples, given.seed)
    found = carried_out(given.module, found, constants, where, given.held_out, given.error, given.seed)
    if not len(found.vectors):
        return found, [], where
    directions = constants.combined(found.vectors)[..., -1].T
    worst = float(residuals(given.held_out, constants, found.vectors)[0])
    pieces = translations(where.out @ directions, worst, given.names, where.spread, found.status == "exact")
    return found, pieces, where.without(directions)


def _result(
    given: Problem,
    ignored: Found,
    found: Found,
    family: Family,
    pieces: list[Piece],
    tests: tuple[finite_tests.FiniteTest, ...],
) -> Symmetries:
    generators = stacked(tuple(pieces), len(given.names))
    count = len(ignored.vectors) + len(found.vectors)
    orbit = _orbit(given, pieces, generators, found, family)
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
        domain_dimension=given.where.dimension,
        left_out=given.where.left_out,
        orbit_dimension=orbit,
        quotient_dimension=None if orbit is None else given.where.dimension - orbit,
        rank=_rank(given.sample.jacobian),
        finite=tests,
        error=given.error,
        samples=len(given.sample),
        names=given.names,
    )


def _within(sample: Sample, where: Coordinates, inner: Coordinates) -> Sample:
    """Return the sample in the coordinates of a quotient."""
    return Sample(sample.x, inner.of(sample.x), sample.jacobian @ (where.into @ inner.out))


def _rank(jacobians: Tensor) -> int:
    values = torch.linalg.svdvals(jacobians)
    return int((values > RANK * values[:, :1]).sum(1).max())


def _nothing() -> Found:
    empty = torch.zeros(0, dtype=torch.float64)
    gap = Gap(0, float("nan"), False, float("nan"), float("nan"), "", 0)
    return Found(gap, empty, empty[:, None], np.zeros(0), float("nan"), "none", "not looked for", empty[:, None])


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


def _orbit(given: Problem, pieces: Sequence[Piece], generators: Tensor, found: Found, family: Family) -> int | None:
    """Return the largest dimension that the fields span at a sample; None if they are known too roughly to say."""
    if found.status == "approximate" and not all(piece.kind in IDEAL for piece in pieces):
        return None
    part = given.sample.at(slice(ORBITS))
    if isinstance(family, SampledFields):
        eye = torch.eye(part.z.shape[1], dtype=torch.float64).expand(len(part), -1, -1)
        values = family.rows(eye, part.x, part.z) @ found.vectors.T
    else:
        values = torch.einsum("kij,nj->nik", generators[..., :-1], part.x) + generators[..., -1].T
        values = values / given.where.spread[:, None]
    if not values.shape[2]:
        return 0
    sizes = values.square().sum(1).mean(0).sqrt()  # every generator counts alike, however long it is written
    spread = torch.linalg.svdvals(values / sizes)
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
