"""`symmetries`: the transformations of x that leave a function unchanged (T17)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank.discovery.symmetry_search import algebra
from bnrank.discovery.symmetry_search.evidence import NOT_SHOWN, VIOLATED, along_flows, change_along, judged
from bnrank.discovery.symmetry_search.fields import (
    Coordinates,
    Family,
    SampledFields,
    affine,
    constant,
    keeping,
    read_family,
)
from bnrank.discovery.symmetry_search.logs import Scalings, in_logarithms
from bnrank.discovery.symmetry_search.maps import FiniteTest, candidates, given_maps, tested
from bnrank.discovery.symmetry_search.pieces import Piece, Search, named, translations
from bnrank.discovery.symmetry_search.problem import Problem, Sample, read_problem
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.discovery.symmetry_search.spectrum import EXACT, Found, find_fields, nothing, residual
from bnrank.discovery.symmetry_search.words import combination

MAX_FIELDS = 3000
RANK_RTOL = 1e-3
ORBITS = 256  # samples at which the dimension of orbits is measured
IDEAL = ("translation", "rotation", "scaling")
STATUSES = ("undetermined", "approximate", "exact", "none")  # of two kinds of fields: the first in this order


def symmetries(
    net: Any,
    x: Any,
    y: Any = None,
    *,
    held_out: Any = None,
    rtol: float | None = None,
    fields: str | Sequence[Any] = "affine",
    names: Sequence[str] | None = None,
    maps: Sequence[Any] = (),
    finite: bool = True,
    max_samples: int = 2000,
    resamples: int = 20,
    seed: int = 0,
) -> Symmetries:
    """Return the transformations of x that leave f(x) unchanged: vector fields v with Jf(x) v(x) = 0, flips, swaps.

    Fields are measured in coordinates z (N, q) in which the data have mean 0 and covariance 1 on their affine span:

        s(v) = sqrt(q) rms_i ||Jf(x_i) v(x_i)|| / (rms_i ||Jf(x_i)||_F rms_i ||v(x_i)||),

    both norms on the right in z. It is dimensionless, 0 for a symmetry, about 1 for a field whose directions are
    unrelated to Jf, and invariant under affine changes of x. (Jacobian norms are clipped so that no sample contributes
    more than 2 percent of the sum of ||Jf(x_i)||_F^2, or 5 / N if N < 250: otherwise a single sample near a pole could
    determine the result.)

    Constant fields are searched first: directions that f ignores, which are divided out. The second search covers all
    affine fields A x + b of the remaining coordinates (or the span of given fields) that leave columns of at most ten
    values unchanged, by the singular values s_1 <= s_2 <= ... of v -> (Jf(x_i) v(x_i))_i. Fields with s <= 1e-6
    (round-off) are exact symmetries of f. A learned network has none. For it, the largest gap s_{k+1} / s_k among
    values up to 0.2 counts if its logarithm is three times that of any other gap near it, the fields below it are
    closed under Lie brackets up to 30 percent, and nine in ten resamples agree. For a single field, and for ignored
    directions (s up to 0.05), brackets give no evidence, and a gap of 10 is required, or of 2 where the error of f is
    known. If no such field is found, scalings of positive columns are searched as translations of their logarithms.

    If the error of f is known, samples are also moved by one standard deviation along random combinations of the
    detected fields (along ignored directions, coordinates are shuffled among samples), within the data, and f may
    change by at most 1.5 times its error. s itself may be larger, since the error of a piecewise linear network has
    larger derivatives than values.

    The result is "none" only where every field is excluded: if s > 0.2 for all fields in all resamples, and, where the
    error of f is known, moving samples along the fields with the smallest s changes f by more than 1.5 times its error
    (more than 3 times alone suffices). Otherwise the status is "undetermined", and ``interval`` has what is left open.

    f is known only near the data: symmetries refer to the affine span of the data, images must lie in the range of
    every column, or on the values of columns that take few, and finite maps that lead away from the samples are
    marked. A symmetry of a fitted model is one of the data only up to the error of the model: see ``in_data`` of
    :class:`~bnrank.discovery.symmetry_search.Piece`.

    Parameters
    ----------
    net : torch.nn.Module, estimator, Pipeline or list
        f: a module, a fitted estimator with a method ``as_module()`` that returns one of raw x, a fitted pipeline of
        affine steps (scalers, PCA) that ends in one, or a list of these, such as members of an ensemble: then f is
        their mean, which has less noise, and its error is estimated from their disagreement.
    x : Tensor, ndarray or DataFrame
        Samples, (N, d), before the steps of a pipeline.
    y : Tensor or ndarray, optional
        Targets at x, which give the error of f. On training data the error is underestimated: prefer held-out test
        data.
    held_out : Tensor, ndarray, DataFrame or tuple, optional
        Held-out samples x, or a tuple of samples and targets (x, y), on which residuals and (with targets) the error
        are measured.
    rtol : float, optional
        Relative error of f, rms ||f(x) - y|| / rms ||y - mean y||, where known. 0: f is exact, and only exact
        symmetries count. Default: of ``held_out`` or ``y`` where given, the disagreement of several networks, or the
        held-out error that a regressor of bnrank measured in its fit.
    fields : "affine" or sequence
        The fields to search: all affine ones, or combinations of the given ones, each a matrix A, a pair (A, b) or a
        function from x (N, d) to (N, d) (such as :func:`~bnrank.discovery.symmetry_search.rotations`).
    names : sequence of str, optional
        Names of the columns; by default those of a DataFrame or of the fit of an estimator, else x1, ..., xd.
    maps : sequence
        Further finite maps to test, each a matrix A or a pair (A, b).
    finite : bool
        Whether to test flips, swaps and reflections.
    max_samples : int
        Largest number of rows of x, drawn at random where there are more.
    resamples : int
        Number of resamples, of 32 blocks of the data with replacement.
    seed : int
        Random seed.

    Returns
    -------
    Symmetries
        Generators in readable pieces, finite symmetries, and the number of quantities that f can depend on.

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
    given = read_problem(net, (x, y, held_out), rtol, names, (max_samples, resamples, seed))
    validation.expect(isinstance(finite, bool), "finite", validation.describe(finite), "True or False", TypeError)
    family = read_family(fields, given.where, given.sample.x)
    moves = given_maps(maps, len(given.names))
    parts = _searched(given, None if isinstance(fields, str) else family)
    pieces = [_judged(piece, given) for piece in parts.pieces]
    beyond = tuple(_judged(piece, given) for piece in parts.beyond)
    tests = tested(given, candidates(given, pieces) + moves) if finite else ()
    return _result(given, parts, pieces, beyond, tests)


def _result(
    given: Problem,
    parts: "_Parts",
    pieces: Sequence[Piece],
    beyond: tuple[Piece, ...],
    tests: tuple[FiniteTest, ...],
) -> Symmetries:
    """Return the result of all searches, with the number of symmetries and what it says of f."""
    d = len(given.names)
    none = torch.zeros(0, d, d + 1, dtype=torch.float64)
    generators = torch.cat([none, *(piece.generators for piece in pieces)])
    orbit = _orbit(given, pieces, generators, parts.fields, parts.family)
    dimension = sum(found.established for found in parts.found) - sum(map(len, beyond))
    status, reason = _status(parts, pieces, given)
    low, high = (sum(ends) for ends in zip(*(found.interval for found in parts.found), strict=True))
    return Symmetries(
        dimension=dimension,
        interval=(max(min(low - sum(map(len, beyond)), dimension), 0), max(high - sum(map(len, beyond)), dimension)),
        status=status,
        reason=reason,
        pieces=tuple(pieces),
        generators=generators,
        residual=max((piece.residual for piece in pieces), default=0.0),
        values=parts.fields.values,
        translations=parts.ignored,
        fields=parts.fields,
        scalings=parts.scalings.found if parts.scalings else None,
        beyond=beyond,
        domain_dimension=given.where.dimension,
        left_out=given.where.left_out,
        orbit_dimension=orbit,
        quotient_dimension=None if orbit is None else given.where.dimension - orbit,
        rank=int(linalg.rank(torch.linalg.svdvals(given.sample.jacobian), RANK_RTOL).max()),
        finite=tests,
        rtol=given.rtol,
        error_source=given.source,
        learned=given.learned,
        samples=len(given.sample),
        names=given.names,
    )


@dataclass(frozen=True)
class _Parts:
    """The searches for ignored directions, for affine fields of the rest, and for scalings of positive columns.

    ``stepped``: whether there are columns of few values, which affine fields leave unchanged.
    """

    ignored: Found
    fields: Found
    family: Family
    scalings: Scalings | None
    pieces: list[Piece]
    beyond: list[Piece]
    stepped: bool

    @property
    def found(self) -> list[Found]:
        """The searches that count: scalings in place of other fields where only scalings are found.

        Where f ignores no direction, the search for ignored ones is contained in that for affine fields.
        """
        ignored = [self.ignored] if len(self.ignored.vectors) or self.stepped else []
        if self.scalings and self.scalings.instead:
            ignored = [] if self.scalings.all else ignored
        elif self.scalings is None or not self.scalings.pieces:
            return [*ignored, self.fields]
        return [*ignored, self.scalings.found, *([self.scalings.rest] if self.scalings.rest else [])]


def _searched(given: Problem, family: Family | None) -> _Parts:
    """Return the results of all searches; a family that is given is searched alone."""
    inner, sample, held = given.where, given.sample, given.held_out
    pieces: list[Piece] = []
    beyond: list[Piece] = []
    ignored, directions = nothing("not searched"), inner.mean.new_zeros(len(inner.mean), 0)
    every = family is None
    if every:
        constants = constant(inner.dimension)
        ignored = along_flows(find_fields(sample, constants, given), constants, inner, held, given)
        if len(ignored.vectors):
            across = constants.combined(ignored.vectors)[..., -1].T
            directions = inner.out @ across
            pieces, beyond = _translations(directions, residual(held, constants, ignored.vectors), ignored, given)
            inner = inner.without(across)
        sample, held = (part.within(given.where, inner) for part in (sample, held))
        got = f"{inner.dimension * (inner.dimension + 1)} fields of {inner.dimension} coordinates"
        few = inner.dimension * (inner.dimension + 1) <= MAX_FIELDS
        validation.expect(few, "fields", got, f"at most {MAX_FIELDS}; give a sequence of fields to search")
        family = keeping(given.domain.stepped, inner)
    assert family is not None
    validation.expect(len(family) <= MAX_FIELDS, "fields", f"{len(family)}", f"at most {MAX_FIELDS}")
    if not len(family):
        reason = "no field is searched: the columns that f depends on take few values"
        return _Parts(ignored, nothing(reason), family, None, pieces, beyond, stepped=True)
    found = along_flows(find_fields(sample, family, given), family, inner, held, given)
    scaled = in_logarithms(given, directions, ignored, found, MAX_FIELDS) if every else None
    if scaled and scaled.instead:
        pieces, beyond = ([], []) if scaled.all else (pieces, beyond)
    else:
        pieces += _pieces(found, family, inner, held, given.names)
    pieces += scaled.pieces if scaled else []
    stepped = every and bool(given.domain.stepped)
    return _Parts(ignored, found, family, scaled, pieces, beyond, stepped)


def _translations(directions: Tensor, worst: float, ignored: Found, given: Problem) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of ignored directions of x, (d, k), that lead from data to data, and of the others."""
    spread, exact = given.where.spread, ignored.status == "exact"
    basis = algebra.echelon((directions / spread[:, None]).T).T * spread[:, None]
    reached = torch.tensor([given.domain.reached(given.sample.x, column, spread) for column in basis.T])
    if bool(reached.all()):
        return translations(directions, worst, given.names, spread, exact), []
    parts = (basis[:, reached], basis[:, ~reached])
    inside, outside = (translations(part, worst, given.names, spread, exact) if part.shape[1] else [] for part in parts)
    return inside, outside


def _judged(piece: Piece, given: Problem) -> Piece:
    """Return a piece with what is known of it in the model and in the data.

    One generator along which f changes by more than its error violates the piece. That it is within the error has to be
    seen along each: samples that cannot move along one show nothing of it.
    """
    changes = [change_along(field, given, given.held_out.x) for field in piece.generators]
    largest = max((size for size in changes if not math.isnan(size)), default=math.nan)
    in_model = "exact" if piece.residual <= EXACT else "approximate"
    in_data = judged(largest, given)
    if in_data != VIOLATED and any(map(math.isnan, changes)):
        in_data = NOT_SHOWN
    return replace(piece, in_model=in_model, change=largest, in_data=in_data)


def _status(parts: _Parts, pieces: Sequence[Piece], given: Problem) -> tuple[str, str]:
    """Return the status of all searches together, and the reasons."""
    status = min((found.status for found in parts.found), key=STATUSES.index)
    if status == "exact" and given.learned:
        status = "approximate"
    if not pieces and status in ("exact", "approximate"):
        status = "none"
    shown = any(found is parts.ignored for found in parts.found) and parts.ignored.status != "none"
    reasons = [f"directions that f ignores: {parts.ignored.reason}"] if shown else []
    if parts.scalings and any(found is parts.scalings.found for found in parts.found):
        reasons.append(f"scalings of positive columns, as shifts of their logarithms: {parts.scalings.found.reason}")
        rest = parts.scalings.rest
        if rest and rest.status != "none":
            status = "undetermined"
            reasons.append(f"other changes of the logarithms: {rest.reason}")
    elif parts.fields.status != "none" or not reasons:
        reasons.append(parts.fields.reason)
    if broken := [piece.text for piece in pieces if piece.in_data == VIOLATED]:
        status = "undetermined"
        reasons.append(f"f changes by more than 1.5 times its error along {'; '.join(broken)}")
    return status, "; ".join(reasons)


def _pieces(found: Found, family: Family, inner: Coordinates, held: Sample, names: Sequence[str]) -> list[Piece]:
    k, d = len(found.vectors), len(names)
    if not k:
        return []
    if isinstance(family, SampledFields):
        weights = family.combined(found.vectors)
        empty, none = weights.new_zeros(0, d, d + 1), weights.new_zeros(d, 0)
        texts = [combination(row / row.abs().max(), family.labels) for row in weights]
        values = [residual(held, family, vector[None]) for vector in found.vectors]
        return [Piece("field", text, empty, value, none) for text, value in zip(texts, values, strict=True)]
    everything = affine(inner.dimension)

    def of(group: Tensor) -> float:
        return residual(held, everything, torch.linalg.qr(group.flatten(1).T)[0].T)

    above = float(found.values[k]) if k < len(found.values) else 1.0
    exact = found.status == "exact"
    limit = EXACT if exact else (float(found.values[k - 1]) * above) ** 0.5
    search = Search(inner, names, lambda group: of(group) <= limit, of, exact)
    return named(family.combined(found.vectors), search)


def _orbit(given: Problem, pieces: Sequence[Piece], generators: Tensor, found: Found, family: Family) -> int | None:
    """Return the largest dimension that the fields span at a sample; None if they are not accurate enough."""
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
    sizes = values.square().sum(1).mean(0).sqrt()  # normalizes the scales of the generators
    return int(linalg.rank(torch.linalg.svdvals(values / sizes), EXACT).max())
