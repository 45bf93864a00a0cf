"""F5 (Jacot2023b, Figure 2 and section 5; Jacot2023c): a deep network learns a rotation symmetry.

Gradient descent on C(v) = ||v v^T - (w w^T + E)||_F^2 depends, up to E, on two numbers of its start alone. A network
that is to predict its costs from the start finds two coordinates of its own that do the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from bnrank.figures.f05_symmetry_learning.computation import (
    BEFORE,
    FULL,
    LINE,
    PLANE,
    SMALL,
    TRUE,
    Learned,
    learn,
    rows,
)
from bnrank.figures.f05_symmetry_learning.drawing import (
    draw_collapse,
    draw_coordinates,
    draw_costs,
    draw_maps,
    draw_trajectories,
)
from bnrank.figures.harness.figure import Claim, Figure, Outcome
from bnrank.networks import MLP
from bnrank.reporting import Section, plots
from bnrank.tasks import matrix_factorization, rank_one_factorization
from bnrank.training import train

__all__ = ["FIGURE", "claims", "make"]

RANK = 2
LAYERS = 3  # of a bottleneck, at least
RATIO = 1e-3  # singular values of the Jacobian that count, relative to the largest
RADIUS = 1.8


def claims(learned: Learned) -> tuple[Claim, ...]:
    """Measure what Figure 2 shows."""
    found = learned.bottleneck
    where = "none" if found.rank is None else f"rank {found.rank}, layers {found.start} to {found.end}"
    layers = 0 if found.start is None or found.end is None else found.end - found.start + 1
    depth = learned.profile.sizes["layer"]
    values = learned.profile.jacobian_singular_values.values
    two = float(np.mean(np.sum(values > RATIO * values[:, :1], axis=1) == RANK))
    own = learned.residuals[FULL]
    collapse = float(learned.collapse[learned.early])
    from_hidden, from_u = float(np.min(learned.from_hidden)), float(np.min(learned.from_u))
    return (
        Claim(
            "E = 0: u(v(t + 1)) is the map of u(v(t)), largest difference",
            learned.exact < 1e-12,
            learned.exact,
            "< 1e-12",
        ),
        Claim(
            "longest run of layers with the same number of singular values near 1, the others at most 0.1",
            found.rank == RANK and layers >= LAYERS,
            where,
            f"rank {RANK}, {LAYERS} layers or more",
        ),
        Claim(f"share of test samples with a Jacobian of rank {RANK}", two >= 0.9, two, ">= 0.9"),
        _small("test error over the variance of the outputs", learned.test_error),
        Claim(
            f"share of the variance of a_{learned.hidden} in two dimensions",
            learned.share > 1 - SMALL,
            learned.share,
            f"> {1 - SMALL:g}",
        ),
        _small(f"variance of a step that the present leaves open, in the worst direction: {FULL}", own),
        _open(LINE, learned.residuals[LINE]),
        _open(PLANE, learned.residuals[PLANE]),
        _open(BEFORE, learned.residuals[BEFORE]),
        _small(f"a_{learned.early}: variance within rotation orbits over total variance", collapse),
        _large("the same of the inputs, which is what there is to collapse", float(learned.collapse[0])),
        _large(f"the same of a_{learned.early} before training", float(learned.collapse_before[learned.early])),
        Claim(
            "first layer with less than 5 percent of the variance in planes orthogonal to w within orbits",
            learned.collapsed is not None and learned.collapsed <= depth / 4,
            "none" if learned.collapsed is None else float(learned.collapsed),
            f"in the first quarter, 1 to {depth // 4}",
        ),
        Claim(
            "R² of u from the two hidden coordinates, least", from_hidden > 1 - SMALL, from_hidden, f"> {1 - SMALL:g}"
        ),
        Claim("R² of the hidden coordinates from u, least", from_u > 1 - SMALL, from_u, f"> {1 - SMALL:g}"),
    )


def _small(name: str, value: float) -> Claim:
    return Claim(name, value < SMALL, value, f"< {SMALL:g}")


def _large(name: str, value: float) -> Claim:
    return Claim(name, value > 5 * SMALL, value, f"> {5 * SMALL:g}")


def _open(name: str, value: float) -> Claim:
    """Say whether a control, in which trajectories must cross, leaves four times as much open as is allowed."""
    return Claim(f"the same of {name}", value > 4 * SMALL, value, f"> {4 * SMALL:g}")


def make(
    folder: Path,
    progress: bool,
    *,
    samples: int,
    dimension: int,
    horizon: int,
    rate: float,
    noise: float,
    start: str,
    depth: int,
    width: int,
    ridge: float,
    steps: int,
    early: int,
    hidden: int,
    trajectories: int,
    copies: int,
    seed: int,
) -> Outcome:
    """Train on starts and costs of ``horizon`` steps of size ``rate``; look at layers ``early`` and ``hidden``."""
    task = matrix_factorization(samples, dimension, horizon, rate, noise, seed, n_test=1000, start=start, radius=RADIUS)
    descent = rank_one_factorization(dimension, rate, noise, seed)
    net = MLP([task.d_in, *[width] * (depth - 1), task.d_out], seed=seed)
    run = train(
        net,
        task,
        ridge=ridge,
        steps=steps,
        record=max(1, steps // 50),
        out=folder / "network",
        progress=progress,
    )
    learned = learn(
        cast(MLP, run.network(0)),
        task,
        descent,
        early=early,
        hidden=hidden,
        trajectories=trajectories,
        copies=copies,
        radius=RADIUS,
        seed=seed,
    )
    pictures = {
        "spectra": plots.bottleneck_spectra(learned.profile, top=6)[0].figure,
        "trajectories": draw_trajectories(learned),
        "distances": draw_maps(learned),
        "orbit-collapse": draw_collapse(learned),
        "coordinates": draw_coordinates(learned),
        "costs": draw_costs(learned),
    }
    text = (
        "The network sees starts v(0) and costs C(v(1)), C(v(2)), ... only. States along trajectories are shown to it "
        "as if they were starts. Everything is measured on test data. Variance that a state does not predict is that "
        "of a local linear fit to 20 neighbors, never on the trajectory or the sample itself; of u it is "
        f"{learned.residuals[TRUE]:.2g}: what the fit leaves where dynamics close up to E."
    )
    sections = (
        Section("The trained network", text=text, profile=learned.profile, history=run.history),
        Section("Orbits and weights, layer by layer", rows=rows(learned)),
        Section(
            "How far the present state decides the next one",
            rows=[
                {"state": name, "share of the step's variance, worst direction": value}
                for name, value in {
                    **learned.residuals,
                    **{f"two coordinates of layer {layer}": value for layer, value in learned.by_layer.items()},
                }.items()
            ],
        ),
    )
    return Outcome("F5", claims(learned), sections, pictures, captions=_captions(learned))


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


FIGURE = Figure(
    "F5",
    "symmetry-learning",
    "A deep network that predicts gradient descent learns its rotation symmetry",
    "Jacot2023b, Figure 2; Jacot2023c",
    "two outliers in the bottleneck spectra; paths of gradient descent do not cross in two dimensions of a hidden "
    "layer; distances in an early layer constant on rotation orbits",
    {
        "quick": {
            "samples": 1000,
            "dimension": 10,
            "horizon": 20,
            "rate": 0.03,
            "noise": 0.01,
            "start": "even",
            "depth": 18,
            "width": 60,
            "ridge": 4e-4,
            "steps": 4000,
            "early": 3,
            "hidden": 6,
            "trajectories": 200,
            "copies": 32,
            "seed": 0,
        },
        "paper": {
            "samples": 2000,
            "dimension": 10,
            "horizon": 20,
            "rate": 0.03,
            "noise": 0.01,
            "start": "even",
            "depth": 25,
            "width": 200,
            "ridge": 2e-4,
            "steps": 20_000,
            "early": 3,
            "hidden": 6,
            "trajectories": 200,
            "copies": 32,
            "seed": 0,
        },
    },
    make,
    gigabytes={"quick": 0.7, "paper": 2.0},
)
