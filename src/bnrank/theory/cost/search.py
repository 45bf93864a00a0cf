"""Maximization of a function of the Jacobian's singular values over a domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import regions
from bnrank.measures.jacobian import Jacobian
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import check_finite, example
from bnrank.networks.mlp import MLP, leaky_relu

KEPT = 8  # best points from which the search continues
PATIENCE = 3  # rounds without a better point before the search stops
STEPS = 32  # new points from each of the best points
OVERSHOOT = 1e-3  # relative overshoot when a step crosses a hyperplane
MOST_INPUTS = 8  # with more inputs, enumerating the regions is slow
CANDIDATES = 64  # number of points that are tried if the best ones are at kinks
SHRINK = 1e-12  # assumed relative error of a Jacobian that autograd computes
FLAT = 1e-6  # relative to 1 + |x|: a box without extent in a coordinate is widened by this
KINK = 1e-12  # a preactivation smaller than this, relative to its terms, may have either sign
EPS = torch.finfo(torch.float64).eps

Objective = Callable[[Tensor], Tensor]  # (n, K) singular values -> (n,) scores


class Function:
    """A module as a function of flattened points, with the singular values of its Jacobian, and its chain if any."""

    def __init__(self, net: nn.Module, x: Any) -> None:
        check_finite(net)
        samples = example(net, x).detach()
        floating = samples.is_floating_point()
        validation.expect(floating, "x", f"dtype {samples.dtype}", "floating point to differentiate by", TypeError)
        try:
            self.chain: MLP | None = as_mlp(net)
            self.reason = ""
        except TypeError as error:
            self.chain, self.reason = None, str(error).removeprefix("net: ")
        self.module = net
        self.shape = samples.shape[1:]
        device = "cpu" if self.chain is None else self.chain.weights[0].device
        self.x = samples.to(device, torch.float64).flatten(1)
        if self.chain is not None:
            validation.samples(self.x, "x", features=self.chain.widths[0])

    def depth(self, depth: int | None) -> int:
        """Return the requested depth, or that of the chain."""
        if depth is not None:
            return validation.integer(depth, "depth")
        if self.chain is None:
            raise TypeError(
                f"net: {self.reason}; to bound R(f; Omega, L) of another function give the depth L. The bound is on "
                "||theta||^2 of fully connected networks: of a convolution its dense matrix counts, where every entry "
                "of the kernel stands once per output position"
            )
        return self.chain.depth

    def singular_values(self, points: Tensor) -> Tensor:
        """Return the singular values of Jf at flattened points, (n, K), descending."""
        if self.chain is not None:
            return Jacobian(self.chain, points, kink_rtol=None).singular_values
        return Jacobian(self.module, points.reshape(-1, *self.shape), kink_rtol=None).singular_values.cpu()

    def certified(self, point: Tensor) -> Tensor | None:
        """Return lower bounds on the singular values of Jf at a point, or None if f has a kink there."""
        if self.chain is not None:
            matrix, error, kink = rounded(self.chain, point)
            return None if kink else (torch.linalg.svdvals(matrix) - error).clamp(min=0.0)
        generator = torch.Generator().manual_seed(0)
        size = 1e-7 * (1 + float(point.abs().max()))
        near = point + size * torch.randn(4, len(point), generator=generator, dtype=torch.float64)
        here, *around = self.singular_values(torch.cat([point[None], near]))
        if max(float((v - here).abs().max()) for v in around) > 1e-4 * float(here[0]):
            return None
        return (here - SHRINK * here[0]).clamp(min=0.0)


@dataclass(frozen=True)
class Domain:
    """The admissible points: the samples, or a box."""

    name: str
    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, domain: Any, x: Tensor) -> Domain:
        """Return the domain for ``"data"``, ``"box"`` (the bounding box of x) or an array (d, 2)."""
        if isinstance(domain, str):
            name = validation.choice(domain, "domain", ["box", "data"])
            return cls(name, *_widened(x.amin(0), x.amax(0)))
        domain = domain.detach().cpu() if isinstance(domain, Tensor) else domain
        try:
            box = torch.as_tensor(np.asarray(domain, dtype=np.float64), device=x.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"domain: got {validation.describe(domain)}, expected 'box', 'data' or (d, 2)") from error
        expected = f"({x.shape[1]}, 2), lower and upper ends"
        validation.expect(box.shape == (x.shape[1], 2), "domain", f"shape {tuple(box.shape)}", expected)
        if not bool(torch.isfinite(box).all()) or bool((box[:, 0] > box[:, 1]).any()):
            raise ValueError("domain: expected finite lower ends up to the upper ends")
        return cls("given", *_widened(box[:, 0], box[:, 1]))

    @property
    def box(self) -> Tensor:
        """The bounds of every coordinate, (d, 2)."""
        return torch.stack([self.lower, self.upper], 1)

    def inside(self, points: Tensor) -> Tensor:
        """Return the points that lie in the box."""
        return points[((points >= self.lower) & (points <= self.upper)).all(1)]


def maximize(
    function: Function,
    objective: Objective,
    domain: Any,
    starts: object,
    rounds: object,
    max_regions: object,
    seed: object,
) -> dict[str, Any]:
    """Return the attributes of a bound at a differentiable point of the domain where the objective is large.

    For small chains, the search covers all linear regions. Otherwise it evaluates the samples and, in a box, ``starts``
    random points and pieces of segments; then, in up to ``rounds`` rounds, points across the kinks nearest to the best
    points, and points at random distances from these. If no point is differentiable, the result is the first sample,
    with all singular values 0.
    """
    where = Domain.of(domain, function.x)
    starts, rounds = validation.integer(starts, "starts"), validation.integer(rounds, "rounds", 0)
    max_regions, seed = validation.integer(max_regions, "max_regions", 0), validation.seed(seed)
    at_samples = where.name == "data"
    points = None if at_samples else _all_regions(function, where, max_regions)
    exact = points is not None
    if points is None:
        points = where.inside(function.x)
    evaluated = len(points)
    if not exact and not at_samples:
        points, evaluated = _searched(function, where, objective, points, starts, rounds, seed)
    found = _best(function, objective, points, exact)
    if found is None:
        found = function.x[0], 0 * function.singular_values(function.x[:1])[0], False
    point, values, exact = found
    return {
        "point": point.reshape(function.shape),
        "singular_values": values,
        "domain": "data" if at_samples else where.box,
        "exact": exact,
        "evaluated": evaluated,
    }


def _searched(
    function: Function, domain: Domain, objective: Objective, points: Tensor, starts: int, rounds: int, seed: int
) -> tuple[Tensor, int]:
    """Return the best points of a search from the given and further random points, and the number of points tried."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.cat([points, _starts(function, domain, starts, generator)])
    scores = objective(function.singular_values(points))
    evaluated, best, idle = len(points), -torch.inf, 0
    for _ in range(rounds):
        order = scores.argsort(descending=True, stable=True)
        sorted_scores = scores[order]
        drop = sorted_scores.diff(prepend=scores.new_full((1,), torch.inf)) < -1e-9 * sorted_scores.abs()
        order = order[drop][:KEPT]  # one point per region
        points, scores = points[order], scores[order]
        idle = idle + 1 if float(scores[0]) <= best + 1e-12 * abs(best) else 0
        if idle == PATIENCE:
            break
        best = float(scores[0])
        new = torch.cat([_neighbors(function, domain, point, generator) for point in points])
        new = new.clamp(domain.lower, domain.upper)
        points, scores = torch.cat([points, new]), torch.cat([scores, objective(function.singular_values(new))])
        evaluated += len(new)
    return points, evaluated


def _best(function: Function, objective: Objective, points: Tensor, exact: bool) -> tuple[Tensor, Tensor, bool] | None:
    """Return the best of the points or, at kinks, one nearby; its certified values; and whether it is the maximum."""
    scores = objective(function.singular_values(points))
    order = scores.argsort(descending=True, stable=True)
    best, found = -torch.inf, None

    def certify(point: Tensor, exact: bool) -> None:
        nonlocal best, found
        values = function.certified(point)
        if values is not None and float(objective(values)) > best:
            best, found = float(objective(values)), (point, values, exact)

    for i in order[:CANDIDATES]:
        if float(scores[i]) <= best + 1e-9 * abs(best):
            break
        certify(points[i], exact and bool(i == order[0]))
    if found is None:
        generator = torch.Generator().manual_seed(0)
        size = 1e-6 * (1 + points[order[0]].abs().max())
        for near in points[order[0]] + size * torch.randn(KEPT, points.shape[1], generator=generator).to(points):
            certify(near, False)
    return found


def _all_regions(function: Function, domain: Domain, max_regions: int) -> Tensor | None:
    """Return a point of every linear region in the box, or None if there are too many or the module is no chain."""
    if function.chain is None:
        return None
    if function.chain.slope == 1:
        return domain.box.mean(1)[None]
    found = every_region(function.chain, domain, max_regions)
    return None if found is None else found.points.to(domain.lower)


def every_region(net: MLP, domain: Domain, max_regions: int) -> regions.Regions | None:
    """Return all linear regions in the box, or None if there are, or may be, more than ``max_regions``.

    The estimated number is that of one layer in general position: sum_{j <= d_in} (hidden neurons over j).
    """
    hidden, d_in = sum(net.widths[1:-1]), net.widths[0]
    if d_in > MOST_INPUTS or sum(math.comb(hidden, j) for j in range(d_in + 1)) > max_regions:
        return None
    found = regions.enumerate(net, domain.box.cpu().numpy(), max_regions=max_regions)
    return found if found.complete else None


def _widened(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of the box with sides of length 0 slightly widened."""
    flat = FLAT * (1 + torch.maximum(lower.abs(), upper.abs())) * (lower == upper)
    return lower - flat, upper + flat


def _starts(function: Function, domain: Domain, count: int, generator: torch.Generator) -> Tensor:
    """Return random points of the box; for a chain, also points on all linear pieces of segments between points."""
    x, ends = function.x, (domain.lower, domain.upper)

    def even(n: int) -> Tensor:
        draw = torch.rand(n, x.shape[1], generator=generator, dtype=torch.float64).to(x.device)
        return domain.lower + draw * (domain.upper - domain.lower)

    segments = max(count // 16, 1)
    rows = torch.randint(len(x), (2, segments), generator=generator).to(x.device)
    if function.chain is None:
        share = torch.rand(segments, 1, generator=generator, dtype=torch.float64).to(x.device)
        return torch.cat([even(count), (x[rows[0]] + share * (x[rows[1]] - x[rows[0]])).clamp(*ends)])
    firsts = torch.cat([x[rows[0]].clamp(*ends), even(segments)])
    seconds = torch.cat([x[rows[1]].clamp(*ends), even(segments)])
    distinct = (firsts != seconds).any(1)
    pieces = regions.along_lines(function.chain, firsts[distinct], seconds[distinct], max_regions=4 * count)
    return torch.cat([even(count), pieces.points.to(x)])


def _neighbors(function: Function, domain: Domain, point: Tensor, generator: torch.Generator) -> Tensor:
    """Return points across the nearest kinks, and at random distances, from a thousandth of the box to its size."""
    draw = torch.randn(STEPS, len(point), generator=generator, dtype=torch.float64)
    radius = 10 ** (-3 * torch.rand(STEPS, 1, generator=generator, dtype=torch.float64))
    steps = (radius * draw).to(point.device) * (domain.upper - domain.lower)
    if function.chain is None:
        return point + steps
    return point + torch.cat([steps[: STEPS // 2], _crossings(function.chain, point)])


def parameters(net: MLP) -> list[tuple[Tensor, Tensor]]:
    """Return the weight and the bias of every layer; biases are zeros if there are none."""
    weights = [weight.detach() for weight in net.weights]
    biases = [bias.detach() for bias in net.biases] or [weight.new_zeros(len(weight)) for weight in weights]
    return list(zip(weights, biases, strict=True))


def _hidden_layers(net: MLP, point: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield, per hidden layer at a point, W_l, the sum of the absolute terms of a~_l, a~_l, and J a~_l."""
    a, jacobian = point, torch.eye(len(point)).to(point)
    for weight, bias in parameters(net)[:-1]:
        z, gradient = weight @ a + bias, weight @ jacobian
        yield weight, weight.abs() @ a.abs() + bias.abs(), z, gradient
        a, jacobian = leaky_relu(z, net.slope), slopes_of(z, net.slope)[:, None] * gradient


def _crossings(net: MLP, point: Tensor) -> Tensor:
    """Return the steps from a point across the kinks of single neurons, shortest first."""
    steps = [point.new_zeros(0, len(point))]
    for _, _, z, gradient in _hidden_layers(net, point):
        square = (gradient * gradient).sum(1)
        live = square > 0
        steps.append(-(1 + OVERSHOOT) * (z / square)[live, None] * gradient[live])
    together = torch.cat(steps)
    return together[together.norm(dim=1).argsort(stable=True)[:STEPS]]


def slopes_of(z: Tensor, slope: float) -> Tensor:
    """Return sigma'(z), s at 0, in the precision of z."""
    return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, slope))


def rounded(net: MLP, point: Tensor) -> tuple[Tensor, float, bool]:
    """Return Jf at a point, a bound on the rounding error of its singular values, and whether there is a kink."""
    diagonals, sizes, kink = [], [1.0], False
    for weight, terms, z, gradient in _hidden_layers(net, point):
        moving = gradient.norm(dim=1) > KINK * weight.norm(dim=1) * sizes[-1]
        kink = kink or (net.slope != 1 and bool(((z.abs() <= KINK * terms) & moving).any()))
        diagonals.append(slopes_of(z, net.slope))
        sizes.append(float(torch.linalg.matrix_norm(diagonals[-1][:, None] * gradient, 2)))
    *hidden, product = [w.detach() for w in net.weights]
    error = 0.0
    for weight, diagonal, size in zip(hidden[::-1], diagonals[::-1], sizes[-2::-1], strict=True):
        product = product * diagonal
        error += (len(weight) + 2) * EPS * float((product.abs() @ weight.abs()).norm()) * size
        product = product @ weight
    error += 4 * max(product.shape) * EPS * float(product.norm())
    return product, error, kink
