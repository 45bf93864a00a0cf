"""Ridges that are dropped early, networks that are trained on at fewer dimensions, and the dimension of the states."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators import path as paths
from bnrank.discovery.estimators.bottleneck import truncate
from bnrank.discovery.estimators.budget import Budget
from bnrank.discovery.estimators.cuts import descend, further, losses_of
from bnrank.discovery.estimators.path import Fit, Path, explore
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data
from bnrank.networks.mlp import from_layers

ROWS = 90
GROUPS = np.arange(ROWS)
SPLITS = Splits.of(GROUPS % 3)


def circle(rows: int, seed: int, turn: float = 2 * np.pi) -> np.ndarray:
    angle = np.random.default_rng(seed).uniform(0, turn, rows)
    return np.column_stack([np.cos(angle), np.sin(angle)])


def passed_on(points: np.ndarray, ridge: float = 1e-4, fold: int | None = None) -> Fit:
    """Return a network that returns its two inputs, as one trained on them would."""
    both = torch.cat([torch.eye(2), -torch.eye(2)])
    net = from_layers([both, torch.eye(4), torch.eye(4), both.T], [torch.zeros(n) for n in (4, 4, 4, 2)], 0.0)
    x = torch.from_numpy(points)
    if fold is None:
        return Fit(ridge, 4, 0, None, net, 0.0, None, truncate(net, x, 2))
    out = SPLITS.out[fold]
    return Fit(ridge, 4, 0, fold, net, 0.0, None, truncate(net, x[~out], 2, (x[out], points[out])))


def path_of(points: np.ndarray) -> Path:
    made = Path(Data(points, points), SPLITS, GROUPS, rtol=0.01)
    made.fits = [passed_on(points, fold=fold) for fold in range(3)]
    errors = np.zeros((3, ROWS))
    for fit in made.fits:
        errors[:, SPLITS.out[fit.fold]] = fit.truncation.errors
    made.errors[1e-4] = errors + 1e-4 * np.random.default_rng(0).random(ROWS)
    return made


def test_an_arc_passes_through_one_dimension_after_further_training():
    arc = circle(ROWS, 0, turn=np.pi)
    fit = passed_on(arc)
    data = Data(arc, arc)
    assert fit.truncation.change[1] > 0.05
    made = further(fit, data, data, 1, Budget(4, 16, 600, 3, 1, (1e-4,), False))
    assert made.losses.mean() < 0.1 * fit.truncation.change[1]
    assert np.array_equal(made.losses, losses_of(made.network, data))
    assert torch.linalg.matrix_rank(made.network.weights[fit.truncation.layers[1] - 1]) == 1


def test_the_count_of_an_arc_falls_to_one_and_that_of_a_plane_does_not():
    plan = Budget(4, 16, 400, 3, 1, (1e-4,), False, rtol=0.02)
    arc, whole = path_of(circle(ROWS, 0, turn=np.pi)), path_of(np.random.default_rng(0).normal(size=(ROWS, 2)))
    assert (arc.supported, whole.supported) == (2, 2)
    for path in (arc, whole):
        descend(path, plan)
    assert (arc.supported, whole.supported) == (1, 2)
    assert arc.ridge_for(1) == 1e-4
    assert [trial.count for trial in arc.trials()] == [1, 1, 1]
    assert [trial.count for trial in whole.trials()] == [2, 2, 2]
    assert sorted(arc.retrained) == [1, 2]  # both numbers are trained on alike
    assert whole.retrained == {}


def test_networks_that_were_trained_too_little_are_trained_on_at_both_numbers():
    rng = np.random.default_rng(2)
    x, mixed = rng.normal(size=(100, 4)), rng.normal(size=(3, 6))
    u = x @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    z = np.column_stack([np.abs(u[:, 0]), np.tanh(2 * u[:, 1]), 0.5 * np.sin(1.5 * u[:, 2])])
    y = z @ np.linalg.qr(mixed.T)[0].T
    found = BottleneckRegressor().fit(x, y + 0.05 * rng.normal(size=y.shape))
    assert found.n_components_ == 3  # 2, where only networks of 2 dimensions are trained on


def test_a_fit_trains_networks_on_at_fewer_dimensions(monkeypatch):
    seen = []
    monkeypatch.setattr(learning, "descend", lambda path, plan: seen.append(path.supported))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = np.column_stack([np.abs(x[:, 0]), np.sin(2 * x[:, 1])]) @ rng.normal(size=(2, 3))
    BottleneckRegressor(depth=4, steps=20, ridges=[0.01], n_networks=1).fit(x, y)
    assert len(seen) == 1


@pytest.fixture
def pretended(monkeypatch):
    """Have networks of (depth, ridge) these held-out losses on every fold; return the members that were trained."""
    losses: dict[tuple[int, float], float | tuple[float, ...]] = {}
    trained: list[tuple[int, float, int]] = []

    def train_members(data, members, plan, held_out=None, fold=None):
        fits = []
        for ridge, _ in members:
            trained.append((plan.depth, ridge, fold))
            level = losses[plan.depth, ridge]
            errors = np.full((2, len(held_out.x)), level[fold] if isinstance(level, tuple) else level)
            errors += np.where(np.arange(len(held_out.x)) % 2, 0.3, -0.3)  # standard error of a fold: 0.055
            truncation = type("Cut", (), {"errors": errors, "change": np.zeros(2)})
            fits.append(Fit(ridge, plan.depth, 0, fold, None, 0.0, None, truncation))
        return fits

    monkeypatch.setattr(paths, "train_members", train_members)
    return losses, trained


def explored(plan: Budget, rival: Path | None = None) -> Path | None:
    table = np.random.default_rng(0).normal(size=(ROWS, 1))
    return explore(Data(table, table), SPLITS, GROUPS, np.full(ROWS, 4.0), plan, rival=rival)


def test_ridges_far_from_the_best_on_the_first_fold_are_not_trained_on_the_others(pretended):
    losses, trained = pretended
    losses |= {(12, 0.03): 1.0 + 2.1 * 0.3 / np.sqrt(30), (12, 0.01): 1.0, (12, 0.003): 1.0 + 1.9 * 0.3 / np.sqrt(30)}
    made = explored(Budget(12, 16, 9, 3, 1, (0.03, 0.01, 0.003), False))
    assert sorted(made.errors) == [0.003, 0.01]
    assert made.tried == [0.03, 0.01, 0.003]
    assert [(ridge, fold) for _, ridge, fold in trained if ridge == 0.03] == [(0.03, 0)]
    assert len(trained) == 7
    assert len(made.trials()) == 7


def test_the_path_is_extended_beyond_its_best_end_although_the_rest_was_dropped(pretended):
    losses, _ = pretended
    step = 10**0.5
    losses |= {(12, 0.03): 3.0, (12, 0.01): 2.0, (12, 0.003): 1.0, (12, 0.003 / step): 1.5, (12, 0.003 * step): 9.0}
    made = explored(Budget(12, 16, 9, 3, 1, (0.03, 0.01, 0.003), True))
    assert list(made.errors) == [0.003]
    assert made.tried == [0.03, 0.01, 0.003, 0.003 / step]
    losses |= {(12, 0.1): 1.0, (12, 0.1 * step): 1.5, (12, 0.1 / step): 2.0}
    assert explored(Budget(12, 16, 9, 3, 1, (0.1, 0.03), True)).tried == [0.1, 0.03, 0.1 * step]


@pytest.mark.parametrize(
    ("deep", "shallow", "kept"),
    [
        (1.0, 1.0, False),
        (1.0, 1.01, False),
        (1.0, 0.95, True),
        ((3.0, 1.0, 1.0), (2.0, 0.3, 0.3), True),  # a hard first fold
        ((1.0, 2.0, 2.0), (1.1, 1.1, 1.1), True),  # a network that stopped at a saddle on the other folds
        ((1.0, 1.0, 1.0), (1.1, 0.1, 0.1), False),
    ],
)
def test_another_depth_is_given_up_after_one_fold_unless_this_suggests_that_it_is_better(
    pretended, deep, shallow, kept
):
    losses, trained = pretended
    losses |= {(12, 0.01): deep, (4, 0.01): shallow}
    rival = explored(Budget(12, 16, 9, 3, 1, (0.01,), False))
    trained.clear()
    made = explored(Budget(4, 16, 9, 3, 1, (0.01,), False), rival=rival)
    assert (made is not None) == kept
    assert len(trained) == (3 if kept else 1)


def test_a_first_fold_of_few_groups_decides_nothing(pretended):
    losses, _ = pretended
    losses |= {(12, 0.03): 3.0, (12, 0.01): 1.0, (4, 0.01): 1.5}
    few = np.arange(ROWS) % 57  # 19 groups in every fold
    plan = Budget(12, 16, 9, 3, 1, (0.03, 0.01), False)
    table = np.random.default_rng(0).normal(size=(ROWS, 1))
    deep = explore(Data(table, table), SPLITS, few, np.full(57, 4.0), plan)
    assert sorted(deep.errors) == [0.01, 0.03]
    other = explore(Data(table, table), SPLITS, few, np.full(57, 4.0), replace(plan, depth=4, ridges=(0.01,)), deep)
    assert other is not None


def test_a_closed_curve_needs_two_components_and_has_dimension_1():
    rng = np.random.default_rng(1)
    points = circle(300, 1)
    found = BottleneckRegressor().fit(points @ rng.normal(size=(2, 6)), points @ rng.normal(size=(2, 4)))
    assert (found.n_components_, found.state_dimension_, found.state_dimension_interval_) == (2, 1, (1, 1))
    assert not found.state_undetermined_
    assert "state dimension: 1 (interval 1 to 1)" in str(found.summary())
    row = found.summary().to_frame().iloc[0]
    assert (row.state_dimension, row.state_low, row.state_high) == (1, 1, 1)


def test_a_sphere_has_dimension_2_in_three_components():
    points = np.random.default_rng(2).normal(size=(400, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    found = BottleneckAutoencoder().fit(points @ np.random.default_rng(3).normal(size=(3, 9)))
    assert (found.n_components_, found.state_dimension_) == (3, 2)


def test_without_components_there_are_no_states():
    rng = np.random.default_rng(0)
    found = BottleneckRegressor().fit(rng.normal(size=(40, 3)), rng.normal(size=(40, 2)))
    assert (found.n_components_, found.state_dimension_) == (0, 0)
    assert found.state_dimension_interval_[0] == 0


def test_rows_of_a_group_are_no_evidence_of_a_line():
    rng = np.random.default_rng(6)
    start, step = rng.normal(size=(60, 3)), 0.02 * rng.normal(size=(60, 3))
    z = (start[:, None] + step[:, None] * np.arange(15)[:, None]).reshape(-1, 3)
    groups = np.repeat(np.arange(60), 15)
    found = BottleneckRegressor().fit(z @ rng.normal(size=(3, 5)), z @ rng.normal(size=(3, 4)), groups=groups)
    assert found.n_components_ == 3
    assert found.state_undetermined_
    assert "only 60 groups" in found.state_reason_


def test_few_rows_leave_the_state_dimension_undetermined():
    points = circle(60, 4)
    found = BottleneckRegressor().fit(points @ np.ones((2, 3)) + points[:, :1], points)
    assert found.state_undetermined_
    assert found.state_dimension_interval_[0] == 0
    assert "expected at least 200" in found.state_reason_


def test_classes_have_states_too():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 4))
    found = BottleneckClassifier(depth=2, steps=40, ridges=[0.01], n_networks=1).fit(
        x, np.digitize(x[:, 0], [-0.6, 0.6])
    )
    assert (found.n_components_, found.state_dimension_) == (1, 1)
