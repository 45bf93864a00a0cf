"""Costs of functions: compositions, sums, bent curves and ranks, as in docs/functions.md.

    python -m benchmarks.functions compositions --seeds 10 11 12 13 14
    python -m benchmarks.functions sums --seeds 10 11 12 13 14
    python -m benchmarks.functions curves
    python -m benchmarks.functions ranks --seeds 20 21 22 23 24

Prints one row per seed, or per angle, as soon as it is computed.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bnrank.networks.mlp import MLP, from_layers
from bnrank.tasks import Task
from bnrank.theory import cost
from bnrank.theory.constructions import add
from bnrank.training import train

PARTS = [3, 4, 5]  # further depths of the parts of a composition
DEPTHS = [6, 8, 10, 12, 16, 20, 24, 32]  # of compositions and sums
BENT = [6, 8, 10, 12, 16]  # of bent curves: at smaller depths the identity of rank 2 may cost less
SMALL = [3, 4, 6, 8, 12]  # of small data
ATOL = 0.1  # differences of R1 and R2 that count as 0
PLANTED: dict[str, Any] = {"width": 5, "starts": 0, "polish": 100}  # search from planted networks
SEARCH: dict[str, Any] = {"width": 5, "starts": 2, "steps": 100, "polish": 60}  # and from random ones
ANGLES = [15, 30, 45, 60, 90]  # degrees between the two tangents of a bent curve
TRUNCATED: dict[str, Any] = {"width": 10, "starts": 4, "steps": 300, "polish": 60}  # and for truncated targets
RIDGE = 0.005  # lambda of the experiment on ranks
TRAINED = [3, 6, 12, 24]  # depths at which it trains networks
MEMBERS = 4  # networks per depth


@dataclass(frozen=True)
class Part:
    """The function B x + c relu(w . x - b), on x >= 0, as a network of depth 2 or 3; B = a w^T or a matrix."""

    network: MLP

    def __call__(self, x: Tensor) -> Tensor:
        """Return the values, (N, d_out)."""
        with torch.no_grad():
            return self.network(x)


def bend(a: Tensor, w: Tensor, b: Tensor, c: Tensor) -> Part:
    """Return x -> a (w . x) + c relu(w . x - b), for w . x >= 0."""
    ones = torch.ones(2, 1, dtype=torch.float64)
    zero, kink = torch.zeros(1, dtype=torch.float64), torch.cat([b.new_zeros(1), -b.reshape(1)])
    weights = [w[None], ones, torch.stack([a, c], 1)]
    return Part(from_layers(weights, [zero, kink, torch.zeros_like(a)]))


def fold(a: Tensor, w: Tensor, b: Tensor, c: Tensor) -> Part:
    """Return x -> A x + c relu(w . x - b), for x >= 0."""
    weights = [torch.cat([torch.eye(a.shape[1], dtype=torch.float64), w[None]]), torch.cat([a, c[:, None]], 1)]
    kink = torch.cat([b.new_zeros(a.shape[1]), -b.reshape(1)])
    return Part(from_layers(weights, [kink, torch.zeros(len(a), dtype=torch.float64)]))


def planted(seed: int, kind: str) -> tuple[Tensor, Part, Part]:
    """Return x >= 0, g with values in R^2_+, and h with values in R^2.

    "line": x in R, one bend in g and one in h, both of rank 1. "linear": the same, g linear, for which R1 is additive.
    "plane": x in R^2, one bend in each, both of rank 2.
    """
    draw = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    if kind == "plane":
        x = uniform(8, 2)
        g = fold(0.2 + uniform(2, 2), uniform(2), 0.2 + 0.4 * uniform(1), uniform(2))
        w = uniform(2)
        return x, g, fold(normal(2, 2), w, (g(x) @ w).median(), normal(2))
    x = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
    bent = 2 * uniform(2) * (kind == "line")
    g = bend(0.2 + uniform(2), torch.ones(1, dtype=torch.float64), 0.3 + 0.4 * uniform(1), bent)
    w = 0.2 + uniform(2)
    middle = (g(x) @ w).quantile(0.3 + 0.4 * float(uniform(1)))
    return x, g, bend(normal(2), w / w.norm(), middle / w.norm(), 2 * normal(2))


def chained(h: MLP, g: MLP) -> MLP:
    """Return h o g with a ReLU between them, of norm ||h||^2 + ||g||^2, for g >= 0 on the samples."""
    weights = [w.detach() for net in (g, h) for w in net.weights]
    biases = [b.detach() for net in (g, h) for b in (list(net.biases) or [w.new_zeros(len(w)) for w in net.weights])]
    return from_layers(weights, biases)


def norm(net: MLP) -> float:
    """Return ||theta||^2."""
    return sum(float((p.detach() ** 2).sum()) for p in net.parameters())


def norms_of(found: list[cost.Solution]) -> list[float]:
    """Return the norms found."""
    return [solution.norm if solution.interpolates else math.inf for solution in found]


def wholes(x: Tensor, y: Tensor, start: MLP, combined: list[MLP]) -> list[list[float]]:
    """Return the least norms found over the depths: from combined networks of the parts, and from a start alone."""
    seeds: list[MLP] = [start]
    for depth in DEPTHS:
        seeds += sorted((net for net in combined if net.depth == depth), key=norm)[:2]
    return [norms_of(cost.solve_depths(x, y, DEPTHS, **PLANTED, initial=nets)) for nets in (seeds, [start])]


def composition(seed: int, kind: str) -> list[list[float]]:
    """Return the norms over the depths of h and g, and of h o g from their networks and from the planted one alone."""
    x, g, h = planted(seed, kind)
    z, y = g(x), h(g(x))
    first = cost.solve_depths(z, y, [*PARTS, *DEPTHS], **PLANTED, initial=h.network)
    second = cost.solve_depths(x, z, [*PARTS, *DEPTHS], **PLANTED, initial=g.network)
    chains = [chained(one.network, two.network) for one in first for two in second]
    found = wholes(x, y, chained(h.network, g.network), chains)
    return [norms_of(first)[len(PARTS) :], norms_of(second)[len(PARTS) :], *found]


def addition(seed: int) -> list[list[float]]:
    """Return the norms of f, g and, twice, f + g; f maps x_1 into the first output, g maps x_2 into the second."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(8, 2, generator=draw, dtype=torch.float64)
    terms = []
    for axis in torch.eye(2, dtype=torch.float64):
        slopes = torch.randn(2, generator=draw, dtype=torch.float64)
        place = 0.3 + 0.4 * torch.rand(1, generator=draw, dtype=torch.float64)
        terms.append(bend(slopes[0] * axis, axis, place, 2 * slopes[1] * axis))
    f, g = (cost.solve_depths(x, term(x), DEPTHS, **PLANTED, initial=term.network) for term in terms)
    values = terms[0](x) + terms[1](x)
    parallel = [add(a.network, b.network) for a, b in zip(f, g, strict=True)]
    return [norms_of(f), norms_of(g), *wholes(x, values, add(terms[0].network, terms[1].network), parallel)]


def curve(degrees: float, samples: int = 4) -> tuple[float, cost.Expansion, list[float]]:
    """Return log(1 + sin phi), and the expansion of the norms of the identity on a curve that bends by phi."""
    phi = math.radians(degrees)
    t = torch.linspace(0, 1, samples, dtype=torch.float64)[:, None]
    start = (math.pi / 2 - phi) / 2  # both tangents in the quadrant
    first, second = (torch.tensor([[math.cos(a), math.sin(a)]], dtype=torch.float64) for a in (start, start + phi))
    x = torch.cat([t * first, first + t[1:] * second])
    w = (first + second)[0] / math.cos(phi / 2) / 2  # w . u = cos(phi / 2) for both tangents u
    rate = float(w @ first[0])
    start_net = bend(first[0] / rate, w, torch.tensor(rate, dtype=torch.float64), (second - first)[0] / rate).network
    ladders = (
        cost.solve_depths(x, x, BENT, **PLANTED, initial=start_net),
        cost.solve_depths(x, x, [3, 4, *BENT], **SEARCH)[2:],
    )
    norms = [min(pair) for pair in zip(*map(norms_of, ladders), strict=True)]
    return cost.tangent_bound(first.T, second.T), cost.expand(BENT, norms), norms


def bottleneck_rank(net: MLP) -> int:
    """Return the number of singular values above 0.1 of the middle weight matrix, as in F4."""
    return int((torch.linalg.svdvals(net.weights[net.depth // 2].detach()) > 0.1).sum())


def ranks(seed: int) -> list[str]:
    """Return, per depth, the least lambda L k + C + lambda R1, its rank, and loss and rank of trained networks."""
    draw = torch.Generator().manual_seed(seed)
    x = 0.1 + torch.rand(8, 2, generator=draw, dtype=torch.float64)
    bend = 0.3 + 0.4 * torch.rand(1, generator=draw, dtype=torch.float64)
    y = torch.stack([1.5 * x[:, 0] + torch.relu(x[:, 1] - bend), 0.7 * x[:, 1]], 1)
    found = cost.solved_tradeoff(x, y, RIDGE, SMALL, **TRUNCATED)
    rows = [f"R0 {found.ranks}, C {found.costs}, R1 {found.corrections}"]
    for depth in TRAINED:
        run = train(
            MLP([2, *[8] * (depth - 1), 2], dtype=torch.float64),
            Task(x, y),
            ridge=RIDGE,
            steps=800,
            seed=list(range(MEMBERS)),
            dtype=torch.float64,
            progress=False,
        )
        nets = [run.network(i) for i in range(MEMBERS)]
        losses = []
        for net in nets:
            with torch.no_grad():
                fit = float(((net(x) - y) ** 2).sum(1).mean())
            losses.append(fit + RIDGE * norm(net))
        best = min(range(MEMBERS), key=losses.__getitem__)
        rows.append(
            f"L = {depth}: {found.loss(depth):.4f} at rank {found.rank(depth)}, "
            f"trained {losses[best]:.4f} at rank {bottleneck_rank(nets[best])}"
        )
    return rows


def main() -> None:
    """Run one experiment and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["compositions", "sums", "curves", "ranks"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--kind", choices=["line", "linear", "plane"], default="line", help="planted compositions")
    parser.add_argument("--angles", type=float, nargs="+", default=ANGLES)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.experiment == "curves":
        for degrees in chosen.angles:
            bound, fit, norms = curve(degrees)
            ends = ", ".join(f"{v:.3f}" for v in fit.R1_interval)
            rounded = [round(v, 4) for v in norms]
            print(
                f"{degrees:g} degrees: bound {bound:.4f}, R0 {fit.R0:.3f}, R1 {fit.R1:.4f} in [{ends}]",
                rounded,
                flush=True,
            )
        return
    for seed in chosen.seeds:
        print(f"seed {seed}")
        if chosen.experiment == "ranks":
            try:
                print("\n".join(ranks(seed)), flush=True)
            except ValueError as error:  # the search finds no interpolant
                print(f"not computed: {error}", flush=True)
            continue
        if chosen.experiment == "compositions":
            norms, rule = composition(seed, chosen.kind), "composition"
        else:
            norms, rule = addition(seed), "addition"
        print([[round(v, 4) for v in part] for part in norms])
        for whole, about in zip(
            norms[2:], ("from the networks of the parts", "from the planted network alone"), strict=True
        ):
            verdicts = cost.subadditivity(DEPTHS, *norms[:2], whole, rule=rule, atol=ATOL, from_parts=whole is norms[2])
            print(f"{about}:\n{verdicts}")
            print("\n".join(v.note for v in verdicts if v.note), flush=True)


if __name__ == "__main__":
    main()
