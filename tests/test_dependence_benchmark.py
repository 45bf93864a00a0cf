"""What `python -m benchmarks.dependence` draws is what its text says, and the verdicts follow the rule."""

import functools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.against.counting import explained
from benchmarks.dependence import __main__ as program
from benchmarks.dependence import flows, judging, related, tables, unrelated, workers
from benchmarks.dependence.table import Table

SERIES = ["random walks", "AR(1)", "seasons", "drifts"]
PLANTED = [kind for kind in related.KINDS if kind not in ("next state", "dysts")]
FAST = [*unrelated.KINDS, "Lorenz", "next state", "panel", "panel with effects"]


@functools.cache
def drawn(kind, number=0, seed=0):
    return tables.draw(kind, number, seed)


def lag1(columns):
    centered = columns - columns.mean(axis=0)
    return (centered[1:] * centered[:-1]).sum(axis=0) / (centered**2).sum(axis=0)


def between(columns, parts):
    """Return the share of the variance between the parts."""
    means = np.array([columns[parts == p].mean(axis=0) for p in parts])
    return means.var(axis=0) / columns.var(axis=0)


@pytest.mark.parametrize("kind", FAST)
def test_kind_number_and_seed_determine_a_table(kind):
    first, again = drawn(kind), tables.draw(kind, 0, 0)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    others = [] if kind == "Lorenz" else [tables.draw(kind, 1, 0), tables.draw(kind, 0, 1)]
    assert not any(np.array_equal(first.x[:50, :2], other.x[:50, :2]) for other in others)


@pytest.mark.parametrize("kind", tables.KINDS)
def test_sizes_and_groups(kind):
    if kind == "dysts":
        pytest.importorskip("dysts")
    for number in range(5 if kind in unrelated.KINDS else 1):
        table = drawn(kind, number)
        assert 100 <= len(table.x) == len(table.y) <= 820
        assert 2 <= table.x.shape[1] <= 12
        assert 2 <= table.y.shape[1] <= 8
        assert np.isfinite(table.x).all()
        assert np.isfinite(table.y).all()
        assert (table.groups is not None) == (kind in ("subjects", "batches", "next state") or "panel" in kind)
        assert (table.truth == 0) == (kind in unrelated.KINDS)


@pytest.mark.parametrize("kind", [*SERIES, "plates", *PLANTED[:7]])
def test_consecutive_rows_depend_on_each_other(kind):
    for number in range(5 if kind in unrelated.KINDS else 1):
        table = drawn(kind, number)
        assert lag1(table.x).min() > 0.3
        assert np.median(lag1(table.y)) > 0.25


@pytest.mark.parametrize("kind", ["subjects", "batches", "panel", "panel with effects", "next state"])
def test_rows_of_a_group_depend_on_each_other(kind):
    table = drawn(kind)
    mixed = np.random.default_rng(0).permutation(table.groups)
    for columns in (table.x, table.y):
        assert between(columns, table.groups).mean() > 3 * between(columns, mixed).mean()


def test_batches_are_not_in_order():
    assert abs(lag1(drawn("batches").x)).max() < 0.3


def test_autoregressive_series_have_their_coefficient_and_are_stationary():
    for coefficient in (0.5, 0.9):
        series = unrelated.autoregressive(np.random.default_rng(0), 4000, 8, coefficient)
        assert lag1(series) == pytest.approx(coefficient, abs=0.06)
        starts = unrelated.autoregressive(np.random.default_rng(1), 3, 4000, coefficient)
        assert starts.var(axis=1) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", unrelated.KINDS)
def test_unrelated_columns_come_from_independent_streams(kind):
    layout, columns = unrelated.KINDS[kind].args

    def spoiled(which):
        calls = []

        def draw(stream, rows, d):
            calls.append(d)
            if len(calls) == which:
                stream.normal(size=3)
            return columns(stream, rows, d)

        return unrelated.unrelated(layout, draw, np.random.default_rng(0))

    plain, other_x, other_y = spoiled(0), spoiled(1), spoiled(2)
    assert np.array_equal(plain.x, other_y.x)
    assert np.array_equal(plain.y, other_x.y)
    assert not np.array_equal(plain.x, other_x.x)
    assert not np.array_equal(plain.y, other_y.y)


@pytest.mark.parametrize("kind", unrelated.KINDS)
def test_unrelated_columns_correlate_to_either_side_alike(kind):
    found = []
    for number in range(60):
        table = tables.draw(kind, number, 5)
        found.append(np.corrcoef(table.x[:, 0], table.y[:, 0])[0, 1])
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(60)


def test_seasons_of_x_and_y_have_nothing_in_common():
    for seed in range(50):
        rows = unrelated.seasons(np.random.default_rng(seed))
        assert all(
            rows.n * abs(i / rows.periods[0] - j / rows.periods[1]) >= 3 for i in range(1, 4) for j in range(1, 4)
        )
        time = np.arange(rows.n)
        x = unrelated.seasonal(np.random.default_rng(seed), rows, 1)[:, 0]
        power = [abs((x - x.mean()) @ np.exp(2j * np.pi * time / period)) for period in rows.periods]
        assert power[0] > 3 * power[1]


def test_the_season_of_y_has_the_second_period():
    seen = []

    def columns(stream, rows, d):
        seen.append(rows.periods)
        return np.zeros((rows.n, d))

    unrelated.unrelated(unrelated.seasons, columns, np.random.default_rng(0))
    assert seen[0] == seen[1][::-1] != seen[1]


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_latents_are_directions_of_x_that_carry_y(kind):
    table = drawn(kind)
    z = table.latents
    assert z.shape[1] == table.truth == np.linalg.matrix_rank(z - z.mean(axis=0))
    assert table.truth < table.y.shape[1]
    assert table.truth <= table.x.shape[1]
    wide = np.hstack([table.x, np.ones((len(z), 1))])
    assert np.abs(wide @ np.linalg.lstsq(wide, z, rcond=None)[0] - z).max() < 1e-8
    rows = np.random.default_rng(0).permutation(len(z))
    first, second = rows[: len(z) // 2], rows[len(z) // 2 :]
    whole = explained(z[first], table.y[first], z[second], table.y[second])
    assert whole > (0.8 if "effects" in kind else 0.9)
    for j in range(table.truth if table.truth > 1 else 0):
        less = np.delete(z, j, axis=1)
        assert explained(less[first], table.y[first], less[second], table.y[second]) < whole - 0.02


@pytest.mark.parametrize("kind", [*PLANTED, "next state"])
def test_latents_fill_as_many_dimensions_as_they_are(kind):
    z = drawn(kind).latents
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    near = np.argsort(((z[:, None] - z) ** 2).sum(axis=2), axis=1)[:, :20]
    clouds = z[near] - z[near].mean(axis=1, keepdims=True)
    variances = np.median(np.linalg.svd(clouds, compute_uv=False) ** 2, axis=0)
    assert variances[-1] > 0.1 * variances[0]


def test_planted_ranks_are_all_those_listed_and_faint_components_carry_nothing():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 4)) @ np.diag([1, 1, 1, 0.0])
    x[:, 3] = x[:, 2] + 0.01 * generator.normal(size=300)
    drawn = [related.planted(x, (1, 2, 3), np.random.default_rng(seed)) for seed in range(12)]
    assert {table.truth for table in drawn} == {1, 2, 3}
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    faint = np.linalg.svd(standard)[2][-1]
    for table in drawn:
        weights = np.linalg.lstsq(standard, table.latents, rcond=None)[0]
        assert np.abs(faint @ weights).max() < 1e-6 < np.abs(weights).max()


@pytest.mark.parametrize("name", flows.FLOWS)
def test_states_follow_their_system(name):
    flow = flows.FLOWS[name]
    states = flows.bundle(flow, 2, 4, np.random.default_rng(0))
    assert states.shape == (2, 4, len(flow.start))
    times = flow.interval * np.arange(4)
    for path in states:
        exact = solve_ivp(
            lambda _, s: flow.field(s[None])[0], times[[0, -1]], path[0], t_eval=times, rtol=1e-8, atol=1e-8
        )
        assert np.abs(exact.y.T - path).max() < 0.01 * np.abs(path).max()


@pytest.mark.parametrize(
    ("truth", "count", "undetermined", "expected"),
    [
        (0, 0, False, "right"),
        (0, 3, False, "wrong"),
        (0, 3, True, "flagged"),
        (0, 0, True, "flagged"),
        (2, 2, False, "right"),
        (2, 0, False, "wrong"),
        (2, 1, False, "wrong"),
        (2, 3, True, "flagged"),
    ],
)
def test_verdicts(truth, count, undetermined, expected):
    assert judging.verdict(truth, count, undetermined) == expected


class Fitted:
    """An estimator that finds two components."""

    def __init__(self, **_):
        self.groups = "not passed"

    def fit(self, X, y, groups=None):
        self.groups = groups
        self.n_components_, self.undetermined_, self.n_components_interval_ = 2, False, (1, 3)
        self.held_out_, self.model_, self.reason_ = np.array([4.0, 2.0, 1.0]), "network", "because"
        return self


class Plain(Fitted):
    """One without groups."""

    def fit(self, X, y):
        return super().fit(X, y, "not passed")


class Broken(Fitted):
    """One that fails."""

    def fit(self, X, y):
        raise ArithmeticError("no result")


def test_groups_are_passed_where_fit_takes_them(monkeypatch):
    seen = []
    table = Table(np.zeros((6, 3)), np.zeros((6, 2)), 2, np.arange(6))
    for estimator in (Fitted, Plain, Broken):
        monkeypatch.setattr(
            "bnrank.discovery.BottleneckRegressor", lambda e=estimator, **_: seen.append(e()) or seen[-1]
        )
        result = judging.judge(table)
        assert result["groups"] == (estimator is Fitted)
        assert result["verdict"] == ("wrong" if estimator is Broken else "right")
    assert seen[0].groups is table.groups
    assert seen[1].groups == "not passed"
    assert result["failed"] == "ArithmeticError: no result"
    monkeypatch.setattr("bnrank.discovery.BottleneckRegressor", Fitted)
    found = judging.judge(Table(table.x, table.y, 0))
    assert not found["groups"]
    assert found["verdict"] == "wrong"
    assert found["r2"] == 0.75
    assert found["interval"] == [1, 3]


def test_tables_are_spread_evenly_and_a_selection_keeps_their_numbers():
    whole = tables.listed(200, list(tables.KINDS))
    assert len(whole) == len(set(whole)) == 400
    for suite in tables.SUITES.values():
        numbers = [sum(kind == k for k, _ in whole) for kind in suite.kinds]
        assert sum(numbers) == 200
        assert all(
            {i for k, i in whole if k == kind} == set(range(n)) for kind, n in zip(suite.kinds, numbers, strict=True)
        )
        assert max(numbers) - min(numbers) <= 1
    assert tables.listed(200, ["drifts"]) == [c for c in whole if c[0] == "drifts"]


def test_a_run_resumes_and_reports(monkeypatch, tmp_path, capsys):
    calls = []

    def measure(cell):
        calls.append((cell["kind"], cell["number"]))
        if cell["kind"] == "dysts":
            return {"skipped": "not installed (dysts)"}
        truth, wrong = int(cell["kind"] == "panel"), cell["kind"] == "plates"
        told = "wrong" if wrong else "right"
        return {"truth": truth, "count": 5 if wrong else truth, "undetermined": False, "verdict": told, "seconds": 1.0}

    monkeypatch.setattr(program.judging, "measure", measure)
    out = tmp_path / "results" / "lines.jsonl"
    words = ["--tables", "14", "--kinds", "plates", "drifts", "panel", "dysts", "--out", str(out)]
    program.main([*words, "--minutes", "0"])
    assert not calls
    program.main(words)
    first = capsys.readouterr().out
    assert "| plates | 2 | 0 | 0 | 2 | 1.00 [0.34, 1.00] | 2 × 5 (0) | 1, 1 |" in first
    assert "Target: at most 2% wrong. 2 of 4: missed." in first
    assert "Target: at most 10% wrong. 0 of 1: met." in first
    assert "Skipped: dysts: not installed (dysts)." in first
    assert len(out.read_text().splitlines()) == 5
    assert json.loads(out.read_text().splitlines()[0])["cell"].keys() == {"kind", "number", "seed"}
    calls.clear()
    program.main(words)
    assert {kind for kind, _ in calls} == {"dysts"}
    calls.clear()
    program.main([*words, "--seed", "1", "--kinds", "unrelated", "--tables", "7"])
    assert [kind for kind, _ in calls] == list(unrelated.KINDS)
    with pytest.raises(SystemExit):
        program.main(["--kinds", "planets"])


def test_several_processes_measure_each_cell_once():
    cells = [{"number": i} for i in range(5)]
    found = list(workers.measured(cells, 2, 60.0, dict))
    assert sorted(cell["number"] for cell, _ in found) == list(range(5))
    assert all(cell == result for cell, result in found)
    assert not list(workers.measured(cells, 2, -1.0, dict))


def test_without_dysts_its_tables_are_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "dysts", None)
    assert judging.measure({"kind": "dysts", "number": 0, "seed": 0}) == {"skipped": "not installed (dysts)"}
