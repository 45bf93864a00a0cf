"""The computation of F5: hidden representations of a network that predicts the costs of gradient descent."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from bnrank.figures.f05_symmetry_learning.dependence import self_consistency, unexplained
from bnrank.figures.f05_symmetry_learning.orbits import Array, activations, collapse_by_layer, rotations
from bnrank.figures.harness.training import held_out, relative_error
from bnrank.measures import profile
from bnrank.measures.bottlenecks import Bottleneck, detect
from bnrank.networks import MLP
from bnrank.tasks import RankOneFactorization, Task

FULL, LINE = "two hidden coordinates, median over the layers of the bottleneck", "the first of them alone, likewise"
PLANE = "two random directions of the input"
TRUE = "u itself"
BEFORE = "two hidden coordinates before training"
PIXELS = 121
SMALL = 0.05  # largest share of the variance within orbits
RADII = 16  # orbits in every plane orthogonal to w
RADIUS = 1.8  # of the starts


@dataclass(frozen=True)
class Settings:
    """Settings of F5.

    Attributes
    ----------
    samples, dimension, horizon, rate, noise, start
        Of `bnrank.tasks.matrix_factorization`: ``horizon`` steps of size ``rate``.
    depth, width, ridge, steps
        Of the network and its training.
    early, hidden : int
        The layers measured: for orbits and for the two coordinates.
    trajectories, copies : int
        Test trajectories, and points on each orbit.
    seed : int
        Of data and network.
    seeds, curves : int
        Seeds from ``seed`` on for which networks are trained to count crossings, and trajectories of each.
    """

    samples: int = 1000
    dimension: int = 10
    horizon: int = 20
    rate: float = 0.03
    noise: float = 0.01
    start: str = "even"
    depth: int = 18
    width: int = 60
    ridge: float = 4e-4
    steps: int = 4000
    early: int = 3
    hidden: int = 6
    trajectories: int = 200
    copies: int = 32
    seed: int = 0
    seeds: int = 5
    curves: int = 50


@dataclass(frozen=True)
class Map:
    """Distances to a fixed point on a plane of inputs.

    Attributes
    ----------
    title : str
        What is drawn.
    up : str
        Label of the vertical axis.
    origin : (2,)
        The fixed point.
    distances : (pixels, pixels)
        Rows from the bottom up; the plane goes from -1.8 to 1.8 both ways.
    """

    title: str
    up: str
    origin: tuple[float, float]
    distances: Array


@dataclass(frozen=True)
class Learned:
    """The measurements of the network.

    Attributes
    ----------
    profile : Dataset
        Of the network on test starts.
    bottleneck : Bottleneck
        Of its weights.
    settings : Settings
        The settings of the figure.
    exact : float
        Largest |u(v') - u'| for E = 0, over test trajectories.
    test_error : float
        sum ||f(x) - y||^2 / sum ||y - mean y||^2 on test data.
    share : float
        Share of the variance of the hidden states in their first two principal directions.
    residuals : mapping
        State -> share of the variance of its steps that it does not predict, in the worst direction.
    by_layer : mapping
        Layer of the bottleneck (``hidden`` where there is none) -> the same of its two coordinates.
    collapse : (L + 1,)
        Variance within orbits over total variance: inputs, layers 1, ..., L.
    collapse_before : (L + 1,)
        The same in a network that was not trained.
    in_planes : (L + 1,)
        The same with the variance within planes orthogonal to w in place of the total.
    from_hidden, from_u : (2,)
        R^2 of u_0 and u_1 predicted from the hidden coordinates, and of these from u.
    trajectories : mapping
        State -> (trajectories, times, 2).
    statistics, coordinates : (N, 2)
        u and hidden coordinates of test starts.
    predicted, costs : (N, T)
        Costs of test data, in the units of C.
    maps : tuple of Map
        Distances in planes.
    """

    profile: xr.Dataset
    bottleneck: Bottleneck
    settings: Settings
    exact: float
    test_error: float
    share: float
    residuals: Mapping[str, float]
    by_layer: Mapping[int, float]
    collapse: Array
    collapse_before: Array
    in_planes: Array
    from_hidden: Array
    from_u: Array
    trajectories: Mapping[str, Array]
    statistics: Array
    coordinates: Array
    predicted: Array
    costs: Array
    maps: tuple[Map, ...]

    @property
    def collapsed(self) -> float:
        """First layer with less than 5 percent of the variance in planes orthogonal to w within orbits, else NaN."""
        return next((float(layer) for layer in np.flatnonzero(self.in_planes < SMALL)), np.nan)


def learn(net: MLP, task: Task, descent: RankOneFactorization, settings: Settings) -> Learned:
    """Return the measurements of a trained network on the test data of its task."""
    hidden, copies, seed = settings.hidden, settings.copies, settings.seed
    x, y = (part.double() for part in held_out(task))
    start, steps = x[: settings.trajectories], y.shape[1]
    first_costs = descent.cost(descent.step(task.x.double()))
    scale = float(task.y[:, 0].double() @ first_costs / (first_costs @ first_costs))  # of outputs over costs
    with torch.no_grad():
        predicted = net.double()(x)
    measured = profile(net, x, y)
    states = descent.trajectory(start, steps)
    generator = torch.Generator().manual_seed(seed)
    directions_of_input = torch.randn((x.shape[1], 2), generator=generator, dtype=torch.float64)
    represented = activations(net, states, hidden)
    center, directions, share = principal(represented)
    fresh = MLP(net.widths, seed=seed, dtype=torch.float64)
    paths = {
        FULL: ((represented - center) @ directions).numpy(),
        PLANE: (states @ torch.linalg.qr(directions_of_input)[0]).numpy(),
        TRUE: descent.statistics(states).numpy(),
        BEFORE: in_plane(activations(fresh, states, hidden)).numpy(),
    }
    found = detect(measured.weight_singular_values.values)
    layers = [hidden] if found.start is None or found.end is None else list(range(found.start, found.end + 1))
    flat = {layer: in_plane(activations(net, states, layer)).numpy() for layer in layers}
    by_layer = {layer: self_consistency(path) for layer, path in flat.items()}
    residuals = {
        PLANE: self_consistency(paths[PLANE]),
        TRUE: self_consistency(paths[TRUE]),
        FULL: float(np.median(list(by_layer.values()))),
        LINE: float(np.median([self_consistency(path[..., :1]) for path in flat.values()])),
        BEFORE: self_consistency(paths[BEFORE]),
    }
    u = descent.statistics(x).numpy()
    z = ((activations(net, x, hidden) - center) @ directions).numpy()
    points = rotations(start, descent.w, copies, seed)
    planes = _planes(descent, x[: max(2, settings.trajectories // 4)], copies, seed)
    return Learned(
        profile=measured,
        bottleneck=found,
        settings=settings,
        exact=exactness(descent, start, steps),
        test_error=relative_error(predicted, y),
        share=share,
        residuals=residuals,
        by_layer=by_layer,
        collapse=collapse_by_layer(net, points),
        collapse_before=collapse_by_layer(fresh, points),
        in_planes=collapse_by_layer(net, planes),
        from_hidden=np.array([1 - unexplained(z, u[:, [i]]) for i in (0, 1)]),
        from_u=np.array([1 - unexplained(u, z[:, [i]]) for i in (0, 1)]),
        trajectories=paths,
        statistics=u,
        coordinates=z,
        predicted=predicted.numpy() / scale,
        costs=y.numpy() / scale,
        maps=_maps(net, descent, settings.early),
    )


def principal(h: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return mean, first two principal directions (n, 2) and their share of the variance, of states (..., n)."""
    flat = h.reshape(-1, h.shape[-1])
    center = flat.mean(0)
    _, s, vh = torch.linalg.svd(flat - center, full_matrices=False)
    signs = vh[:2].sum(1).sign()
    return center, (vh[:2] * signs[:, None]).T, float(s[:2].square().sum() / s.square().sum())


def in_plane(h: Tensor) -> Tensor:
    """Return states in their first two principal directions."""
    center, directions, _ = principal(h)
    return (h - center) @ directions


def exactness(descent: RankOneFactorization, x: Tensor, steps: int) -> float:
    """Return the largest |u(v(t + 1)) - G(u(v(t)))| along trajectories, G the map of the statistics, with E = 0."""
    clean = RankOneFactorization(descent.w, descent.across, torch.zeros_like(descent.error), descent.lr)
    u = clean.statistics(clean.trajectory(x, steps))
    return float((u[:, 1:] - clean.step_statistics(u[:, :-1])).abs().max())


def _planes(descent: RankOneFactorization, x: Tensor, copies: int, seed: int) -> Tensor:
    """Return points (planes, orbits, copies, d) of planes orthogonal to w, with the w^T x of samples.

    Radii of the orbits are drawn uniformly, up to where ||v|| is the radius of the starts.
    """
    generator = torch.Generator().manual_seed(seed)
    along = x @ descent.w
    limit = (RADIUS**2 - along.square()).clamp(min=0).sqrt()
    radii = torch.rand((len(x), RADII), generator=generator, dtype=torch.float64) * limit[:, None]
    v = along[:, None, None] * descent.w + radii[..., None] * descent.across
    return rotations(v.flatten(0, 1), descent.w, copies, seed).reshape(len(x), RADII, copies, -1)


def _maps(net: MLP, descent: RankOneFactorization, early: int) -> tuple[Map, ...]:
    """Return distances ||a(x) - a(x0)|| in a plane orthogonal to w, and in one that holds w."""
    w, e = descent.w, descent.across
    f = torch.linalg.svd(torch.stack([w, e]))[2][2 % len(w)]  # orthogonal to both where d is 3 or more
    height, at = RADIUS / 4, RADIUS / 2
    before = max(1, early - 1)
    side = torch.linspace(-RADIUS, RADIUS, PIXELS, dtype=torch.float64)
    up, across = torch.meshgrid(side, side, indexing="ij")
    rings = height * w + across[..., None] * e + up[..., None] * f
    holding = up[..., None] * w + across[..., None] * e
    x0 = height * w + at * e
    where = f"plane orthogonal to w, wᵀv = {height:.2g}"
    two = "second direction orthogonal to w"
    drawn = (
        (f"inputs\n{where}", two, rings, 0, (at, 0.0)),
        (f"layer {before}\n{where}", two, rings, before, (at, 0.0)),
        (f"layer {early}\n{where}", two, rings, early, (at, 0.0)),
        (f"layer {early}\nplane that holds w", "wᵀv", holding, early, (at, height)),
    )
    result = []
    for title, label, plane, layer, origin in drawn:
        distance = (activations(net, plane, layer) - activations(net, x0[None], layer)).norm(dim=-1)
        result.append(Map(title, label, origin, distance.numpy()))
    return tuple(result)


def rows(learned: Learned) -> list[dict[str, object]]:
    """Return one table row per layer: collapse of orbits and the first three singular values."""
    columns = {
        "layer": ["inputs", *range(1, len(learned.collapse))],
        "variance within orbits / total": learned.collapse,
        "before training": learned.collapse_before,
        "in planes orthogonal to w": learned.in_planes,
    }
    cells = zip(*columns.values(), strict=True)
    table: list[dict[str, object]] = [dict(zip(columns, row, strict=True)) for row in cells]
    for row, values in zip(table[1:], learned.profile.weight_singular_values.values, strict=True):
        row |= {f"s_{i} of W": value for i, value in enumerate(values[:3], 1)}
    return table
