"""Films of physical systems: the motion against other integrators, what is drawn, what the tables say."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.integrate import solve_ivp

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.against import physics, physics_peers, physics_systems, trials
from benchmarks.against.physics_picture import picture, save
from benchmarks.against.physics_systems import SYSTEMS, film, follow


def energy(s):
    """Of the double pendulum, from the velocities of its two bodies."""
    first, second, w1, w2 = s.T
    velocity1 = np.stack([w1 * np.cos(first), w1 * np.sin(first)])
    velocity2 = velocity1 + np.stack([w2 * np.cos(second), w2 * np.sin(second)])
    kinetic = (np.square(velocity1).sum(0) + np.square(velocity2).sum(0)) / 2
    return kinetic - 2 * np.cos(first) - np.cos(second)


def test_the_double_pendulum_keeps_its_energy_and_has_its_small_oscillations():
    start = np.random.default_rng(0).uniform(-1, 1, (20, 4))
    end = follow(start, physics_systems.double_pendulum, 3.0, 300)
    np.testing.assert_allclose(energy(end), energy(start), atol=1e-8)
    assert np.abs(end - start).max() > 0.5
    for sign in (1, -1):  # modes (1, -+sqrt 2) with omega^2 = 2 +- sqrt 2
        mode, period = np.array([1, -sign * math.sqrt(2)]), 2 * math.pi / math.sqrt(2 + sign * math.sqrt(2))
        small = np.array([[*1e-4 * mode, 0.0, 0.0]])
        np.testing.assert_allclose(follow(small, physics_systems.double_pendulum, period, 200), small, atol=1e-9)


def test_following_against_scipy_forwards_and_backwards():
    start = np.array([0.3, -0.5, 0.4, 0.2])
    for duration in (0.7, -0.7):
        solved = solve_ivp(
            lambda t, s: physics_systems.double_pendulum(s[None])[0], (0, duration), start, rtol=1e-10, atol=1e-12
        )
        made = follow(start[None], physics_systems.double_pendulum, duration)[0]
        np.testing.assert_allclose(made, solved.y[:, -1], atol=1e-7)


def test_waves_turn_uniformly_and_diffuse_as_a_cosine():
    """Without gradients r' = r - r^3 and the angle goes at -r^2; a cosine along the grid is an eigenvector."""
    fields = np.zeros((1, 2, 8, 8))
    fields[0, 0] = 0.5
    end = follow(fields, lambda f: physics_systems.reaction_diffusion(f, 0.5), 1.0, 100)[0]
    square = 1 / (1 + 3 * math.exp(-2))
    angle = -0.5 * math.log(1 + 0.25 * (math.exp(2) - 1))  # - the integral of r^2
    np.testing.assert_allclose(end[0], math.sqrt(square) * math.cos(angle), atol=1e-8)
    np.testing.assert_allclose(end[1], math.sqrt(square) * math.sin(angle), atol=1e-8)
    wave = 1e-6 * np.cos(math.pi * (np.arange(8) + 0.5) / 8)
    fields = np.zeros((1, 2, 8, 8))
    fields[0, 0] = wave[:, None]
    rate = 1 + 0.1 * (2 * math.cos(math.pi / 8) - 2) / 0.25
    np.testing.assert_allclose(physics_systems.reaction_diffusion(fields, 0.5)[0, 0], rate * fields[0, 0], atol=1e-15)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_films(name):
    seen = film(name, 60, 101)
    assert seen.states.shape == (60, SYSTEMS[name].variables)
    assert seen.x.shape == seen.y.shape
    assert len(seen.x) == 60
    assert np.array_equal(seen.x, film(name, 60, 101).x)
    assert not np.array_equal(seen.x, film(name, 60, 102).x)
    noisy = film(name, 60, 101, 0.1)
    assert np.array_equal(noisy.states, seen.states)
    assert (noisy.y - seen.y).std() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "reaction-diffusion spiral"])
def test_bodies_are_in_view_and_frames_a_function_of_the_state(name):
    states, images = SYSTEMS[name].draw(400, np.random.default_rng(5))
    brightest = images.max(axis=(2, 3))
    assert brightest.min() > 0.6  # every body is in view in every frame
    assert images.shape == (400, 4, physics_systems.SIZE, physics_systems.SIZE)
    near = np.argsort(np.square((states - states[0]) / states.std(0)).sum(1))
    apart = np.square(images - images[0]).sum(axis=(1, 2, 3))
    assert apart[near[1]] < 0.2 * np.median(apart)


def test_a_thrown_ball_falls():
    """Seen by a camera that does not turn, the second difference of its place is the fall alone."""

    class Straight:
        def __init__(self):
            self.generator = np.random.default_rng(0)

        def uniform(self, low=0.0, high=1.0, size=None):
            if (low, high) == (0.9, 1.1):
                return np.ones(2)
            if size is None or size == 2:
                return 0.0 if size is None else np.zeros(2)
            return self.generator.uniform(low, high, size) * 0.3

    _, images = SYSTEMS["falling ball"].draw(5, Straight())
    pixels = np.linspace(-1, 1, physics_systems.SIZE)
    log = np.log(images.sum(2) / images.sum(2).max())  # along the second axis, a Gaussian: its top from a parabola
    places = np.array(
        [[-0.5 * np.polyfit(pixels, line, 2)[1] / np.polyfit(pixels, line, 2)[0] for line in f] for f in log]
    )
    np.testing.assert_allclose(np.diff(places, 2, axis=1), -0.1, atol=1e-6)


def test_least_width_takes_the_rule_of_the_library():
    errors = np.array([[4.0, 4.2, 4.1], [1.01, 1.02, 1.03], [1.0, 1.01, 1.02]])
    assert physics_peers.least_width(errors, np.array([5.0, 5.0, 5.0])) == 2  # within 1 percent of what is explained
    assert physics_peers.least_width(errors, np.array([1.1, 1.1, 1.1])) == 3
    errors[2] = [0.5, 1.5, 0.7]
    assert physics_peers.least_width(errors, np.array([1.1, 1.1, 1.1])) == 2  # within one standard error


def test_the_sweep_counts_a_planted_bottleneck():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 6))
    y = np.tanh(x[:, :2]) @ generator.normal(size=(2, 5))
    count, latent = physics_peers.train_autoencoders(x, y, 0, 400)
    assert count == 2
    assert latent.shape == (400, physics_peers.LATENT)


def test_narrow_networks_use_only_their_latents():
    import torch

    networks = physics_peers.Autoencoders(4, 3, 0)
    latent = networks.encode(torch.randn(7, 4))
    used = (latent.abs().amax(1) > 0).sum(1).tolist()
    assert used == networks.widths
    assert networks(torch.randn(7, 4)).shape == (len(networks.widths), 7, 3)


def test_formulas_and_principal_components_of_a_plane():
    pytest.importorskip("skdim")
    plane = np.random.default_rng(0).normal(size=(500, 2)) @ np.random.default_rng(1).normal(size=(2, 6))
    assert physics_peers.formula("MLE", plane) == pytest.approx(2, abs=0.3)
    assert physics_peers.formula("TwoNN", plane) == pytest.approx(2, abs=0.3)
    assert physics_peers.principal_components(plane) == 2


def test_cells_are_seed_by_seed_and_json():
    made = physics.cells()
    assert len(made) == physics.SEEDS * len(SYSTEMS) * len(physics.NOISES)
    assert [c["seed"] for c in made] == sorted(c["seed"] for c in made)
    assert json.loads(json.dumps(made)) == made
    assert not any(c["tuned"] for c in made)
    assert len(physics.cells(quick=True)) < 6


def test_a_small_cell_from_end_to_end(monkeypatch):
    fitted = {}

    class Small(physics.BottleneckRegressor):
        def __init__(self, progress=False):
            super().__init__(ridges=[0.03], depth=3, width=16, steps=50, n_networks=1, progress=progress)

        def fit(self, x, y):
            fitted["shape"] = x.shape, y.shape
            return super().fit(x, y)

    monkeypatch.setattr(physics, "BottleneckRegressor", Small)
    cell = {"seed": 101, "tuned": False, "system": "pendulum", "noise": 0.0, "rows": 60}
    results = trials._checked(cell, physics.measure(cell))
    assert [r["method"] for r in results] == list(physics.METHODS)
    assert fitted["shape"] == ((60, physics.COLUMNS), (60, physics.COLUMNS))
    for result in results:
        assert "failed" not in result or "not installed" in result["failed"], result
    assert "pendulum" in physics.tables([{**cell, **result} for result in results])


def test_tables_compute_what_they_say():
    def result(name, seed, method, count, **more):
        return {"seed": seed, "noise": 0.0, "system": name, "method": method, "count": count, "seconds": 2.0} | more

    own = {"low": 2, "high": 4, "model": "network", "unexplained": 0.1, "unexplained_at_truth": 0.3}
    name = "circular motion, one speed"
    results = [
        result(name, 0, "bnrank", 2, undetermined=False, **own),
        result(name, 1, "bnrank", 3, undetermined=True, **own),
        result(name, 0, "TwoNN, pixels", 1.4),
        result(name, 1, "TwoNN, pixels", 2.2),
        {"seed": 0, "noise": 0.0, "system": name, "method": "MLE, latent", "failed": "not installed (skdim)"},
    ]
    text = physics.tables(results)
    counts, shares, states = (
        [entry.strip() for entry in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| circ")
    )
    assert counts[:5] == [name, "0%", "2", "1", "2"]
    place = {method: 5 + i for i, method in enumerate(physics.METHODS)}
    assert counts[place["bnrank"]] == "2.50 [2.00, 3.00]"
    assert counts[place["TwoNN, pixels"]].startswith("1.80 ")
    assert counts[place["MLE, latent"]] == "failed"
    assert shares[place["bnrank"]] == f"{trials.wilson(1, 2):.2f}"
    assert shares[place["TwoNN, pixels"]] == f"{trials.wilson(1, 2):.2f}"  # 1.4 is 1, the number of variables
    assert shares[place["MLE, latent"]].startswith("0.00")
    assert states[5:] == ["1 of 1", "1.00 [0.34, 1.00]", "0.00 [0.00, 0.66]", "0.300 [0.300, 0.300]",
                          "0.100 [0.100, 0.100]", "2 [2, 2]"]  # fmt: skip
    assert "Failed: MLE, latent in 1 of 1 cells (not installed (skdim))." in text


def test_the_picture_shows_frames_and_coordinates(monkeypatch, tmp_path):
    from benchmarks.against import physics_picture

    class Small(physics.BottleneckRegressor):
        def __init__(self, progress=False):
            super().__init__(ridges=[0.03], depth=3, width=16, steps=50, n_networks=1, progress=progress)

    monkeypatch.setattr(physics_picture, "BottleneckRegressor", Small)
    figure = picture(60, 101, ("pendulum", "falling ball"))
    parts = figure.subfigs
    assert [part._suptitle.get_text().split(",")[0] for part in parts] == [
        "pendulum: 2 state variables",
        "falling ball: 4 state variables",
    ]
    for part in parts:
        assert sum(len(ax.images) for ax in part.axes) == 4
        shown = [ax for ax in part.axes if any(len(c.get_offsets()) == 60 for c in ax.collections)]
        assert len(shown) == 2
    save(figure, tmp_path / "picture.png")
    image = imread(tmp_path / "picture.png")
    assert image.shape[1] == 935
    assert len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 50
