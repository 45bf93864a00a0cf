"""Statements about the structure inside a deep network and its kernel (T11, T21 to T25)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from bnrank.measures import balance, ntk
from bnrank.theory.facts import Facts
from bnrank.theory.path import Path, biased
from bnrank.theory.statements.samples import FEW, looked, sample_paths, smooth_rows
from bnrank.theory.structure import (
    ActivationBound,
    PreactivationBound,
    log_growths,
    next_values,
    weight_structure_of,
)
from bnrank.theory.verdicts import Inconclusive, NotApplicable, Sides, Statement, statement

__all__ = ["STATEMENTS"]


@statement(
    "T11",
    "log-volume splits at every layer",
    "log |Jf|_+ = log |J a_l P_{M_0}|_+ + log |J(a_l -> f) P_{M_l}|_+",
    source="Jacot2023b 3.3, additivity of R1 along the layers, at a point",
)
def _volumes(facts: Facts) -> Sides:
    if facts.depth == 1:
        raise NotApplicable("there is a hidden layer", "depth 1")
    worst: tuple[float, Sides] | None = None
    ranks = []
    for row, path in sample_paths(facts):
        s = path.decomposition[1]
        k = int((s > max(max(facts.rtol, 1e-8) * float(s[0]), 1e8 * path.noise)).sum())
        ranks.append(k)
        left = float(facts.jacobian_values[row, :k].log().sum())
        bases = path.narrow(k).bases
        for i, (image, backward) in enumerate(zip(path.push(bases[0]), path.backward, strict=False), start=1):
            halves = [torch.linalg.svdvals(image), torch.linalg.svdvals(backward @ bases[i])]
            if k == 0 or any(float(half[k - 1]) < 1e-8 * float(half[0]) for half in halves):
                continue  # the logarithm is rounding
            logs = torch.cat([half[:k] for half in halves]).log()
            right, scale = float(logs.sum()), k + float(logs.abs().sum())
            if worst is None or abs(left - right) / scale > worst[0]:
                note = f"sample {row}, layer {i}, rank {k}; {looked(facts)}"
                worst = abs(left - right) / scale, Sides(left, right, "=", 1e-6, scale, note=note)
    if not any(ranks):
        raise NotApplicable("rank Jf(x) is at least 1", "Jf = 0 at every sample looked at")
    if worst is None:
        raise Inconclusive("Jf splits into ill-conditioned halves at every sample looked at")
    return worst[1]


@statement(
    "T21",
    "weights near partial isometries",
    "sum_l ||W_l - U_l V_l^T||_F^2 + sum_{l<L} (k - ||D_l P_{W_l M_{l-1}}||_F^2) + sum_l ||b_l||^2 "
    "<= ||theta||^2 - k L - 2 log |Jf|_+",
    source="Jacot2023b theorem 6, subspaces corrected (E12)",
)
def _isometries(facts: Facts) -> Sides:
    found = []
    for row, path in sample_paths(facts):
        for k in _ranks(path, facts):
            volume = float(facts.jacobian_values[row, :k].log().sum())
            terms = weight_structure_of(path, facts.biases, facts.parameter_norm, volume, k)
            scale = facts.parameter_norm + k * facts.depth + 2 * abs(volume)
            tolerance = 1e-9 + 2 * _volume_error(path, k) / scale if scale else 1e-9
            half = len(terms.layers_within(0.5))
            note = (
                f"sample {row}, k = {k}, c1 = {facts.parameter_norm - k * facts.depth:.4g}; "
                f"{half} of {facts.depth} layers within {terms.bound(0.5):.3g}; {looked(facts)}"
            )
            found.append(Sides(terms.total, terms.slack, "<=", tolerance, scale, ("slope in (-1, 1) or 1",), note))
    return _closest(found)


@statement(
    "T21",
    "linear inside: what the nonlinearities take away",
    "0 <= k - ||D_l P_{W_l M_{l-1}}||_F^2",
    source="Jacot2023b theorem 6, proof",
)
def _linearity(facts: Facts) -> Sides:
    if facts.depth == 1:
        raise NotApplicable("there is a hidden layer", "depth 1")
    found = []
    for row, path in sample_paths(facts):
        for k in _ranks(path, facts):
            least, layer = min((k - kept, i) for i, kept in enumerate(path.narrow(k).kept, start=1))
            note = f"sample {row}, layer {layer}, k = {k}; {looked(facts)}"
            found.append(Sides(0.0, least, "<=", 1e-12, max(k, 1), ("slope in (-1, 1) or 1",), note))
    return _closest(found)


@statement(
    "T22",
    "bounded representations",
    "sum_l (||a_{l-1}||^2 + 1) <= c max{1, e^{c1/k}} L / (k |Jf|_+^{2/k}), Tr Theta = c L",
    source="Jacot2023b theorem 7",
)
def _activations(facts: Facts) -> Sides:
    found, flags = [], biased(facts.net)
    squares = [float((w**2).sum()) for w in facts.weights]
    for row, path in sample_paths(facts, parameters=True):
        norms = [float((a[row] ** 2).sum()) + flag for a, flag in zip(facts.inputs, flags, strict=True)]
        for k in filter(None, _ranks(path, facts)):
            volume = float(facts.jacobian_values[row, :k].log().sum())
            growth = log_growths(squares, facts.parameter_norm, k)
            trace = float(facts.ntk_trace[row])
            terms = ActivationBound(k, torch.tensor(norms, dtype=torch.float64), trace, volume, *growth)
            if terms.spread:
                note = f"sample {row}, k = {k}, c = {trace / facts.depth:.4g}; {looked(facts, parameters=True)}"
                tolerance = 1e-9 + 2 * _volume_error(path, k) / k
                found.append(Sides(terms.total, terms.balanced_bound, "<=", tolerance, 0.0, (_SPREAD,), note))
    return _closest(found) if found else _unbalanced(facts)


@statement(
    "T23",
    "representations near k dimensions",
    "sum_l s_{k+1}(N^{-1/2} a~_l(X)) <= (c L (c1 - 2 log max |Jf|_+) max{1, e^{c1/k}} / (k min |Jf|_+^{2/k}))^{1/2}",
    source="Jacot2023b corollary 8, Theta over all parameters (E13)",
)
def _preactivations(facts: Facts) -> Sides:
    everything = list(sample_paths(facts, parameters=True))
    ranks = [path.rank(facts.rtol) for _, path in everything]
    if not any(ranks):
        raise NotApplicable("rank Jf(x) is at least 1", "Jf = 0 at every sample looked at")
    k = max(sorted({r for r in ranks if r}), key=ranks.count)
    kept = [(row, path) for (row, path), r in zip(everything, ranks, strict=True) if r == k]
    rows = [row for row, _ in kept]
    volumes = facts.jacobian_values[rows, :k].log().sum(1)
    growth = log_growths([float((w**2).sum()) for w in facts.weights], facts.parameter_norm, k)
    terms = PreactivationBound(
        k,
        next_values(facts.weights, facts.biases, [a[rows] for a in facts.inputs], k),
        float(facts.ntk_trace[rows].mean()),
        float(volumes.min()),
        *growth,
        facts.parameter_norm - k * facts.depth - 2 * float(volumes.max()),
    )
    if not terms.spread:
        _unbalanced(facts)
    note = f"k = {k}, the commonest rank, at {len(rows)} of the {len(everything)} samples looked at"
    # c1 - 2 log |Jf|_+ is a difference of large numbers, and its root is taken
    error = max(_volume_error(path, k) for _, path in kept)
    rounding = 2 * error + 1e-14 * (facts.parameter_norm + k * facts.depth + 2 * float(volumes.abs().max()))
    right = terms.balanced_bound
    allowed = replace(terms, slack=max(terms.slack, 0.0) + rounding).balanced_bound * math.exp(error / k) - right
    scale = sum(float((a[rows] ** 2).sum(1).mean().sqrt()) for a in facts.inputs) + 1.0
    tolerance = 1e-9 + allowed / max(scale, right)
    return Sides(terms.total, right, "<=", tolerance, scale, (_SPREAD,), note)


@statement(
    "T24",
    "trace of the kernel, layer by layer",
    "sum_l (||a_{l-1}||^2 + 1) ||J(a~_l -> f)||_F^2 = ||df/dtheta||_F^2",
    source="Jacot2023b appendix C",
)
def _trace(facts: Facts) -> Sides:
    flags, found = biased(facts.net), []
    for row, path in sample_paths(facts, FEW, parameters=True):
        total = 0.0
        for a, backward, flag in zip(facts.inputs, _to_output(path), flags, strict=True):
            total += (float((a[row] ** 2).sum()) + flag) * float((backward**2).sum())
        exact = _squared_gradients(facts, row)
        found.append(Sides(total, exact, "=", 1e-9, note=f"sample {row}; {looked(facts, FEW, parameters=True)}"))
    return max(found, key=lambda s: abs(s.left - s.right) / max(s.left, s.right, 1e-300))


@statement(
    "T25",
    "a steep function has a kernel that varies",
    "L (t ||Jf||_op)^{2 - 2/L} <= ||d^2_xy Theta(x, x)||_op, t = 1 for slopes 0 and 1, else |slope|",
    source="Jacot2023b proposition 9, constant corrected (E4)",
)
def _mixed(facts: Facts) -> Sides:
    depth, factor = facts.depth, _factor(facts)
    rows = smooth_rows(facts, FEW, parameters=True)
    try:
        norms = ntk.mixed_derivative_norm(facts.chain, facts.x.flatten(1)[rows])
    except ValueError as error:
        raise Inconclusive(f"the norm of d^2_xy Theta: {error}") from error
    found = []
    for row, norm in zip(rows, norms.tolist(), strict=True):
        left = depth * (factor * float(facts.jacobian_values[row, 0])) ** (2 - 2 / depth)
        found.append(
            Sides(left, norm, "<=", 1e-8, note=f"sample {row}, t = {factor:g}; {looked(facts, FEW, parameters=True)}")
        )
    return _closest(found)


@statement(
    "T25",
    "a steep function has a large kernel",
    "(L/4) ||x - y||^2 (t ||Jf u||)^{2 - 2/L} <= max(||Theta(x, x)||_op, ||Theta(y, y)||_op), one pattern on [x, y]",
    source="Jacot2023b proposition 9",
)
def _segment(facts: Facts) -> Sides:
    depth, factor, flags = facts.depth, _factor(facts), biased(facts.net)
    found = []
    for row, path in sample_paths(facts, parameters=True):
        u = path.decomposition[2][:, :1]
        before = [a[row] for a in facts.inputs]
        along = [image[:, 0] for image in (u, *path.push(u)[:-1])]
        length = _reach(facts, before, along)
        if not length:
            continue
        kernels = []
        for t in (0.0, length):
            norms = [float(((a + t * d) ** 2).sum()) + flag for a, d, flag in zip(before, along, flags, strict=True)]
            kernel = sum(norm * (b @ b.T) for norm, b in zip(norms, _to_output(path), strict=True))
            kernels.append(float(torch.linalg.eigvalsh(cast(Tensor, kernel))[-1]))
        left = depth / 4 * length**2 * (factor * float(facts.jacobian_values[row, 0])) ** (2 - 2 / depth)
        note = f"from sample {row}, ||x - y|| = {length:.3g}, t = {factor:g}; {looked(facts, parameters=True)}"
        found.append(Sides(left, max(kernels), "<=", 1e-8, note=note))
    if not found:
        raise NotApplicable("some sample is off the kinks", "all samples looked at are on kinks")
    return _closest(found)


STATEMENTS: tuple[Statement, ...] = (
    _volumes,
    _isometries,
    _linearity,
    _activations,
    _preactivations,
    _trace,
    _mixed,
    _segment,
)

_SPREAD = "norms spread over the layers as in a balanced network (T14): (q_l/k)^l <= max{1, e^{c1/k}} for all l"


def _ranks(path: Path, facts: Facts) -> list[int]:
    """Return rank Jf(x), and the k for which the right-hand side of T21 is least."""
    rank = path.rank(facts.rtol)
    tightest = int((path.decomposition[1] > math.exp(-facts.depth / 2)).sum())
    return sorted({rank, min(rank, max(1, tightest))})


def _volume_error(path: Path, k: int) -> float:
    """Bound the rounding error of log |Jf|_+ of k values."""
    return float((path.noise / path.decomposition[1][:k]).sum())


def _closest(found: list[Sides]) -> Sides:
    """Return the sides that are closest to failing."""

    def slack(sides: Sides) -> float:
        size = max((abs(v) for v in (sides.left, sides.right, sides.scale) if math.isfinite(v)), default=0.0)
        return (sides.right - sides.left) / (size or 1.0) + sides.tolerance

    return min(found, key=slack)


def _unbalanced(facts: Facts) -> Sides:
    """Say why a statement about balanced networks does not apply."""
    if not bool((facts.jacobian_values > 0).any()):
        raise NotApplicable("rank Jf(x) is at least 1", "Jf = 0 at every sample")
    residual = balance.between(facts.weights, facts.biases).residual
    raise NotApplicable(
        "balanced (T14), or at least with norms spread over the layers as if it were", f"residual {residual:.2g}"
    )


def _to_output(path: Path) -> list[Tensor]:
    """Return J(a~_l -> f) for l = 1..L, (d_out, n_l)."""
    last = torch.eye(len(path.weights[-1]), dtype=torch.float64, device=path.weights[-1].device)
    return [*(b * d for b, d in zip(path.backward, path.slopes, strict=True)), last]


def _squared_gradients(facts: Facts, row: int) -> float:
    """Return ||df(x)/dtheta||_F^2 by one backward pass per output."""
    parameters = {n: p.clone().requires_grad_(p.is_floating_point()) for n, p in facts.function.parameters.items()}
    held = [p for p in parameters.values() if p.requires_grad]
    with torch.enable_grad():
        outputs = facts.function.with_parameters(parameters, facts.x[row : row + 1]).flatten()
    total = 0.0
    for output in outputs:
        parts = torch.autograd.grad(output, held, retain_graph=True, allow_unused=True, materialize_grads=True)
        total += sum(float((part**2).sum()) for part in parts)
    return total


def _factor(facts: Facts) -> float:
    """Return t of T25."""
    return 1.0 if facts.slope in (0.0, 1.0) else abs(facts.slope)


def _reach(facts: Facts, before: list[Tensor], along: list[Tensor]) -> float:
    """Return 0.9 of the way to the next kink in a direction; 1 + ||x|| where there is none, 0 next to one."""
    length = 1.0 + float(before[0].norm())
    if facts.slope == 1:
        return length
    for i, weight in enumerate(facts.weights[:-1]):
        z, step = weight @ before[i] + (facts.biases[i] if facts.biases else 0.0), weight @ along[i]
        size = (weight.abs() @ before[i].abs()) + (facts.biases[i].abs() if facts.biases else 0.0)
        if bool(((z.abs() <= 1e-9 * size) & (step != 0)).any()):
            return 0.0
        crossing = -z / step
        ahead = crossing[(crossing > 0) & (step != 0)]
        length = min([length, *(0.9 * ahead).tolist()])
    return length
