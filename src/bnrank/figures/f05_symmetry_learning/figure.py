"""F5 (Jacot2023b, Figure 2 and section 5; Jacot2023c): a deep network learns a rotation symmetry.

Gradient descent on C(v) = ||v v^T - (w w^T + E)||_F^2 depends, up to E, on only two numbers of its start. A network
that predicts the costs from the start finds two hidden coordinates that do the same.
"""

from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import MaxNLocator

from bnrank._core import linalg
from bnrank._core.axes import OKABE_ITO
from bnrank.figures.f05_symmetry_learning.computation import (
    BEFORE,
    FULL,
    LINE,
    PLANE,
    RADIUS,
    SMALL,
    TRUE,
    Learned,
    Settings,
    learn,
    rows,
)
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below, is_true
from bnrank.figures.harness.drawing import GRAY, color, label, panels, reference
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import matrix_factorization, rank_one_factorization

RANK = 2
LAYERS = 3  # smallest length of a bottleneck
RATIO = 1e-3  # singular values of the Jacobian that count, relative to the largest


def claims(learned: Learned) -> tuple[Claim, ...]:
    """Return the claims of Figure 2."""
    found, early = learned.bottleneck, learned.early
    where = "none" if found.rank is None else f"rank {found.rank}, layers {found.start} to {found.end}"
    layers = 0 if found.start is None or found.end is None else found.end - found.start + 1
    depth = learned.profile.sizes["layer"]
    values = learned.profile.jacobian_singular_values.values
    two = np.mean(np.asarray(linalg.rank(values, RATIO)) == RANK)
    planes = "first layer with less than 5 percent of the variance in planes orthogonal to w within orbits"
    collapsed = np.nan if learned.collapsed is None else float(learned.collapsed)
    controls = [above(f"the same of {name}", learned.residuals[name], 4 * SMALL) for name in (LINE, PLANE, BEFORE)]
    open_share = f"variance of a step that the present leaves open, in the worst direction: {FULL}"
    return (
        below("E = 0: u(v(t + 1)) is the map of u(v(t)), largest difference", learned.exact, 1e-12),
        is_true(
            "longest run of layers with the same number of singular values near 1, the others at most 0.1",
            found.rank == RANK and layers >= LAYERS,
            where,
            f"rank {RANK}, {LAYERS} layers or more",
        ),
        at_least(f"share of test samples with a Jacobian of rank {RANK}", two, 0.9),
        below("test error over the variance of the outputs", learned.test_error, SMALL),
        above(f"share of the variance of a_{learned.hidden} in two dimensions", learned.share, 1 - SMALL),
        below(open_share, learned.residuals[FULL], SMALL),
        *controls,
        below(f"a_{early}: variance within rotation orbits over total variance", learned.collapse[early], SMALL),
        above("the same of the inputs, for comparison", learned.collapse[0], 5 * SMALL),
        above(f"the same of a_{early} before training", learned.collapse_before[early], 5 * SMALL),
        at_most(planes, collapsed, depth // 4, note=", in the first quarter"),
        above("smallest R² of u from the two hidden coordinates", np.min(learned.from_hidden), 1 - SMALL),
        above("smallest R² of the hidden coordinates from u", np.min(learned.from_u), 1 - SMALL),
    )


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train on starts and costs of gradient descent, and measure what the hidden layers represent."""
    s = settings
    task = matrix_factorization(
        s.samples, s.dimension, s.horizon, s.rate, s.noise, s.seed, n_test=1000, start=s.start, radius=RADIUS
    )
    net = mlp(task, s.depth, s.width, seed=s.seed)
    run = train_recorded(net, task, folder / "network", progress, ridge=s.ridge, steps=s.steps, records=50)
    descent = rank_one_factorization(s.dimension, s.rate, s.noise, s.seed)
    learned = learn(cast(MLP, run.network(0)), task, descent, s)
    pictures = {
        "spectra": plots.bottleneck_spectra(learned.profile, top=6)[0].figure,
        "trajectories": draw_trajectories(learned),
        "distances": draw_maps(learned),
        "orbit-collapse": draw_collapse(learned),
        "coordinates": draw_coordinates(learned),
        "costs": draw_costs(learned),
    }
    text = (
        "The inputs of the network are the starts v(0), its targets the costs C(v(1)), C(v(2)), ... States along "
        "trajectories are given to it as if they were starts. Everything is measured on test data. The variance that a "
        "state does not predict is that of a local linear fit to 20 neighbors, never on the trajectory or the sample "
        f"itself; for u it is {learned.residuals[TRUE]:.2g}: what the fit leaves where the dynamics close up to E."
    )
    by_layer = {f"two coordinates of layer {layer}": value for layer, value in learned.by_layer.items()}
    steps = [
        {"state": name, "share of the step's variance, worst direction": value}
        for name, value in {**learned.residuals, **by_layer}.items()
    ]
    sections = (
        Section("The trained network", text=text, profile=learned.profile, history=run.history),
        Section("Orbits and weights, layer by layer", rows=rows(learned)),
        Section("How far the present state decides the next one", rows=steps),
    )
    return Outcome(claims=claims(learned), sections=sections, pictures=pictures, captions=_captions(learned))


def _captions(learned: Learned) -> dict[str, str]:
    layer = learned.hidden
    return {
        "spectra": "Singular values of activations and weights; shaded: the bottleneck.",
        "trajectories": f"Gradient descent in u, in two principal directions of layer {layer}, and in two random "
        "directions of the input. Where the state decides the next one paths do not cross.",
        "distances": "Distance to the representation of a fixed point (cross). In planes orthogonal to w, rotation "
        "orbits are circles about the middle: a layer that has collapsed them shows rings.",
        "orbit-collapse": "Variance within rotation orbits, over the total variance and over that of planes "
        "orthogonal to w, in which nothing but the distance to w can tell orbits apart.",
        "coordinates": f"Test starts in the two coordinates of layer {layer}, colored by the summary statistics.",
        "costs": "Costs along gradient descent, predicted from the start, on test data.",
    }


SHOWN = 40  # trajectories
CURVES = 7
ALONG, ACROSS = r"$u_0=(w^Tv)^2$", r"$u_1=\|(I-ww^T)v\|^2$"


def draw_trajectories(learned: Learned) -> Picture:
    """Draw the same trajectories in u, in the hidden coordinates and in two directions of the input."""
    first, second = _coordinates(learned)
    shown = (
        (TRUE, ALONG, ACROSS, "Summary statistics"),
        (FULL, first, second, f"Layer {learned.hidden} of the network"),
        (PLANE, "first random direction of v", "second random direction of v", "Two directions of the input"),
    )
    picture, (axes,) = panels(1, 3, (12.5, 4.3))
    lines: Any = None
    for ax, (name, x, y, title) in zip(axes, shown, strict=True):
        paths = learned.trajectories[name][:SHOWN]
        pieces = np.stack([paths[:, :-1], paths[:, 1:]], axis=2)
        times = np.tile(np.arange(pieces.shape[1]), len(paths))
        lines = LineCollection(list(pieces.reshape(-1, 2, 2)), cmap="viridis", linewidths=1.2)
        lines.set_array(times)
        ax.add_collection(lines)
        ax.plot(*paths[:, 0].T, "o", color=OKABE_ITO[1], markersize=3.5, linestyle="none", label="start v(0)")
        label(ax, x, y, title)
        ax.autoscale()
    axes[0].legend(frameon=False, fontsize=9, loc="upper right")
    picture.colorbar(lines, ax=axes, label="step t of gradient descent", pad=0.02, ticks=MaxNLocator(integer=True))
    return picture


def draw_maps(learned: Learned) -> Picture:
    """Draw distances to a fixed point in planes of inputs."""
    picture, axes = panels(2, 2, (9.6, 8.6))
    for ax, shown in zip(axes.ravel(), learned.maps, strict=True):
        side = np.linspace(-shown.extent, shown.extent, len(shown.distances))
        image = ax.pcolormesh(side, side, shown.distances, cmap="viridis", shading="nearest", rasterized=True)
        ax.contour(side, side, shown.distances, levels=9, colors="white", linewidths=0.6, alpha=0.7)
        ax.plot(*shown.origin, marker="X", color="white", markeredgecolor="black", markersize=10, linestyle="none")
        label(ax, shown.across, shown.up, shown.title.capitalize())
        ax.grid(visible=False)
        ax.set_aspect("equal")
        picture.colorbar(image, ax=ax, label="distance to the cross", shrink=0.9)
    return picture


def draw_collapse(learned: Learned) -> Picture:
    """Draw the variance within orbits over the total variance, and over that in planes, layer by layer."""
    picture, ((ax,),) = panels(1, 1, (7.6, 4.2))
    layers = np.arange(len(learned.collapse))
    planes = "over the variance in planes orthogonal to w"
    ax.plot(layers, learned.collapse, color=OKABE_ITO[0], marker="o", markersize=5, label="over the total variance")
    ax.plot(layers, learned.in_planes, color=OKABE_ITO[1], marker="s", markersize=5, label=planes)
    reference(ax, SMALL, "5 percent")
    label(ax, "layer (0: inputs)", "share", "Variance within rotation orbits", log="y", legend="best")
    ax.set_ylim(top=1.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture


def draw_coordinates(learned: Learned) -> Picture:
    """Draw test starts in the hidden coordinates, colored by the two summary statistics."""
    picture, (axes,) = panels(1, 2, (11.0, 4.4), sharey=True)
    for i, (ax, name) in enumerate(zip(axes, (ALONG, ACROSS), strict=True)):
        dots = ax.scatter(*learned.coordinates.T, c=learned.statistics[:, i], cmap="cividis", s=14, linewidths=0)
        title = f"From these two, {name.split('=')[0]}$ with R² = {learned.from_hidden[i]:.3f}"
        label(ax, *_coordinates(learned), title)
        picture.colorbar(dots, ax=ax, label=name)
        if i:
            ax.set_ylabel("")
    return picture


def draw_costs(learned: Learned) -> Picture:
    """Draw costs over the steps, true and predicted, and all of them against each other."""
    picture, ((left, right),) = panels(1, 2, (11.0, 4.2))
    times = np.arange(1, learned.costs.shape[1] + 1)
    order = np.argsort(learned.costs.sum(1))
    chosen = order[np.linspace(0, len(order) - 1, CURVES).round().astype(int)]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4, "linestyle": "none"}
    for i, sample in enumerate(chosen):
        left.plot(times, learned.costs[sample], color=color(i), linewidth=1.6)
        left.plot(times, learned.predicted[sample], color=color(i), **dots)
    left.plot([], [], color=GRAY, linewidth=1.6, label="gradient descent")
    left.plot([], [], color=GRAY, label="network, from v(0)", **dots)
    label(left, "step t of gradient descent", "cost C(v(t))", "Seven test starts", legend="upper right")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = [float(learned.costs.min()), float(learned.costs.max())]
    right.plot(ends, ends, color=GRAY, linewidth=1.0)
    flat = learned.costs.ravel(), learned.predicted.ravel()
    right.scatter(*flat, s=4, color=OKABE_ITO[0], alpha=0.25, linewidths=0, rasterized=True)
    title = f"All test starts and steps; error / variance = {learned.test_error:.2g}"
    label(right, "cost C(v(t))", "predicted cost", title)
    return picture


def _coordinates(learned: Learned) -> tuple[str, str]:
    what = f"principal direction of layer {learned.hidden}"
    return f"first {what}", f"second {what}"


FIGURE = Figure(
    "F5",
    "symmetry-learning",
    "A deep network that predicts gradient descent learns its rotation symmetry",
    "Jacot2023b, Figure 2; Jacot2023c",
    "two outliers in the bottleneck spectra; paths of gradient descent do not cross in two dimensions of a hidden "
    "layer; distances in an early layer constant on rotation orbits",
    {"quick": Settings(), "paper": Settings(samples=2000, depth=25, width=200, ridge=2e-4, steps=20_000)},
    make,
    gigabytes={"quick": 0.7, "paper": 2.0},
)
