"""F5 (Jacot2023b, Figure 2 and section 5; Jacot2023c): a deep network learns a rotation symmetry.

Gradient descent on C(v) = ||v v^T - (w w^T + E)||_F^2 depends, up to E, on only two statistics of its start. A
network that predicts the costs from the start learns two hidden coordinates equivalent to them.
"""

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from bnrank._core import linalg
from bnrank.figures.f05_symmetry_learning import computation, drawing, trajectories
from bnrank.figures.f05_symmetry_learning.computation import BEFORE, FULL, LINE, PLANE, SMALL, TRUE, Learned, Settings
from bnrank.figures.f05_symmetry_learning.trajectories import ATOLS, FINE, HIDDEN, VISIBLE, Crossed
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, above, at_least, at_most, below, equals, is_true, largest, smallest
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.figures.harness.training import mlp, train_recorded
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import RankOneFactorization, Task, matrix_factorization, rank_one_factorization
from bnrank.training import Run

RANK = 2
LAYERS = 3  # smallest length of a bottleneck
SEEDS = 5  # smallest number of networks in which crossings are counted
CROSSING = 0.005  # largest share of pairs of trajectories that cross in the hidden layer
CROSSINGS = (
    "Share of the pairs of trajectories that cross. They start at test starts, follow gradient flow (20 steps per "
    "step of gradient descent) and are given to the network as if they were starts. A crossing counts at a distance "
    "if moving one of the curves by it does not undo the crossing; distances are relative to the picture, in which "
    "both axes are scaled to the range of the curves. At distance 0, curves that run along each other count as well."
)
RATIO = 1e-3  # singular values of the Jacobian that count, relative to the largest


def claims(learned: Learned) -> tuple[Claim, ...]:
    """Return the claims of Figure 2."""
    found, s = learned.bottleneck, learned.settings
    longest = "longest run of layers with the same number of singular values near 1, the others at most 0.1"
    where = "none" if found.rank is None else f"rank {found.rank}, layers {found.start} to {found.end}"
    layers = 0 if found.start is None or found.end is None else found.end - found.start + 1
    depth = learned.profile.sizes["layer"]
    values = learned.profile.jacobian_singular_values.values
    two = np.mean(np.asarray(linalg.rank(values, RATIO)) == RANK)
    planes = "first layer with less than 5 percent of the variance in planes orthogonal to w within orbits"
    controls = [above(f"the same of {name}", learned.residuals[name], 4 * SMALL) for name in (LINE, PLANE, BEFORE)]
    open_share = f"variance of a step that the present leaves open, in the worst direction: {FULL}"
    return (
        below("E = 0: u(v(t + 1)) is the map of u(v(t)), largest difference", learned.exact, 1e-12),
        is_true(longest, found.rank == RANK and layers >= LAYERS, where, f"rank {RANK}, {LAYERS} layers or more"),
        at_least(f"share of test samples with a Jacobian of rank {RANK}", two, 0.9),
        below("test error over the variance of the outputs", learned.test_error, SMALL),
        above(f"share of the variance of a_{s.hidden} in two dimensions", learned.share, 1 - SMALL),
        below(open_share, learned.residuals[FULL], SMALL),
        *controls,
        below(f"a_{s.early}: variance within rotation orbits over total variance", learned.collapse[s.early], SMALL),
        above("the same of the inputs, for comparison", learned.collapse[0], 5 * SMALL),
        above(f"the same of a_{s.early} before training", learned.collapse_before[s.early], 5 * SMALL),
        at_most(planes, learned.collapsed, depth // 4, note=", in the first quarter"),
        above("smallest R² of u from the two hidden coordinates", np.min(learned.from_hidden), 1 - SMALL),
        above("smallest R² of the hidden coordinates from u", np.min(learned.from_u), 1 - SMALL),
    )


def crossing_claims(crossed: tuple[Crossed, ...]) -> tuple[Claim, ...]:
    """Return the claims on trajectories, over all seeds."""
    seeds = f"of {len(crossed)} seeds"

    def at(state: str, i: int) -> list[float]:
        return [float(one.shares[state][i]) for one in crossed]

    def name(state: str, i: int) -> str:
        return f"{state}: pairs of trajectories that cross by more than {100 * ATOLS[i]:g} percent of the picture"

    return (
        at_least("networks trained to count crossings", float(len(crossed)), SEEDS),
        equals(f"{name(TRUE, FINE)}, largest {seeds}", largest(at(TRUE, FINE)), 0.0),
        at_most(f"{name(HIDDEN, FINE)}, largest {seeds}", largest(at(HIDDEN, FINE)), CROSSING),
        at_least(f"{name(BEFORE, FINE)}, smallest {seeds}", smallest(at(BEFORE, FINE)), 2 * CROSSING),
        at_most(f"{name(HIDDEN, VISIBLE)}, largest {seeds}", largest(at(HIDDEN, VISIBLE)), CROSSING / 5),
        at_least(f"{name(PLANE, VISIBLE)}, smallest {seeds}", smallest(at(PLANE, VISIBLE)), 0.3 * CROSSING),
    )


def trained(settings: Settings, seed: int, folder: Path, progress: bool) -> tuple[Run, Task, RankOneFactorization]:
    """Return the run of a seed, its data and the descent from which they are drawn."""
    s = settings
    starts: dict[str, Any] = {"start": s.start, "radius": computation.RADIUS}
    task = matrix_factorization(s.samples, s.dimension, s.horizon, s.rate, s.noise, seed, n_test=1000, **starts)
    net = mlp(task, s.depth, s.width, seed=seed)
    run = train_recorded(net, task, folder / f"seed-{seed}", progress, ridge=s.ridge, steps=s.steps, records=50)
    return run, task, rank_one_factorization(s.dimension, s.rate, s.noise, seed)


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Train on starts and costs of gradient descent, and measure what the hidden layers represent."""
    s = settings
    ahead([partial(trained, s, seed, folder, False) for seed in range(s.seed, s.seed + s.seeds)], progress)
    run, task, descent = trained(s, s.seed, folder, progress)
    learned = computation.learn(cast(MLP, run.network(0)), task, descent, s)
    crossed = []
    for seed in range(s.seed, s.seed + s.seeds):
        made, data, descends = trained(s, seed, folder, progress)
        crossed.append(trajectories.measure(cast(MLP, made.network(0)), data, descends, s, seed))
    pictures = {
        "spectra": plots.bottleneck_spectra(learned.profile, top=6)[0].figure,
        "trajectories": drawing.draw_trajectories(learned),
        "crossings": drawing.draw_crossings(tuple(crossed), s.hidden),
        "distances": drawing.draw_maps(learned),
        "orbit-collapse": drawing.draw_collapse(learned),
        "coordinates": drawing.draw_coordinates(learned),
        "costs": drawing.draw_costs(learned),
    }
    captions = {
        "spectra": "Singular values of activations and weights; shaded: the bottleneck.",
        "trajectories": f"Gradient descent in u, in two principal directions of layer {s.hidden} after and before "
        "training, and in two random directions of the input. Where the state decides the next one paths do not cross.",
        "crossings": f"Pairs of {s.curves} trajectories of gradient flow that cross in the plane, against the distance "
        f"by which the curves are moved to undo crossings. Lines: medians of {s.seeds} seeds; shaded: all of them.",
        "distances": "Distance to the representation of a fixed point (cross). In planes orthogonal to w, rotation "
        "orbits are circles about the middle: a layer that has collapsed them shows rings.",
        "orbit-collapse": "Variance within rotation orbits, over the total variance and over that of planes "
        "orthogonal to w, in which nothing but the distance to w can tell orbits apart.",
        "coordinates": f"Test starts in the two coordinates of layer {s.hidden}, colored by the summary statistics.",
        "costs": "Costs along gradient descent, predicted from the start, on test data.",
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
        Section("Orbits and weights, layer by layer", rows=computation.rows(learned)),
        Section("How far the present state decides the next one", rows=steps),
        Section("Crossings of trajectories, by distance", text=CROSSINGS, rows=trajectories.rows(tuple(crossed))),
    )
    made_claims = (*claims(learned), *crossing_claims(tuple(crossed)))
    return Outcome(claims=made_claims, sections=sections, pictures=pictures, captions=captions)


FIGURE = Figure(
    "F5",
    "symmetry-learning",
    "A deep network that predicts gradient descent learns its rotation symmetry",
    "Jacot2023b, Figure 2; Jacot2023c",
    "two outliers in the bottleneck spectra; paths of gradient descent do not cross in two dimensions of a hidden "
    "layer; distances in an early layer constant on rotation orbits",
    {"quick": Settings(), "paper": Settings(depth=25, width=200, ridge=2e-4)},
    make,
    version=2,
    gigabytes={"quick": 0.7, "paper": 2.0},
)
