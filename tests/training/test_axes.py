"""Grids of anything: axes of the task and of training, lists of settings, and samples of ranges."""

import dataclasses
import functools
import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import bnrank
from bnrank.training import Adam, GradientDescent, Range, Stop, sample_settings
from bnrank.training.sweeping.axes import read_grid

MAKER = functools.partial(bnrank.tasks.low_rank_map, n=30, d_in=5, d_out=4, latent=3, n_test=0)
TASK = MAKER()
QUICK = {"processes": 1, "progress": False, "steps": 5, "record": 5}


def alone(task, ridge=1e-3, seed=0, depth=2, width=4, steps=5, **options):
    net = bnrank.MLP([task.d_in, *[width] * (depth - 1), task.d_out])
    return bnrank.train(net, task, ridge=ridge, seed=seed, steps=steps, record=5, progress=False, **options)


def assert_same(cell, run):
    assert float(cell.loss) == float(run.summary.loss[0])
    assert float(cell.parameter_norm) == float(run.summary.parameter_norm[0])


# bits ----------------------------------------------------------------------------------------------------------------


def test_every_cell_equals_the_run_trained_by_itself():
    grid = {"task.rank": [1, 3], "lr": [1e-3, 1e-2], "depth": [2, 3], "ridge": [1e-3, 0.1], "seed": [0, 7]}
    found = bnrank.sweep(MAKER, grid=grid | {"width": [4]}, optimizer="adam", **QUICK)
    assert dict(found.loss.sizes) == {"depth": 2, "width": 1, "ridge": 2, "seed": 2, "task.rank": 2, "lr": 2}
    assert found.attrs["ran"] == found.loss.size
    for values in np.ndindex(2, 2, 2, 2, 2):
        point = {name: grid[name][i] for name, i in zip(grid, values, strict=True)}
        own = {name: point[name] for name in ("ridge", "seed", "depth")}
        run = alone(MAKER(rank=point["task.rank"]), **own, optimizer=Adam(point["lr"]))
        assert_same(found.sel(point).squeeze(), run)


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "batch_size": 4}])
def test_samples_are_weighted_as_in_a_run_by_itself(tmp_path, options):
    def weighted(least):
        return dataclasses.replace(TASK, weights=torch.linspace(least, 2, TASK.n, dtype=torch.float64))

    grid = {"task.least": [0.0, 1.0], "width": [4], "size": [12, 30]}
    found = bnrank.sweep(weighted, depths=[2], grid=grid, out=tmp_path, **options, **QUICK)
    assert len(set(found.loss.values.ravel().tolist())) == 4
    for least, size in itertools.product((0.0, 1.0), (12, 30)):
        task = weighted(least)
        part = dataclasses.replace(task, x=task.x[:size], y=task.y[:size], weights=task.weights[:size])
        assert_same(found.sel({"task.least": least, "size": size}).squeeze(), alone(part, **options))
    again = bnrank.sweep(weighted(1.0), depths=[2], grid={"width": [4]}, out=tmp_path, **options, **QUICK)
    assert again.attrs["ran"] == 0


def test_step_sizes_of_an_optimizer_belong_to_ridges_and_seeds():
    rates, (ridges, seeds) = (1e-3, 3e-3, 1e-2, 3e-2), ([1e-3, 0.1], [0, 7])
    grid = {"width": [4], "slope": [0.0, 0.5]}
    found = bnrank.sweep(TASK, depths=[2, 3], ridges=ridges, seeds=seeds, grid=grid, optimizer=Adam(rates), **QUICK)
    for (ridge, seed), lr in zip(itertools.product(ridges, seeds), rates, strict=True):
        for depth in (2, 3):
            cell = found.sel(ridge=ridge, seed=seed, depth=depth, slope=0.0).squeeze()
            assert_same(cell, alone(TASK, ridge=ridge, seed=seed, depth=depth, optimizer=Adam(lr)))


@pytest.mark.parametrize(
    ("axis", "values", "options"),
    [
        ("optimizer", ["adam", "gd", "lbfgs"], {}),
        ("batch_size", [None, 8], {"optimizer": "adam"}),
        ("dtype", [torch.float32, "float64"], {}),
        ("schedule", ["constant", "cosine", "normalized"], {"optimizer": "gd"}),
        ("norm_power", [0.0, 2.0], {"optimizer": GradientDescent(1e-3)}),
        ("gradient_norm", [0.0, 1e9], {}),
        ("steps", [3, 5], {}),
    ],
)
def test_options_of_training_are_axes(axis, values, options):
    quick = {name: value for name, value in QUICK.items() if name != axis}
    found = bnrank.sweep(TASK, depths=[2], grid={"width": [4], axis: values}, **options, **quick)
    assert len(set(found.loss.values.ravel().tolist())) == len(values)
    for i, value in enumerate(values):
        own = {axis: torch.float64 if value == "float64" else value} | options
        if axis in ("schedule", "norm_power"):
            own = {"optimizer": GradientDescent(1e-3 if axis == "norm_power" else 1e-2, **{axis: value})}
        if axis == "gradient_norm":
            own = {"steps": Stop(5, gradient_norm=value)}
        assert_same(found.squeeze().isel({axis: i}), alone(TASK, **own))
    if axis == "steps":
        assert found.final_steps.squeeze().values.tolist() == values


@pytest.mark.parametrize(("axis", "values"), [("slope", [0.0, 0.5]), ("bias", [True, False]), ("init", ["he", 0.3])])
def test_properties_of_networks_are_axes(axis, values):
    found = bnrank.sweep(TASK, depths=[2], grid={"width": [4], axis: values}, **QUICK).squeeze()
    for i, value in enumerate(values):
        net = bnrank.MLP([5, 4, 4], **{axis: value})
        run = bnrank.train(net, TASK, ridge=1e-3, seed=0, steps=5, record=5, progress=False)
        assert_same(found.isel({axis: i}), run)


def test_one_value_is_no_axis_of_the_result():
    grid = {"width": [4], "task.rank": 3, "lr": 1e-2, "slope": 0.5}
    found = bnrank.sweep(MAKER, depths=[2], grid=grid, optimizer="adam", **QUICK)
    assert list(found.loss.dims) == ["depth", "width", "ridge", "seed"]
    same = bnrank.sweep(MAKER(rank=3), depths=[2], grid={"width": [4], "slope": 0.5}, optimizer=Adam(1e-2), **QUICK)
    assert found.loss.item() == same.loss.item()
    assert list(same.loss.dims) == ["depth", "width", "size", "ridge", "seed"]


def test_seeds_of_64_bits_are_trained_and_stored_as_they_are(tmp_path):
    seeds = [2**64 - 1, 2**63, 5]
    found = bnrank.sweep(TASK, depths=[2], seeds=seeds, grid={"width": [4]}, out=tmp_path, **QUICK)
    assert found.seed.values.tolist() == seeds
    for seed in seeds:
        assert_same(found.sel(seed=seed).squeeze(), alone(TASK, seed=seed))
        assert bnrank.Sweep.open(tmp_path).run(seed=seed, depth=np.int64(2)).summary.seed.values.tolist() == [seed]
    run = bnrank.train(bnrank.MLP([5, 4, 4]), TASK, seed=[2**64 - 1, 5], steps=5, progress=False)
    assert run.summary.seed.values.tolist() == [2**64 - 1, 5]
    same = bnrank.sweep(TASK, depths=[2], seeds=[2**63], grid={"width": [4]}, **QUICK)  # the only one
    assert same.loss.item() == found.loss.sel(seed=2**63).item()


# keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "values", "more"),
    [
        ("task.rank", [1, 2], 3),
        ("task.seed", [0], 1),
        ("lr", [1e-3, 1e-2], 3e-3),
        ("ridge", [1e-3, 1e-2], 3e-3),
        ("seed", [0, 1, 2], 3),
        ("depth", [2, 3], 4),
        ("width", [4], 5),
        ("steps", [3], 4),
        ("batch_size", [None], 8),
        ("slope", [0.0], 0.1),
    ],
)
def test_one_more_value_on_any_axis_trains_only_what_is_new(tmp_path, axis, values, more):
    quick = {name: value for name, value in QUICK.items() if name != axis} | {"optimizer": "adam", "out": tmp_path}
    grid = {"depth": [2], "width": [4], "ridge": [1e-3, 0.1]}
    first = bnrank.sweep(MAKER, grid=grid | {axis: values}, **quick)
    second = bnrank.sweep(MAKER, grid=grid | {axis: [*values, more]}, **quick)
    each = first.loss.size // len(values)
    assert (first.attrs["ran"], second.attrs["ran"]) == (len(values) * each, each)
    np.testing.assert_array_equal(second.isel({axis: slice(len(values))}).loss, first.loss)


def test_members_that_differ_in_step_size_ridge_and_seed_share_an_ensemble(tmp_path):
    grid = {"depth": [2], "width": [4], "lr": [1e-3, 1e-2], "ridge": [1e-3, 0.1], "seed": [0, 1], "task.rank": [1, 2]}
    bnrank.sweep(MAKER, grid=grid, optimizer="gd", out=tmp_path, **QUICK)
    assert {row["company"] for row in bnrank.Sweep.open(tmp_path).rows} == {8}
    assert len(list((tmp_path / "arrays").iterdir())) == len(list((tmp_path / "tasks").iterdir())) == 2


def test_a_setting_has_one_key_however_it_is_written(tmp_path):
    quick = QUICK | {"out": tmp_path, "depths": [2]}
    first = bnrank.sweep(TASK, optimizer="adam", grid={"width": [4]}, **quick)
    written = [
        {"optimizer": Adam()},
        {"optimizer": Adam(), "dtype": torch.float32, "batch_size": None, "record": bnrank.training.Record(5)},
        {"steps": Stop(5), "optimizer": "adam"},
    ]
    for options in written:
        assert bnrank.sweep(TASK, grid={"width": [4]}, **quick | options).attrs["ran"] == 0
    axes = {"width": [4], "lr": [3e-3], "optimizer": ["adam"], "schedule": ["constant"], "dtype": ["float32"]}
    found = bnrank.sweep(MAKER, grid=axes, **quick)
    assert found.attrs["ran"] == 0
    assert found.loss.item() == first.loss.item()


# lists of settings ---------------------------------------------------------------------------------------------------


def test_a_list_of_settings_is_a_table_with_the_same_bits(tmp_path):
    dense = bnrank.sweep(MAKER, depths=[2, 3], grid={"width": [4], "task.rank": [1, 2]}, out=tmp_path, **QUICK)
    settings = [
        {"depth": 3, "width": 4, "task.rank": 2},
        {"depth": 2, "width": 4},  # of rank 2
        {"depth": 3, "width": 4, "task.rank": 2},  # again
        {"depth": 2, "width": 4, "lr": 0.1, "optimizer": "gd"},
    ]
    table = bnrank.sweep(MAKER, grid=settings, out=tmp_path, **QUICK)
    assert isinstance(table, pd.DataFrame)
    assert table.attrs["ran"] == 1
    cells = [dense.sel({"depth": depth, "task.rank": 2}).loss.item() for depth in (3, 2, 3)]
    assert table.loss.tolist()[:3] == cells
    assert table.loss[3] == float(alone(TASK, optimizer=GradientDescent(0.1)).summary.loss[0])
    assert table.status.tolist() == ["finished"] * 4
    assert table["lr"].isna().tolist() == [True, True, True, False]
    assert {"error", "seconds", "worker", "size"} <= set(table.columns)


def test_settings_are_crossed_with_the_arguments():
    table = bnrank.sweep(TASK, grid=[{"width": 4}, {"width": 5}], depths=[2], seeds=[0, 3], **QUICK)
    assert table[["width", "seed"]].values.tolist() == [[4, 0], [4, 3], [5, 0], [5, 3]]
    assert table.loss[3] == float(alone(TASK, width=5, seed=3).summary.loss[0])


# samples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100, 105))
def test_a_latin_hypercube_has_one_setting_in_each_share_of_every_range(seed):
    n = 40
    ranges = {"a": Range(-1.0, 3.0), "b": Range(1e-5, 1e-1, log=True), "c": Range(1, n), "d": [*"abcd"]}
    settings = sample_settings(ranges, n, seed=seed)
    a, b, c = (np.array([setting[name] for setting in settings]) for name in "abc")
    assert sorted(np.floor((a + 1) / 4 * n).astype(int)) == list(range(n))
    assert sorted(np.floor((np.log10(b) + 5) / 4 * n).astype(int)) == list(range(n))
    assert sorted(c.tolist()) == list(range(1, n + 1))
    assert sorted(setting["d"] for setting in settings) == sorted("abcd" * (n // 4))
    assert np.abs(np.corrcoef([a, b, c])[np.triu_indices(3, 1)]).max() < 0.6
    assert settings == sample_settings(ranges, n, seed=seed)
    assert settings != sample_settings(ranges, n, seed=seed + 1)


@pytest.mark.parametrize("seed", range(100, 105))
def test_random_settings_are_uniform_and_independent(seed):
    settings = sample_settings({"a": Range(2.0, 4.0), "b": Range(1, 4)}, 4000, method="random", seed=seed)
    a, b = (np.array([setting[name] for setting in settings]) for name in "ab")
    counts = np.histogram(a, 10, (2, 4))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 40  # chi squared with 9 degrees of freedom: p about 1e-5
    assert ((np.bincount(b, minlength=5)[1:] - 1000) ** 2 / 1000).sum() < 28
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.08
    assert counts.max() > counts.min()  # no hypercube


def test_integers_of_a_logarithmic_range_have_the_shares_of_their_logarithms():
    found = np.array([Range(1, 100, log=True).at((i + 0.5) / 100_000) for i in range(100_000)])
    edges = np.log(np.arange(0.5, 101))
    np.testing.assert_allclose(
        np.bincount(found, minlength=101)[1:] / 1e5, np.diff(edges) / (edges[-1] - edges[0]), atol=2e-5
    )


def test_sampled_settings_are_trained():
    ranges = {"ridge": Range(1e-5, 1e-1, log=True), "lr": Range(1e-4, 1e-2, log=True), "task.rank": Range(1, 3)}
    settings = sample_settings(ranges, 6, seed=1)
    table = bnrank.sweep(MAKER, grid=[{**s, "width": 4} for s in settings], depths=[2], optimizer="gd", **QUICK)
    assert table[list(ranges)].to_dict("records") == settings
    last = settings[-1]
    run = alone(MAKER(rank=last["task.rank"]), last["ridge"], optimizer=GradientDescent(last["lr"]))
    assert table.loss.iloc[-1] == float(run.summary.loss[0])


# bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (MAKER, {"grid": {"depht": [2]}}, r"grid: got 'depht'.* expected one of 'depth', .*'task\.rank'.*mean 'depth'"),
        (MAKER, {"grid": {"task.rnk": [2]}}, r"grid: got 'task.rnk'.*did you mean 'task.rank'"),
        (TASK, {"grid": {"task.rank": [2]}}, r"grid: got 'task.rank' with data, expected a function"),
        (MAKER, {"grid": {"lr": []}}, r"lr: got \[\]"),
        (MAKER, {"grid": {"task.rank": []}}, r"task.rank: got \[\]"),
        (MAKER, {"grid": []}, r"grid: got \[\]"),
        (MAKER, {"grid": [3]}, "grid: got .*list of settings"),
        (MAKER, {"grid": {"lr": [0.1, float("nan")]}, "optimizer": "gd"}, r"lr\[1\]: got nan"),
        (MAKER, {"grid": {"task.noise": [float("nan")]}}, r"task.noise\[0\]: got NaN"),
        (MAKER, {"grid": {"lr": [0.1]}}, r"lr: got 0.1 with the optimizer 'auto', expected 'adam' or 'gd'"),
        (MAKER, {"grid": {"norm_power": [1]}, "optimizer": "adam"}, r"norm_power: got 1.0 .*expected 'gd'"),
        (MAKER, {"grid": {"batch_size": [1000]}}, r"batch_size: got 1000"),
        (MAKER, {"grid": {"batch_size": [8]}, "optimizer": "lbfgs"}, "optimizer: 'lbfgs' needs the whole gradient"),
        (MAKER, {"grid": {"task.rank": [9]}}, r"task.rank: got 9.*\(in low_rank_map\(rank=9\)\)"),
        (MAKER, {"grid": {"task.n": [1]}}, "task: got 1 sample"),
        (MAKER, {"grid": {"steps": [1]}}, "steps: got an option and an axis"),
        (MAKER, {"grid": {"depth": [2]}}, "grid: got 'depth' and the argument depths"),
        (MAKER, {"grid": [{"ridge": -1.0}]}, r"grid\[0\]\.ridge: got -1"),
        (MAKER, {"grid": [{}, {"depth": 2}]}, r"grid\[1\]: got 'depth' and the argument"),
        (MAKER, {"grid": {"lr": [0.1, 0.1]}, "optimizer": "gd"}, "every value once"),
        (MAKER, {"grid": {"task.rank": [1, 1]}}, "every value once"),
        (MAKER, {"grid": {"dtype": ["float16"]}}, "dtype: got"),
        (MAKER, {"depths": None}, "depths: got None"),
        (lambda: 5, {}, r"task: got 5 \(int\) from <lambda>\(\), expected a bnrank.tasks.Task"),
        (lambda n: 5, {}, r"task: <lambda>\(\): .*missing"),
        (lambda: 1 / 0, {}, r"task: <lambda>\(\) raised ZeroDivisionError"),
        (3, {}, "task: got 3"),
        (MAKER, {"processes": 0}, "expected a folder, for processes=0"),
    ],
)
def test_bad_grids_are_refused_before_anything_is_written(tmp_path, task, changes, message):
    out = {} if changes.get("processes") == 0 else {"out": tmp_path / "new"}
    with pytest.raises((ValueError, TypeError), match=message):
        bnrank.sweep(task, **{"depths": [2], **QUICK, **out, **changes})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", [np.array, torch.tensor, pd.Series, pd.Index])
def test_arrays_of_other_packages_are_axes(kind):
    lists = {"depth": [2, 3], "width": [4], "lr": [1e-3, 0.5], "task.n": [20, 30]}
    grid = {name: kind(values) for name, values in lists.items()}
    found = read_grid(grid, {"ridge": None, "seed": kind([3, 1])}, None, ["n"])
    assert found == read_grid(lists, {"ridge": None, "seed": [3, 1]}, None, ["n"]) or kind is torch.tensor
    assert [(name, len(values)) for name, values in found.axes.items() if name != "ridge"] == [
        ("depth", 2), ("width", 1), ("seed", 2), ("lr", 2), ("task.n", 2)
    ]  # fmt: skip
    assert found.axes["lr"] == pytest.approx([1e-3, 0.5])
    assert all(type(value) is int for value in found.axes["depth"] + found.axes["seed"])


def test_values_of_one_text_are_refused_since_tables_could_not_tell_them_apart():
    for values in ([None, "None"], [1, "1"], [(1, 2), "[1, 2]"]):
        with pytest.raises(ValueError, match=r"task.kind: got \[.*expected values with different texts"):
            read_grid({"depth": [2], "task.kind": values}, {}, None, ["kind"])


@pytest.mark.parametrize(
    ("ranges", "options", "message"),
    [
        ({}, {}, "ranges: got {}"),
        ({"a": []}, {}, r"ranges\['a'\]: got \[\]"),
        ({"a": 3}, {}, r"ranges\['a'\]: got 3"),
        ({"a": [1]}, {"n": 0}, "n: got 0"),
        ({"a": [1]}, {"method": "sobol"}, "method: got 'sobol'"),
        ({"a": [1]}, {"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_samples_are_refused(ranges, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sample_settings(ranges, **{"n": 3, **options})


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf")), ("a", 1)])
def test_bad_ranges_are_refused(ends):
    with pytest.raises((ValueError, TypeError), match=r"low|high"):
        Range(*ends)
    with pytest.raises(ValueError, match="low: got 0"):
        Range(0.0, 1.0, log=True)
