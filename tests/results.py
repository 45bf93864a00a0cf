"""One small result of every class that prints itself, by the name of the class."""

import functools
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import bnrank
from bnrank import discovery, theory, training
from bnrank.discovery import dimension
from bnrank.discovery.compression.certificate import Bound
from bnrank.discovery.compression.timing import Subnormals
from bnrank.discovery.power_products import dimensionless_groups
from bnrank.discovery.power_products.result import Factor, PowerProduct
from bnrank.discovery.symbolic.result import Formula, Formulas
from bnrank.networks import read
from bnrank.networks.mlp import from_layers
from bnrank.networks.reasons import Skipped
from bnrank.theory import domains, kernels, stability, structure, symmetry, tours
from bnrank.theory.cost import combination, tradeoff
from bnrank.theory.escape import laws
from bnrank.theory.invariants import linear_tail
from bnrank.training.sweeping.worker import Drained
from helpers import normal

NAME = "<b>&amp;"  # a name of a layer that HTML must escape


@functools.cache
def task() -> Any:
    return bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=2, rank=1, width=10, seed=0)


@functools.cache
def run() -> Any:
    net = bnrank.MLP([4, 6, 6, 4], seed=0)
    return bnrank.train(net, task(), ridge=5e-3, steps=60, members=2, seed=0, progress=False)


@functools.cache
def named() -> nn.Module:
    """A network with a layer whose name is HTML."""
    net = nn.Sequential()
    for name, part in (
        (NAME, nn.Linear(4, 6)),
        ("relu", nn.ReLU()),
        ("norm<i>", nn.LayerNorm(6)),
        ("3", nn.Linear(6, 4)),
    ):
        net.add_module(name, part)
    torch.manual_seed(0)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(0.5 * normal(*p.shape, seed=i))
    return net


def chain() -> nn.Module:
    """A network without parts that the theory does not cover."""
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 4)).double()


def x(n: int = 40) -> torch.Tensor:
    return task().x[:n]


def summary() -> Any:
    table = np.random.default_rng(0).normal(size=(60, 3))
    settings: dict[str, Any] = {"ridges": [1e-2], "depth": 3, "width": 8, "n_networks": 1, "steps": 30}
    return discovery.BottleneckRegressor(1, **settings).fit(table, table[:, :2] @ np.ones((2, 2))).summary()


def films() -> Any:
    angle = np.random.default_rng(0).uniform(0, 6.28, (30, 1)) + 0.6 * np.arange(5)
    frames = np.sin(angle[..., None, None] + np.arange(4)[:, None] + np.arange(4))
    return discovery.StateVariables(steps=20, n_networks=1).fit(frames).summary()


def groups() -> Any:
    table = pd.DataFrame(np.exp(np.random.default_rng(0).normal(size=(80, 3))), columns=["v<", "L", "mu"])
    small = discovery.BottleneckRegressor("auto", n_networks=1, steps=30, ridges=[1e-2])
    return dimensionless_groups(table, table["v<"] / table["L"] ** 2, estimator=small)


def compressed() -> Any:
    with torch.no_grad():
        net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=i))
        net[0].weight[3:] = 0
    return bnrank.compress(net, normal(60, 4).float(), tol=0.05, timing=discovery.Timing(repeats=3))


def monitored() -> Any:
    net, data, goal = chain(), normal(20, 4), normal(20, 4, seed=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with bnrank.invariants.Monitor(net, data[:2], every=1).attach(optimizer) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            (net(data) - goal).square().mean().backward()
            optimizer.step()
    return monitor


def watched() -> Any:
    net = named()
    with bnrank.watch(net, x=x(20), every=1) as watch:
        net(x(20))
        watch.step()
        watch.step()
    return watch


def flow() -> Any:
    net = from_layers([torch.tensor([[1e-3]])] * 3)
    points, goals = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([[2.0], [1.0]]).double()
    return bnrank.flow(net, (points, goals), plateau=training.SkipPlateau(t_after=20.0))


def escaped() -> Any:
    points, goals = torch.tensor([[1.0], [0.5]]).double(), torch.tensor([[2.0], [1.0]]).double()
    return laws.first_escape(flow(), points, bnrank.escape.output_gradient("mse", goals))


def swept(folder: Any) -> Any:
    settings: dict[str, Any] = {"depths": [2, 3], "seeds": [0, 1], "grid": {"width": [8]}, "steps": 3, "processes": 1}
    bnrank.sweep(task(), **settings, out=folder, progress=False)
    return bnrank.Sweep.open(folder)


def formula(name: str) -> Formula:
    import sympy

    first, second = sympy.symbols("X0 X1")
    return Formula(name, "output", "formula", 3 * first + second, ("a", "b"), 0.99, 0.5, 0.98)


def _rank_one() -> nn.Module:
    net = bnrank.MLP([2, 2, 2], bias=False)
    with torch.no_grad():
        for weight in net.weights:
            weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    return net


def _kept() -> Any:
    net = bnrank.networks.CircularConvolutional((1, 6), [4, 4, 1])
    return bnrank.frequencies.kept(bnrank.frequencies.weight_singular_values(net, size=6), 2, 3, atol=0.0)


def _triangle() -> Any:
    corners = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    net = from_layers([corners], [-(corners**2).sum(1) / 2])
    return bnrank.regions.tripoints(net, [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], (-3, 3))


def _line_classes() -> Any:
    weights = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0], [2.0]])]
    net = from_layers(weights, [torch.zeros(1), torch.tensor([0.0, -1.0, -4.0])])
    return symmetry.classes_on_line(net, torch.tensor([[0.0, 0.0], [5.0, 0.0]]))


def _symmetry_bound() -> Any:
    net = from_layers([torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.eye(2)])
    return symmetry.rank_bound(net, torch.ones(1, 2), [(torch.zeros(2, 2), torch.tensor([0.0, 1.0]))])


def _projection() -> Any:
    return symmetry.projection(from_layers([torch.ones(1, 2), torch.full((2, 1), 0.5)]), torch.ones(1, 2))


def _kernel_ranks() -> Any:
    return kernels.jacobian_ranks(normal(20, 2), normal(20, 2, seed=1))


def _selected() -> Any:
    points = torch.linspace(-3, 3, 20)[:, None]
    return kernels.select(points, torch.sin(points), ["rbf"])


def _tradeoff() -> Any:
    points = torch.eye(2) * 2**0.5
    return tradeoff.linear_tradeoff(points, points @ torch.diag(torch.tensor([3.0, 1.0])), ridge=0.05)


def _stationary() -> Any:
    net = from_layers([torch.tensor([[1.0]]), torch.tensor([[1.0]])])
    return bnrank.cost.stationarity(net, (torch.ones(2, 1), torch.full((2, 1), 1.5)), ridge=0.5)


def _finished() -> Any:
    net = from_layers([torch.tensor([[1.1]]), torch.tensor([[1.0]])])
    return bnrank.finish(net, (torch.ones(2, 1), torch.full((2, 1), 1.5)), ridge=0.5, progress=False)


def _tour_bound() -> Any:
    ends = torch.tensor([[0.0], [1.0], [0.0], [1.0], [0.0]])
    return tours.tsp_bound(torch.linspace(0, 1, 5)[:, None], ends, 4)


RE = from_layers([torch.ones(1, 1)] * 4)
MAKERS: dict[str, Any] = {
    "Listing": lambda: read(named(), x(2)).listing,
    "ActivationBound": lambda: structure.activation_bound(from_layers([torch.ones(1, 1)] * 2), torch.full((1,), 3.0)),
    "Bottleneck": lambda: bnrank.bottleneck(run().network(0), x()).bottleneck,
    "Bound": lambda: Bound(lipschitz_before=3.0, lipschitz_after=1.0, at_samples=0.5, size=10.0),
    "Certificate": lambda: compressed().certificate,
    "ClassRegions": _triangle,
    "Comparison": lambda: bnrank.compare(run().network(0), run().network(1), x()),
    "CompletePositivity": lambda: domains.completely_positive(torch.tensor([[1.0, 1.0], [-1.0, 1.0]])),
    "Compressed": compressed,
    "CostBracket": lambda: bnrank.cost.bracket(run().network(0), x()),
    "DimensionlessGroups": groups,
    "Drained": lambda: Drained("done", 2, 0, 1, 4),
    "EscapeDirection": lambda: bnrank.escape.find(normal(8, 2), normal(8, 2, seed=1), 3, 4, starts=2, steps=20),
    "Expansion": lambda: bnrank.cost.expand([4, 6, 8, 12], [9.1, 13.05, 17.0, 25.02]),
    "FeatureConvergence": lambda: bnrank.theory.feature_convergence(run().network(0), task(), 5e-3),
    "FilmSummary": films,
    "Findings": lambda: bnrank.invariants.find(named(), x(2)),
    "Finished": _finished,
    "FirstEscape": escaped,
    "Flow": flow,
    "Formula": lambda: formula("y<1>"),
    "Formulas": lambda: Formulas(
        "none", (), (formula("y<1>"), formula("y2")), 30, 10, ("a < b",), np.asarray, np.asarray
    ),
    "GrowthBound": lambda: stability.growth_bound(RE, torch.linspace(0, 8, 9)[:, None]),
    "Jacobian": lambda: bnrank.Jacobian(run().network(0), x(5)),
    "JacobianRank": lambda: bnrank.Jacobian(run().network(0), x(5)).rank(),
    "KernelJacobians": _kernel_ranks,
    "Kept": _kept,
    "LayerGraph": lambda: bnrank.graph.trace(named(), x(2)),
    "LayerTable": lambda: bnrank.layer_table(bnrank.profile(named(), x())),
    "LineClasses": _line_classes,
    "LocalDimension": lambda: dimension.local_dimension(normal(250, 2)),
    "Monitor": monitored,
    "PathBounds": lambda: tours.shortest_path_bounds(torch.tensor([[0.0], [5.0], [1.0], [3.0]])),
    "Planarity": lambda: domains.planarity(torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])),
    "PowerProduct": lambda: PowerProduct(
        (Factor("v<", 2.0, 2.0, 2.0, Fraction(2)), Factor("L", -1.0, -1.0, -1.0, None))
    ),
    "PreactivationBound": lambda: structure.preactivation_bound(
        bnrank.MLP([3, 4, 4, 3], seed=1), torch.rand(20, 3), rank=1
    ),
    "Projections": _projection,
    "RankBracket": lambda: bnrank.rank(run().network(0), x()),
    "RankTradeoff": _tradeoff,
    "Reading": lambda: read(named(), x(2)),
    "Regions": lambda: bnrank.regions.enumerate(from_layers([torch.eye(2), torch.eye(2)]), (-1, 1)),
    "Run": run,
    "Selected": _selected,
    "Sharpness": lambda: stability.sharpness_bound(bnrank.MLP([1, 1], bias=False), torch.tensor([[2.0]]), step=0.2),
    "Skipped": lambda: Skipped("part<0>", "GELU", "a < b"),
    "Stationarity": _stationary,
    "Structure": lambda: bnrank.bottleneck(named(), x()),
    "Subnormals": lambda: Subnormals(count=300, entries=1000, speedup=7.8),
    "Summary": summary,
    "Symmetries": lambda: discovery.symmetries(nn.Tanh(), normal(40, 2)),
    "SymmetryBound": _symmetry_bound,
    "Tail": lambda: linear_tail.tail(chain(), x(2).double()),
    "Task": task,
    "Term": lambda: combination.Term(1.5, 1.25, 1.75),
    "TourBound": _tour_bound,
    "Verdict": lambda: theory.check(run().network(0), x(), only="T4")[0],
    "Verdicts": lambda: theory.check(run().network(0), x(), task().y, ridge=5e-3),
    "Watch": watched,
    "WeightStructure": lambda: structure.weight_structure(_rank_one(), torch.ones(2)),
}
"""Functions that make a result, by the name of its class. A sweep needs a folder: `swept`."""


@functools.cache
def made(name: str) -> Any:
    """Return the result of a class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[name]()
