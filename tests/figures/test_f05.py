"""F5: its claims on planted measurements, what it computes against plain code, and a tiny run."""

import dataclasses

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.integrate import solve_ivp

import bnrank
from bnrank.figures.f05_symmetry_learning import computation as rotations
from bnrank.figures.f05_symmetry_learning import figure as f05
from bnrank.figures.f05_symmetry_learning import trajectories
from bnrank.figures.f05_symmetry_learning.computation import BEFORE, FULL, LINE, PLANE, TRUE, Learned
from bnrank.measures.bottlenecks import detect
from bnrank.tasks import matrix_factorization, rank_one_factorization
from helpers import failing

DEPTH = 12
WEIGHTS = np.array([[2.5, 0.6, 0.4]] * 3 + [[1.2, 1.1, 0.02]] * 3 + [[1.4, 1.2, 0.3]] * 6)
JACOBIANS = np.array([[9.0, 2.0, 1e-3]] * 19 + [[9.0, 1e-3, 0.0]])


def learned(**changes):
    """Two singular values in layers 4 to 6, orbits collapsed in layer 2, coordinates that match u."""
    weights, jacobians = changes.pop("weights", WEIGHTS), changes.pop("jacobians", JACOBIANS)
    planted = {
        "profile": xr.Dataset(
            {
                "weight_singular_values": (("layer", "index"), weights),
                "jacobian_singular_values": (("sample", "index"), jacobians),
            }
        ),
        "bottleneck": detect(weights),
        "settings": rotations.Settings(early=2, hidden=5),
        "exact": 1e-15,
        "test_error": 0.01,
        "share": 0.99,
        "residuals": {FULL: 0.01, LINE: 0.4, PLANE: 0.3, TRUE: 0.001, BEFORE: 0.25},
        "by_layer": {4: 0.01},
        "collapse": np.array([0.5, 0.2, 0.01] + [0.001] * (DEPTH - 2)),
        "collapse_before": np.full(DEPTH + 1, 0.45),
        "in_planes": np.array([0.9, 0.8, 0.2, 0.01] + [0.01] * (DEPTH - 3)),
        "from_hidden": np.array([0.99, 0.97]),
        "from_u": np.array([0.98, 0.99]),
        "trajectories": {},
        "statistics": np.zeros((1, 2)),
        "coordinates": np.zeros((1, 2)),
        "predicted": np.zeros((1, 4)),
        "costs": np.zeros((1, 4)),
        "maps": (),
    }
    planted["residuals"] |= changes.pop("residuals", {})
    return Learned(**{**planted, **changes})


def test_claims_hold_on_planted_measurements():
    assert failing(f05.claims(learned())) == []
    assert f05.claims(learned())[1].measured == "rank 2, layers 4 to 6"
    assert f05.claims(learned())[12].measured == 3


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({"exact": 1e-9}, [0]),
        ({"weights": np.concatenate([WEIGHTS[:5], WEIGHTS[6:], WEIGHTS[-1:]])}, [1]),
        ({"weights": np.where(WEIGHTS == 0.02, 0.2, WEIGHTS)}, [1]),
        ({"weights": np.where(WEIGHTS == 1.1, 0.02, WEIGHTS)}, [1]),
        ({"jacobians": np.concatenate([JACOBIANS[:5], JACOBIANS[-3:] * [1, 1, 0.5], JACOBIANS[-1:]])}, [2]),
        ({"jacobians": JACOBIANS + np.array([0, 0, 0.1])}, [2]),
        ({"test_error": 0.06}, [3]),
        ({"test_error": np.nan}, [3]),
        ({"share": 0.94}, [4]),
        ({"residuals": {FULL: 0.06, LINE: 0.7, PLANE: 0.7, BEFORE: 0.7}}, [5]),
        ({"residuals": {FULL: np.nan}}, [5]),
        ({"residuals": {BEFORE: 0.19}}, [8]),
        ({"residuals": {PLANE: np.nan}}, [7]),
        ({"collapse_before": np.array([0.9, 0.9] + [0.2] * (DEPTH - 1))}, [11]),
        ({"residuals": {LINE: 0.19}}, [6]),
        ({"residuals": {PLANE: 0.19}}, [7]),
        ({"collapse": np.array([0.5, 0.2, 0.06] + [0.001] * (DEPTH - 2))}, [9]),
        ({"collapse": np.array([0.2, 0.2, 0.01] + [0.001] * (DEPTH - 2))}, [10]),
        ({"in_planes": np.array([0.9] * 4 + [0.01] * (DEPTH - 3))}, [12]),
        ({"in_planes": np.full(DEPTH + 1, 0.1)}, [12]),
        ({"from_hidden": np.array([0.99, 0.94])}, [13]),
        ({"from_u": np.array([0.5, 0.99])}, [14]),
        ({"from_u": np.array([0.99, np.nan])}, [14]),
    ],
)
def test_claims_fail_where_they_should(changes, fails):
    assert failing(f05.claims(learned(**changes))) == fails


def test_activations_and_principal_directions():
    net = bnrank.MLP([3, 5, 4, 2], seed=1).double()
    x = torch.randn(6, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first = torch.relu(net.layers[0](x)).detach()
    second = torch.relu(net.layers[1](first)).detach()
    assert torch.equal(rotations.activations(net, x, 0), x)
    torch.testing.assert_close(rotations.activations(net, x, 1), first)
    torch.testing.assert_close(rotations.activations(net, x, 2), second)
    torch.testing.assert_close(rotations.activations(net, x, 3), net(x).detach())
    center, directions, share = rotations.principal(first)
    flat = first.flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(flat.T))
    assert share == pytest.approx(float(values[-2:].sum() / values.sum()))
    assert (directions.T @ vectors[:, [-1, -2]]).abs() == pytest.approx(torch.eye(2), abs=1e-9)
    assert center == pytest.approx(flat.mean(0))
    assert (directions.sum(0) > 0).all()


def test_exactness_sees_a_map_that_is_not_that_of_the_descent(monkeypatch):
    descent = rank_one_factorization(4, 0.05, noise=0.3)
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 2
    assert rotations.exactness(descent, x, 8) < 1e-14
    flow = lambda self, u: u - 8 * self.lr * u * (u.sum(-1, keepdim=True) - torch.tensor([1.0, 0.0]))  # noqa: E731
    monkeypatch.setattr(bnrank.tasks.RankOneFactorization, "step_statistics", flow)
    assert rotations.exactness(descent, x, 8) > 1e-3


TINY = {
    "samples": 60,
    "dimension": 3,
    "horizon": 4,
    "rate": 0.05,
    "noise": 0.01,
    "start": "even",
    "depth": 5,
    "width": 8,
    "ridge": 1e-4,
    "steps": 40,
    "early": 1,
    "hidden": 2,
    "trajectories": 20,
    "copies": 4,
    "seed": 1,
    "seeds": 2,
    "curves": 10,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("f05")
    made = {}
    original = rotations.learn

    def spy(net, *args, **kwargs):
        made["net"], made["learned"] = net, original(net, *args, **kwargs)
        return made["learned"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotations, "learn", spy)
        outcome = f05.FIGURE.run("quick", folder, progress=False, **TINY)
    return outcome, made


def crossed(seeds=5, **changes):
    """Shares of crossing pairs that fall with the distance; none in u."""
    falling = np.array([8, 4, 2, 1, 0.2])
    planted = {TRUE: 0 * falling, trajectories.HIDDEN: 4e-3 * falling, BEFORE: 0.02 * falling, PLANE: 0.01 * falling}
    usual = {**planted, trajectories.HIDDEN: 1e-4 * falling}
    planted |= {state: value * falling for state, value in changes.items()}
    return tuple(trajectories.Crossed(i, 0.01, planted if i == 1 else usual) for i in range(seeds))


def test_crossing_claims_hold_on_planted_shares_and_fail_where_they_should():
    assert failing(f05.crossing_claims(crossed())) == []
    assert failing(f05.crossing_claims(crossed(seeds=4))) == [0]
    assert failing(f05.crossing_claims(crossed(**{TRUE: 1e-4}))) == [1]
    assert failing(f05.crossing_claims(crossed(**{TRUE: np.nan}))) == [1]
    assert failing(f05.crossing_claims(crossed(**{trajectories.HIDDEN: 0.01}))) == [2, 4]
    assert failing(f05.crossing_claims(crossed(**{trajectories.HIDDEN: np.nan}))) == [2, 4]
    assert failing(f05.crossing_claims(crossed(**{trajectories.HIDDEN: np.array([1, 1, 1, 0, 0.1])}))) == [4]
    assert failing(f05.crossing_claims(crossed(**{BEFORE: 0.009}))) == [3]
    assert failing(f05.crossing_claims(crossed(**{PLANE: 0.005}))) == [5]


def test_shares_of_curves_in_a_plane_do_not_depend_on_its_coordinates():
    t = torch.linspace(-1, 1, 40, dtype=torch.float64)
    lines = torch.stack([torch.stack([t, slope * t + at], 1) for slope, at in ((0, 0), (0.5, 0.1), (0, 0.9))])
    assert trajectories.shares(lines) == pytest.approx([1 / 3] * 5)
    assert trajectories.shares(lines * torch.tensor([1e3, 1e-3])) == pytest.approx([1 / 3] * 5)
    assert trajectories.shares(lines[[0, 2]]) == pytest.approx([0] * 5)
    assert np.isnan(trajectories.shares(lines * torch.tensor([1.0, 0.0]))).all()


def test_a_representation_that_is_a_function_of_u_has_no_crossings_and_one_that_keeps_an_orbit_has():
    """Planted representations: u, a bijection of u, and u with a part that is not constant on orbits."""
    task, descent = matrix_factorization(40, 3, 20, 0.03, 0.0, 0), rank_one_factorization(3, 0.03)
    flow = dataclasses.replace(descent, lr=descent.lr / 20).trajectory(task.x.double(), 400)[:, ::8]
    u = descent.statistics(flow)
    folded = torch.stack([u[..., 0] + 0.3 * u[..., 1] ** 2, u[..., 1].sqrt()], -1)
    assert trajectories.shares(u).tolist() == [0] * 5
    assert trajectories.shares(folded)[trajectories.VISIBLE] == 0
    kept = u + 0.5 * flow @ torch.stack([descent.across, descent.w], 1)
    assert trajectories.shares(kept)[trajectories.VISIBLE] > 0.01


def test_curves_follow_the_flow_of_the_statistics(monkeypatch):
    """Against the differential equation of the source, on the states that are measured."""
    seen = []
    monkeypatch.setattr(trajectories, "shares", lambda paths: seen.append(paths) or np.zeros(5))
    task, descent = matrix_factorization(9, 3, 10, 0.03, n_test=7), rank_one_factorization(3, 0.03)
    net = bnrank.MLP([3, 4, 4, 10], seed=0)
    found = trajectories.measure(net, task, descent, rotations.Settings(hidden=1, curves=5), 0)
    u = seen[0]
    assert u.shape == (5, 26, 2)  # of 200 steps, every eighth and the start
    for path in u.numpy():
        flow = lambda _, v: -8 * v * (v.sum() - np.array([1.0, 0.0]))  # noqa: E731
        expected = solve_ivp(flow, (0, 0.3), path[0], t_eval=0.3 * np.arange(26) / 25, rtol=1e-8).y.T
        assert path == pytest.approx(expected, abs=0.02)
    hidden = torch.relu(net.layers[0](descent.trajectory(task.x_test[:5].double(), 10))).detach()
    assert seen[2] == pytest.approx(rotations.in_plane(hidden))  # the steps of gradient descent
    assert set(found.shares) == {TRUE, trajectories.HIDDEN, trajectories.STEPS, BEFORE, PLANE}


def test_a_tiny_run(tiny):
    outcome, _ = tiny
    assert set(TINY) == set(vars(f05.FIGURE.settings["quick"]))
    assert outcome.error == ""
    assert len(outcome.claims) == 21
    assert outcome.claims[16].passed  # a flow in the plane
    assert outcome.claims[0].passed  # a theorem, at any size
    assert outcome.claims[10].passed  # of the inputs
    assert set(outcome.pictures) == set(outcome.captions)
    assert len(outcome.pictures) == 7
    assert len(outcome.sections[3].rows) == 2 * 5
    assert len(outcome.sections[1].rows) == 6
    assert [row["state"] for row in outcome.sections[2].rows][:5] == [PLANE, TRUE, FULL, LINE, BEFORE]
    paper = f05.FIGURE.settings["paper"]
    assert (paper.depth, paper.width, paper.ridge) == (25, 200, 2e-4)


def test_what_the_tiny_run_measured(tiny):
    """Against plain code, on the network that was trained."""
    _, made = tiny
    net, found = made["net"].double(), made["learned"]
    task = matrix_factorization(60, 3, 4, 0.05, 0.01, 1, n_test=1000, radius=rotations.RADIUS)
    descent = rank_one_factorization(3, 0.05, 0.01, 1)
    x, y = task.x_test.double(), task.y_test.double()
    out = net(x).detach()
    assert found.test_error == pytest.approx(float((out - y).square().mean() / y.var(0, correction=0).mean()), rel=1e-6)
    costs = descent.cost(descent.trajectory(x, 4)[:, 1:])
    assert found.costs == pytest.approx(costs, rel=1e-5, abs=1e-5)
    assert found.predicted == pytest.approx(out * (costs[0, 0] / y[0, 0]), rel=1e-4, abs=1e-4)
    assert found.statistics == pytest.approx(descent.statistics(x))
    states = descent.trajectory(x[:20], 4)
    hidden = torch.relu(net.layers[1](torch.relu(net.layers[0](states)))).detach()
    flat = (hidden - hidden.mean((0, 1))).flatten(0, 1)
    path = torch.from_numpy(found.trajectories[FULL]).flatten(0, 1)
    kept = torch.linalg.eigh(flat.T @ flat)[1][:, -2:]
    assert path @ path.T == pytest.approx(flat @ kept @ kept.T @ flat.T, abs=1e-9)
    assert path.square().sum() / flat.square().sum() == pytest.approx(found.share)
    assert found.trajectories[TRUE] == pytest.approx(descent.statistics(states))
    layers = detect(found.profile.weight_singular_values.values)
    assert set(found.by_layer) == ({2} if layers.start is None else set(range(layers.start, layers.end + 1)))
    assert found.residuals[FULL] == pytest.approx(np.median(list(found.by_layer.values())))
    for shown, layer in zip(found.maps, (0, 1, None, None), strict=True):
        middle = len(shown.distances) // 2
        side = np.linspace(-rotations.RADIUS, rotations.RADIUS, len(shown.distances))
        row, column = (int(np.abs(side - at).argmin()) for at in reversed(shown.origin))
        assert shown.distances[row, column] < 0.1 * shown.distances.max()
        if layer == 0:
            expected = np.hypot(side[None] - shown.origin[0], side[:, None] - shown.origin[1])
            assert shown.distances == pytest.approx(expected, abs=1e-9)
        assert shown.distances.shape == (2 * middle + 1,) * 2


def test_planes_are_orthogonal_to_the_axis():
    descent = rank_one_factorization(5, seed=3)
    x = matrix_factorization(6, 5, 1, seed=3).x.double()
    points = rotations._planes(descent, x, 4, 0)
    assert points.shape == (6, rotations.RADII, 4, 5)
    assert points @ descent.w == pytest.approx((x @ descent.w)[:, None, None].expand(points.shape[:3]))
    assert points.norm(dim=-1).max() <= 1.8
    radii = descent.statistics(points)[..., 1].sqrt()
    assert radii == pytest.approx(radii[:, :, :1].expand_as(radii))
    assert radii[:, :, 0].std(1).min() > 0.1


def test_a_task_without_test_data_is_refused():
    task, descent = matrix_factorization(20, 3, 2, n_test=0), rank_one_factorization(3)
    settings = rotations.Settings(early=1, hidden=1, trajectories=5, copies=3)
    with pytest.raises(ValueError, match="task: got no test samples"):
        rotations.learn(bnrank.MLP([3, 4, 2]), task, descent, settings)


def test_claims_are_plain(tiny):
    outcome, _ = tiny
    assert all(isinstance(claim.measured, float | str) for claim in outcome.claims)
    assert all(claim.passed in (True, False) for claim in outcome.claims)
    assert dataclasses.asdict(outcome.claims[9])["name"].startswith("a_1: variance within rotation orbits")
