"""Statements about the structure inside a deep network and its kernel (T11, T21 to T25)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import torch
from torch import nn

from bnrank._core import linalg
from bnrank.measures import balance, ntk
from bnrank.theory.facts import Facts
from bnrank.theory.statements.samples import FEW, Sample, smooth
from bnrank.theory.structure import (
    activation_bound_at,
    preactivation_bound_at,
    segment_kernels,
    volume_splits,
    weight_structure_at,
)
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, assume, statement

SLOPE = ("slope in (-1, 1) or 1",)
EMPTY = "Jf = 0, and k = 0 makes both sides equal"
SPREAD = ("norms spread over the layers as in a balanced network (T14): (q_l/k)^l <= max{1, e^{c1/k}} for all l",)


@statement(
    "T11",
    "log-volume splits at every layer",
    "log |Jf|_+ = log |J a_l P_{M_0}|_+ + log |J(a_l -> f) P_{M_l}|_+",
    source="Jacot2023b 3.3, additivity of R1 along the layers, at a point",
)
def _volumes(facts: Facts) -> list[Sides]:
    assume(facts.depth > 1, "there is a hidden layer", "depth 1")
    found, ranks = [], []
    for sample in smooth(facts):
        k = int(linalg.rank(sample.path.decomposition[1], max(facts.rtol, 1e-8), 1e8 * sample.path.noise))
        ranks.append(k)
        for layer, halves in enumerate(volume_splits(facts, sample.row, k), start=1):
            if k == 0 or any(float(half[k - 1]) < 1e-8 * float(half[0]) for half in halves):
                continue  # the logarithm is dominated by rounding
            logs = torch.cat([half[:k] for half in halves]).log()
            scale = k + float(logs.abs().sum())
            note = sample.note(f"layer {layer}, rank {k}")
            found.append(Sides(facts.log_volume(sample.row, k), float(logs.sum()), "=", 1e-6, scale, note=note))
    assume(any(ranks), "rank Jf(x) is at least 1", "Jf = 0 at every sample checked")
    if not found:
        raise Inconclusive("Jf splits into ill-conditioned halves at every sample checked")
    return found


@statement(
    "T21",
    "weights near partial isometries",
    "sum_l ||W_l - U_l V_l^T||_F^2 + sum_{l<L} (k - ||D_l P_{W_l M_{l-1}}||_F^2) + sum_l ||b_l||^2 "
    "<= ||theta||^2 - k L - 2 log |Jf|_+",
    source="Jacot2023b theorem 6, subspaces corrected (E12)",
)
def _isometries(facts: Facts) -> Iterator[Sides]:
    for sample, k in _ranked(facts):
        terms = weight_structure_at(facts, sample.row, k)
        scale = facts.parameter_norm + k * facts.depth + 2 * abs(terms.log_pseudo_determinant)
        tolerance = 1e-9 + 2 * sample.path.volume_error(k) / scale if scale else 1e-9
        note = (
            f"k = {k}, c1 = {facts.parameter_norm - k * facts.depth:.4g}; {len(terms.layers_within(0.5))} of "
            f"{facts.depth} layers within {terms.bound(0.5):.3g}"
        )
        where, empty = sample.note(note), "" if k else EMPTY
        yield Sides(terms.total, terms.slack, "<=", tolerance, scale, SLOPE, where, vacuous=empty, least=-math.inf)


@statement(
    "T21",
    "linear inside: what the nonlinearities take away",
    "||D_l P_{W_l M_{l-1}}||_F^2 <= k",
    source="Jacot2023b theorem 6, proof",
)
def _linearity(facts: Facts) -> Iterator[Sides]:
    assume(facts.depth > 1, "there is a hidden layer", "depth 1")
    for sample, k in _ranked(facts):
        for layer, kept in enumerate(sample.path.narrow(k).kept, start=1):
            yield Sides(kept, k, "<=", 1e-12, max(k, 1), SLOPE, sample.note(f"layer {layer}, k = {k}"))


@statement(
    "T22",
    "bounded representations",
    "sum_l (||a_{l-1}||^2 + 1) <= c max{1, e^{c1/k}} L / (k |Jf|_+^{2/k}), Tr Theta = c L",
    source="Jacot2023b theorem 7",
)
def _activations(facts: Facts) -> list[Sides]:
    found = []
    for sample, k in _ranked(facts, parameters=True):
        terms = activation_bound_at(facts, sample.row, k) if k else None
        if terms is not None and terms.spread:
            tolerance = 1e-9 + 2 * sample.path.volume_error(k) / k
            note, most = sample.note(f"k = {k}, c = {terms.ntk_trace / facts.depth:.4g}"), _largest(facts, sample.row)
            found.append(Sides(terms.total, terms.balanced_bound, "<=", tolerance, 0.0, SPREAD, note, most=most))
    return found or _unbalanced(facts)


@statement(
    "T23",
    "representations near k dimensions",
    "sum_l s_{k+1}(N^{-1/2} a~_l(X)) <= (c L (c1 - 2 log max |Jf|_+) max{1, e^{c1/k}} / (k min |Jf|_+^{2/k}))^{1/2}",
    source="Jacot2023b corollary 8, Theta over all parameters (E13)",
)
def _preactivations(facts: Facts) -> Sides:
    samples = list(smooth(facts, parameters=True))
    ranks = [sample.path.rank(facts.rtol) for sample in samples]
    assume(any(ranks), "rank Jf(x) is at least 1", "Jf = 0 at every sample checked")
    k = max(sorted({r for r in ranks if r}), key=ranks.count)
    kept = [sample for sample, r in zip(samples, ranks, strict=True) if r == k]
    rows = [sample.row for sample in kept]
    terms = preactivation_bound_at(facts, rows, k)
    if not terms.spread:
        _unbalanced(facts)
    # c1 - 2 log |Jf|_+ is a difference of large numbers, and its root is taken
    error = max(sample.path.volume_error(k) for sample in kept)
    volumes = max(abs(facts.log_volume(row, k)) for row in rows)
    rounding = 2 * error + 1e-14 * (facts.parameter_norm + k * facts.depth + 2 * volumes)
    right = terms.balanced_bound
    allowed = replace(terms, slack=max(terms.slack, 0.0) + rounding).balanced_bound * math.exp(error / k) - right
    scale = sum(float((a[rows] ** 2).sum(1).mean().sqrt()) for a in facts.inputs) + 1.0
    note = f"k = {k}, the most common rank, at {len(rows)} of the {len(samples)} samples checked"
    tolerance = 1e-9 + allowed / max(scale, right)
    return Sides(terms.total, right, "<=", tolerance, scale, SPREAD, note, most=terms.most)


@statement(
    "T24",
    "trace of the kernel, layer by layer",
    "sum_l (||a_{l-1}||^2 + 1) ||J(a~_l -> f)||_F^2 = ||df/dtheta||_F^2",
    source="Jacot2023b appendix C",
)
def _trace(facts: Facts) -> Iterator[Sides]:
    samples = list(smooth(facts, FEW, parameters=True))
    exact = ntk.trace(nn.Sequential(facts.net), facts.x[[s.row for s in samples]])  # differentiated, no closed form
    for sample, right in zip(samples, exact.tolist(), strict=True):
        left = float(sample.path.kernel(facts.squared_inputs[sample.row]).trace())
        yield Sides(left, right, "=", 1e-9, note=sample.note())


@statement(
    "T25",
    "a steep function has a kernel that varies",
    "L (t ||Jf||_op)^{2 - 2/L} <= ||d^2_xy Theta(x, x)||_op, t = 1 for slopes 0 and 1, else |slope|",
    source="Jacot2023b proposition 9, constant corrected (E4)",
)
def _mixed(facts: Facts) -> Iterator[Sides]:
    samples = list(smooth(facts, FEW, parameters=True))
    try:
        norms = ntk.mixed_derivative_norm(facts.chain, facts.x.flatten(1)[[s.row for s in samples]])
    except ValueError as error:
        raise Inconclusive(f"the norm of d^2_xy Theta: {error}") from error
    factor = _factor(facts)
    for sample, norm in zip(samples, norms.tolist(), strict=True):
        left = facts.depth * _steepness(facts, sample.row)
        yield Sides(left, norm, "<=", 1e-8, note=sample.note(f"t = {factor:g}"))


@statement(
    "T25",
    "a steep function has a large kernel",
    "(L/4) ||x - y||^2 (t ||Jf u||)^{2 - 2/L} <= max(||Theta(x, x)||_op, ||Theta(y, y)||_op), one pattern on [x, y]",
    source="Jacot2023b proposition 9",
)
def _segment(facts: Facts) -> list[Sides]:
    found = []
    for sample in smooth(facts, parameters=True):
        length, kernels = segment_kernels(facts, sample.row)
        if length:
            left = facts.depth / 4 * length**2 * _steepness(facts, sample.row)
            note = sample.note(f"||x - y|| = {length:.3g}, t = {_factor(facts):g}")
            # the derivative by the last bias is the identity
            found.append(Sides(left, float(kernels.max()), "<=", 1e-8, note=note, least=float(facts.biased[-1])))
    assume(len(found) > 0, "some sample is off the kinks", "all samples checked are on kinks")
    return found


def _largest(facts: Facts, row: int) -> float:
    """Return the largest sum_l (||a_{l-1}||^2 + 1) of layers of these Frobenius norms at a sample."""
    size, total = float(facts.inputs[0][row].norm()), 0.0
    for i, weight in enumerate(facts.weights):
        total += size * size + float(facts.biased[i])
        size = float(weight.norm()) * size + (float(facts.biases[i].norm()) if facts.biases else 0.0)
    return total


def _ranked(facts: Facts, *, parameters: bool = False) -> Iterator[tuple[Sample, int]]:
    """Yield each sample with k = rank Jf(x), and with the k >= 1 that minimizes the right-hand side of T21."""
    for sample in smooth(facts, parameters=parameters):
        rank = sample.path.rank(facts.rtol)
        tightest = int((sample.path.decomposition[1] > math.exp(-facts.depth / 2)).sum())
        for k in sorted({rank, min(rank, max(1, tightest))}):
            yield sample, k


def _unbalanced(facts: Facts) -> NoReturn:
    """Raise NotApplicable with the reason why a statement about balanced networks does not apply."""
    assume(bool((facts.jacobian_values > 0).any()), "rank Jf(x) is at least 1", "Jf = 0 at every sample")
    residual = f"residual {balance.between(facts.weights, facts.biases).residual:.2g}"
    raise NotApplicable("balanced (T14), or at least with norms spread over the layers as if it were", residual)


def _factor(facts: Facts) -> float:
    """Return t of T25."""
    return 1.0 if facts.slope in (0.0, 1.0) else abs(facts.slope)


def _steepness(facts: Facts, row: int) -> float:
    """Return (t ||Jf||_op)^{2 - 2/L} at a sample."""
    return math.pow(_factor(facts) * float(facts.jacobian_values[row, 0]), 2 - 2 / facts.depth)
