"""The comparison benchmarks: measuring cell by cell, intervals, and the subject of counts."""

import argparse
import json
import sys
import types
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import stored
from benchmarks.about import machine
from benchmarks.against import __main__ as against
from benchmarks.against import counting, counting_cases, counting_networks, counting_peers, counting_tables, trials


@pytest.fixture
def subject(monkeypatch):
    """Stand in for a subject of three cells, and count what is measured."""
    module = types.ModuleType("invented.subject")
    module.calls = []
    module.cells = lambda quick: [{"seed": s, "tuned": False} for s in range(1 if quick else 3)]

    def measure(cell):
        module.calls.append(cell["seed"])
        return [{"method": "m", "value": np.float64(cell["seed"])}]

    module.measure = measure
    module.tables = lambda results: ",".join(f"{r['seed']}:{r['value']:g}" for r in results)
    monkeypatch.setitem(sys.modules, "invented", types.ModuleType("invented"))
    monkeypatch.setitem(sys.modules, "invented.subject", module)
    return module


def test_a_run_goes_on_where_it_stopped_and_drops_a_line_that_was_cut(subject, tmp_path):
    assert trials.run("subject", tmp_path, quick=True, package="invented").endswith("0:0")
    path = tmp_path / "subject.jsonl"
    with path.open("a") as file:
        file.write('{"cell": {"seed": 1, "tuned": false}, "resu')
    assert trials.run("subject", tmp_path, package="invented").endswith("0:0,1:1,2:2")
    assert subject.calls == [0, 1, 2]
    assert [json.loads(line)["cell"]["seed"] for line in path.read_text().splitlines()] == [0, 1, 2]
    trials.run("subject", tmp_path, package="invented")
    assert subject.calls == [0, 1, 2]


def test_only_the_chosen_cells_are_measured_and_all_that_are_stored_are_shown(subject, tmp_path):
    trials.run("subject", tmp_path, package="invented", chosen=lambda cell: cell["seed"] == 2)
    text = trials.run("subject", tmp_path, package="invented", chosen=lambda cell: cell["seed"] == 0)
    assert subject.calls == [2, 0]
    assert text.startswith("2 of 3 cells")
    assert text.endswith("0:0,2:2")


@pytest.mark.parametrize(
    ("only", "seeds", "expected"),
    [
        (None, None, True),
        (["BERT"], (1, 3), True),
        (["ViT"], None, False),
        (None, (3, 9), False),
        (["ViT", "BERT"], (2, 3), True),
    ],
)
def test_cells_are_chosen_by_case_and_seed(only, seeds, expected):
    assert against.chosen(only, seeds, {"seed": 2, "tuned": False, "case": "BERT"}) is expected


def test_a_finished_run_names_its_selection(tmp_path, monkeypatch):
    def run(name, out, quick, *_, chosen, **__):
        assert (name, quick, chosen({"seed": 100, "case": "a b"}), chosen({"seed": 105, "case": "a b"})) == (
            ("counting", True, True, False)
        )
        (out / "counting.jsonl").write_text(json.dumps(line) + "\n")
        return "1 of 9 cells measured (quick)."

    line = {"cell": {"seed": 104, "tuned": False, "case": "c"}}
    words = ["counting", "--quick", "--only", "a b", "c", "--seeds", "100", "105", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["against", *words])
    monkeypatch.setattr(trials, "run", run)
    against.main()
    ((about, lines),) = stored.runs(tmp_path, "counting")
    assert about["command"] == "python -m benchmarks.against counting --quick --only 'a b' c --seeds 100 105"
    assert (about["machine"], lines) == (machine(), [line])


@pytest.mark.parametrize(
    ("only", "seeds", "words"),
    [
        (["BERT"], None, "--quick --only BERT"),
        (None, (0, 4), "--quick --seeds 0 4"),
        (None, (3, 4), "--quick"),
        (["BERT", "ViT"], (0, 3), "--quick"),
    ],
)
def test_a_selection_is_named_only_if_all_stored_cells_are_of_it(only, seeds, words):
    arguments = argparse.Namespace(quick=True, only=only, seeds=seeds)
    cells = [{"seed": seed, "tuned": False, "case": "BERT"} for seed in (1, 3)]
    assert " ".join(against.selection(arguments, cells)) == words


class Losing(Executor):
    """An executor whose second call is lost with its worker."""

    def __init__(self):
        self.calls = 0

    def submit(self, function, /, *args):
        future, self.calls = Future(), self.calls + 1
        if self.calls == 2:
            future.set_exception(OSError("the worker died"))
        else:
            future.set_result(function(*args))
        return future


def test_an_executor_measures_every_cell_once_also_one_whose_worker_died(subject, tmp_path):
    expected = trials.run("subject", tmp_path / "alone", package="invented")
    subject.calls.clear()
    executor = Losing()
    assert trials.run("subject", tmp_path / "out", package="invented", executor=executor) == expected
    assert sorted(subject.calls) == [0, 1, 2]
    assert executor.calls == 4
    assert trials.run("subject", tmp_path / "none", minutes=0.0, package="invented", executor=executor)[:4] == "0 of"
    with pytest.raises(TypeError, match="executor: got 3"):
        trials.run("subject", tmp_path / "wrong", package="invented", executor=3)


def test_no_cell_is_begun_after_the_minutes_and_what_is_there_is_shown(subject, tmp_path):
    assert trials.run("subject", tmp_path, minutes=0.0, package="invented").startswith("0 of 3 cells")
    assert subject.calls == []


def test_a_cell_is_stored_before_the_next_is_measured(subject, tmp_path):
    first = subject.measure
    subject.measure = lambda cell: first(cell) if cell["seed"] == 0 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        trials.run("subject", tmp_path, package="invented")
    assert len(trials.stored(tmp_path / "subject.jsonl")) == 1


def test_a_cell_whose_package_is_not_installed_is_said_and_left_for_a_later_run(subject, tmp_path, capsys):
    first = subject.measure
    subject.measure = lambda cell: first(cell) if cell["seed"] != 1 else __import__("no_such_package")
    text = trials.run("subject", tmp_path, package="invented")
    assert text.startswith("2 of 3 cells")
    assert text.endswith("0:0,2:2")
    assert 'not measured: {"seed": 1, "tuned": false} (No module named \'no_such_package\')' in capsys.readouterr().out
    subject.measure = first
    assert trials.run("subject", tmp_path, package="invented").startswith("3 of 3 cells")


def test_results_may_not_hide_what_the_cell_says(subject, tmp_path):
    subject.measure = lambda cell: [{"method": "m", "seed": 7}]
    with pytest.raises(ValueError, match=r"keys of the cell \['seed'\]"):
        trials.run("subject", tmp_path, package="invented")


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (7, 10), (10, 10), (33, 200)])
def test_wilson_is_the_interval_of_scipy(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")
    assert trials.wilson(successes, n)[:3] == pytest.approx((successes / n, expected.low, expected.high), abs=1e-6)


def test_intervals_cover_the_mean_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    found = [trials.interval(generator.normal(size=40)) for _ in range(100)]
    assert 87 <= sum(i.low <= 0 <= i.high for i in found) <= 99
    assert trials.interval([1.0, 2.0, 9.0], np.median).estimate == 2.0
    with pytest.raises(ValueError, match="finite"):
        trials.interval([1.0, float("nan")])


def test_a_method_that_is_missing_or_fails_stays_as_a_row():
    assert trials.attempt("a", lambda: __import__("no_such_peer"))["failed"] == "not installed (no_such_peer)"
    assert trials.attempt("b", lambda: 1 / 0)["failed"].startswith("ZeroDivisionError")
    assert trials.attempt("c", lambda: {"value": 1}) == {"method": "c", "value": 1}


# counts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_cells_hold_every_row_once_per_seed_with_seeds_outside(quick):
    cells = counting.cells(quick)
    assert json.loads(json.dumps(cells)) == cells
    seeds = [cell["seed"] for cell in cells]
    assert seeds == sorted(seeds)
    rows = [json.dumps({k: v for k, v in c.items() if k != "seed"}) for c in cells]
    assert len(set(zip(rows, seeds, strict=True))) == len(cells) == len(set(rows)) * len(set(seeds))
    if not quick:
        smooth = [c for c in cells if c["family"] == "smooth"]
        assert len(set(seeds)) == 10
        assert {c["k"] for c in smooth} == {1, 2, 3, 4, 5, 6}
        assert {c["noise"] for c in smooth} == {0, 0.1, 0.3}
        assert {c["d"] for c in smooth} == {10, 20, 50}
        assert {c["n"] for c in smooth} == {100, 300, 1000, 3000}
        assert {c["family"] for c in cells if c["tuned"]} == {"low_rank_map"}
        assert all(counting_tables._case(c) for c in cells)
        assert all(any(belongs(c) for _, belongs in counting_tables.GROUPS) for c in cells)


@pytest.mark.parametrize("family", counting_cases.FAMILIES)
def test_y_is_a_function_of_the_planted_numbers_and_of_no_fewer(family):
    cell = {"family": family, "k": 2, "d": 10, "noise": 0.3, "n": 800, "seed": 3}
    case, clean = counting_cases.draw(cell), counting_cases.draw(cell | {"noise": 0.0})
    assert (case.x.shape, case.y.shape, case.z.shape, len(case.x_test)) == ((800, 10), (800, 20), (800, 2), 1000)
    np.testing.assert_array_equal(case.x, clean.x)
    np.testing.assert_array_equal(case.y_test, clean.y_test)
    spread = np.sqrt(clean.y.var(axis=0).mean())
    assert (case.y - clean.y).std() / spread == pytest.approx(0.3, rel=0.05)
    of_both = counting.explained(clean.z, clean.y, clean.z_test, clean.y_test)
    assert of_both > 0.98
    assert all(counting.explained(clean.z[:, [j]], clean.y, clean.z_test[:, [j]], clean.y_test) < 0.9 for j in (0, 1))


def test_the_kernel_fit_leaves_out_what_a_loop_leaves_out():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(30, 2)), generator.normal(size=(30, 3))
    y += 3 * np.sin(x[:, :1])
    fit = counting_peers.KernelFit(x, y)
    kernel = fit._kernel(fit.x, fit.gamma)
    ridges = np.logspace(-7, 2, 10)
    centered = y - y.mean(0)
    residual = {r: centered - kernel @ np.linalg.solve(kernel + r * np.eye(30), centered) for r in ridges}
    ridge = min(ridges, key=lambda r: np.abs(residual[r] - centered + kernel @ fit.weights).max())

    def left_out(ridge):
        total = 0.0
        for i in range(30):
            rest = np.arange(30) != i
            weights = np.linalg.solve(kernel[np.ix_(rest, rest)] + ridge * np.eye(29), centered[rest])
            total += ((centered[i] - kernel[i, rest] @ weights) ** 2).sum()
        return total

    assert ridge == min(ridges, key=left_out)


def test_one_standard_error_prefers_few_but_not_fewer_than_the_data_say():
    errors = np.vstack([np.full(100, 5.0), np.full(100, 1.05), np.full(100, 1.0), np.full(100, 1.01)])
    errors += 1.0 * np.random.default_rng(0).normal(size=100)  # the same in all: nothing in pairs
    assert counting_peers.one_standard_error(errors) == 1
    assert counting_peers.one_standard_error(errors, paired=True) == 2


LINEAR = {"family": "linear", "k": 3, "d": 10, "noise": 0.1, "n": 200, "seed": 0}


@pytest.mark.parametrize(("name", "most"), [("reduced-rank regression, 1 SE", 3), ("PLS (scikit-learn)", 10)])
def test_linear_peers_count_and_predict_a_linear_map(name, most):
    case = counting_cases.draw(LINEAR)
    [result] = counting.judge(case, {name: counting_peers.PEERS[name]})
    assert 3 <= result["count"] <= most  # PLS builds a map of rank 3 from more components
    assert result["prediction"] < 0.05
    assert result["coordinates"] > 0.95
    assert result["surplus"] < 0.05 + (result["count"] > 3)


def test_reduced_rank_without_a_cut_is_ridge_regression():
    from sklearn.linear_model import RidgeCV

    case = counting_cases.draw(LINEAR)
    center, maps = counting_peers._reduced_rank_maps(case.x, case.y)
    b, v, mean = maps[-1]
    expected = RidgeCV(counting_peers.RIDGES).fit(case.x, case.y).predict(case.x_test)
    np.testing.assert_allclose(mean + (case.x_test - center) @ b @ v @ v.T, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "package"),
    [("SIR (sliced), permutations", "sliced"), ("SIR (statsmodels), permutations", "statsmodels")],
)
def test_inverse_regression_counts_directions_where_its_assumptions_hold(name, package):
    pytest.importorskip("statsmodels") if package == "statsmodels" else _need_sliced()
    case = counting_cases.draw(LINEAR | {"family": "directions", "k": 2, "n": 400})
    [result] = counting.judge(case, {name: counting_peers.PEERS[name]})
    assert result["count"] == 2
    assert result["coordinates"] > 0.9


def _need_sliced():
    with counting_peers.names_of_2019():
        pytest.importorskip("sliced")


def test_names_that_are_gone_are_lent_and_taken_back():
    before = dict(sys.modules)
    with counting_peers.names_of_2019():
        assert vars(np)["int"] is int
        assert sys.modules["six"].string_types == (str,)
    assert not hasattr(np, "int")
    assert ("six" in sys.modules) == ("six" in before)


def test_permutations_stop_where_nothing_is_left():
    z = np.random.default_rng(0).normal(size=(300, 5))
    y = z[:, 0] + 2 * z[:, 1]

    def kernel(x):
        slope = x.T @ y / len(x)
        values, vectors = np.linalg.eigh(np.outer(slope, slope))
        return values[::-1], vectors[:, ::-1]

    assert counting_peers.permutation_count(z, kernel, 0) == 1
    assert counting_peers.permutation_count(z, lambda x: (np.zeros(5), np.eye(5)), 0) == 0


def test_intrinsic_dimension_is_right_at_home():
    pytest.importorskip("skdim")
    case = counting_cases.draw(LINEAR | {"family": "surface", "k": 2, "n": 500})
    name = "TwoNN (scikit-dimension) on x"
    assert counting.judge(case, {name: counting_peers.PEERS[name]})[0]["count"] == 2


def test_a_member_of_the_sweep_is_the_network_alone():
    import torch

    generator = torch.Generator().manual_seed(0)
    members = counting_networks.Members((5, 4), [1, 3], generator)
    x = torch.randn(6, 5, generator=generator)
    w, b = [p[1] for p in members.weights], [p[1] for p in members.biases]
    z = (torch.relu(torch.relu(x @ w[0] + b[0]) @ w[1] + b[1]) @ w[2] + b[2])[:, :3]
    alone = torch.relu(torch.relu(z @ w[3][:3] + b[3]) @ w[4] + b[4]) @ w[5] + b[5]
    torch.testing.assert_close(members(x.expand(2, -1, -1))[1], alone)
    assert (members.encode(x.expand(2, -1, -1))[0, :, 1:] == 0).all()


def test_the_sweep_learns_a_map_and_uses_the_count_it_is_told(monkeypatch):
    monkeypatch.setattr(counting_networks, "STEPS", 200)
    monkeypatch.setattr(counting_networks, "LARGEST", 3)
    case = counting_cases.draw(LINEAR | {"k": 2})
    seen = []
    k, encode, predict = counting_networks.sweep(case.x, case.y, 0, lambda errors: seen.append(errors) or 2)
    [errors] = seen
    assert errors.shape == (4, 3 * 66)
    assert errors.mean(1)[2] < 0.5 * errors.mean(1)[1] < 0.5 * errors.mean(1)[0]
    assert (k, encode(case.x_test).shape) == (2, (1000, 2))
    assert ((predict(case.x_test) - case.y_test) ** 2).sum() < 0.1 * (case.y_test**2).sum()


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_case_runs_through_every_method(monkeypatch):
    monkeypatch.setattr(counting_networks, "STEPS", 20)
    monkeypatch.setattr(counting_peers, "PERMUTATIONS", 19)
    cell = LINEAR | {"n": 40, "d": 5, "tuned": False}
    results = counting.judge(counting_cases.draw(cell), {"bnrank": tiny, **counting_peers.PEERS})
    assert [r["method"] for r in results] == ["bnrank", *counting_peers.PEERS]
    for result in results:
        assert result.get("failed", "not installed").startswith("not installed"), result
        assert result.keys() & {"failed", "count", "prediction"}, result
    assert results[0]["ratio"] == 1
    text = counting.tables([{**cell, **json.loads(json.dumps(r))} for r in results])
    assert all(f"| {name.replace('|', '/')} |" in text for name in ["bnrank", "reduced-rank regression, 1 SE"])


def tiny(case):
    """Fit linear maps only: what the estimator does below 30 rows."""
    rows = slice(0, 28)
    few = counting_cases.Case(
        case.x[rows], case.y[rows], case.z[rows], case.x_test, case.y_test, case.z_test, case.seed
    )
    return counting.bottleneck(few)


def invented(method, counts, prediction=None, **extra):
    cell = counting.Center | {"tuned": False}
    return [
        cell
        | {"seed": s, "method": method, "count": c, "seconds": 1.0, "ratio": 2.0, **extra}
        | ({} if prediction is None else {"prediction": prediction + 0.01 * s})
        for s, c in enumerate(counts)
    ]


def test_tables_say_what_the_results_say():
    ours = {"low": 3, "high": 3, "undetermined": False, "model": "network"}
    results = invented("bnrank", [3, 3, 4, 1], 0.5, **ours) + invented("better", [3, 3, 3, 3], 0.2)
    failed = [counting.Center | {"tuned": False, "seed": s, "method": "gone", "failed": "why"} for s in range(4)]
    text = counting.tables(results + failed)
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    case = "smooth, k=3, d=20, noise 10%, n=300"
    standing = next(line for line in text.splitlines() if line.startswith(f"| {case} | 4 | 0.50"))
    assert standing.count("behind") == 2
    assert "1.00 [0.51, 1.00] better" in standing
    assert "| 3 3 4 1 |" in lines[case]
    assert "0.75 [0.30, 0.95]" in lines[case]  # within one
    assert "1.00 [0.51, 1.00]" in lines[case]  # covered
    assert "| gone | 4 | why |" in text
    right = text[text.index("## Share of right counts") :]
    assert "| gone | 0.00 [0.00, 0.49] |" in right
    swapped = counting.tables(invented("bnrank", [3, 3, 3, 3], 0.2, **ours) + invented("worse", [3, 3, 4, 1], 0.5))
    assert next(line for line in swapped.splitlines() if line.startswith(f"| {case} | 4")).count("ahead") == 2
    even = invented("bnrank", [3] * 6, 0.3, **ours) + invented("even", [3] * 6, 0.3)
    for result in even[:6]:
        result["prediction"] += 0.01 * (-1) ** result["seed"]
    text = counting.tables(even)
    assert next(line for line in text.splitlines() if line.startswith(f"| {case} | 6")).count("level") == 2
