"""The comparison of numbers of directions: what is planted, and the active subspace."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.against import directions


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_y_depends_on_the_planted_directions_only(k):
    for seed in (0, 1):
        case, axes, name = directions.draw({"k": k, "n": 300, "seed": seed})
        np.testing.assert_allclose(axes.T @ axes, np.eye(k), atol=1e-12)
        assert (np.count_nonzero(axes) == k) == (seed == 1)  # columns for odd seeds
        clean = directions.FUNCTIONS[k][name](case.x @ axes)
        noise = case.y[:, 0] - clean
        assert noise.std() == pytest.approx(0.1 * clean.std(), rel=0.2)
        np.testing.assert_allclose(directions.FUNCTIONS[k][name](case.x_test @ axes), case.y_test[:, 0])


def test_the_active_subspace_of_a_quadratic_form_is_found_and_its_angle_measured():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, directions.INPUTS))
    y = x[:, :1] ** 2 + x[:, 1:2] ** 2
    case = directions.Case(x, y, x[:, :2], x[:5], y[:5], x[:5, :2], 0)
    found = directions._judged(case, np.eye(directions.INPUTS)[:, :2], directions.active_subspace)
    assert found["count"] == 2
    assert found["angle"] < 10
    wrong = directions._judged(case, np.eye(directions.INPUTS)[:, :3], directions.active_subspace)
    assert "angle" not in wrong


@pytest.mark.skipif(importlib.util.find_spec("sliced") is None, reason="sliced is not installed")
def test_sir_finds_one_monotonic_direction():
    case, axes, _ = directions.draw({"k": 1, "n": 300, "seed": 0})
    found = directions._judged(case, axes, directions.METHODS["SIR (sliced), own rule"])
    assert found["count"] == 1
    assert found["angle"] < 10


def test_tables_count_what_is_right():
    rows = [
        {"k": 1, "n": 300, "seed": s, "method": m, "count": c, "angle": 2.0 + s, "low": 1, "high": c, "undetermined": u}
        for s, m, c, u in [
            (0, "bnrank", 1, False),
            (1, "bnrank", 2, True),
            (2, "bnrank", 3, False),
            (0, "SIR", 1, False),
        ]
    ]
    text = directions.tables([*rows, {"k": 1, "n": 300, "seed": 1, "method": "SIR", "failed": "not installed"}])
    assert "| bnrank | 1 of 3 |" in text
    assert "| SIR | 1 of 2 |" in text
    assert "3 of 3 intervals contain the number; 1 counts are undetermined, and 1 others are wrong" in text
    assert "Failed: SIR: not installed." in text
