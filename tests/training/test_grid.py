"""Grids of runs: right values in the right places, stored, resumed, failures kept as rows."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import xarray as xr

import bnrank
from bnrank.training.sweeping import work

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
GRID = {"depths": [2, 3], "ridges": [1e-3, 1e-2], "seeds": [0, 5], "grid": {"width": [4, 6], "size": [20, 40]}}
QUICK = {"steps": 6, "processes": 1, "progress": False, "record": 3}


def test_every_cell_equals_the_run_trained_by_itself():
    grid = bnrank.sweep(TASK, **GRID, **QUICK)
    assert dict(grid.sizes) == {
        "depth": 2, "width": 2, "size": 2, "ridge": 2, "seed": 2, "layer": 3, "index": 6,
    }  # fmt: skip
    for depth, width, size, ridge, seed in [(2, 4, 20, 1e-3, 0), (3, 6, 40, 1e-2, 5), (3, 4, 20, 1e-2, 0)]:
        cell = grid.sel(depth=depth, width=width, size=size, ridge=ridge, seed=seed)
        part = bnrank.Task(TASK.x[:size], TASK.y[:size])
        net = bnrank.MLP([5, *[width] * (depth - 1), 4])
        run = bnrank.train(net, part, ridge=ridge, steps=6, seed=seed, record=3, progress=False)
        assert float(cell.loss) == float(run.summary.loss[0])
        assert float(cell.parameter_norm) == float(run.summary.parameter_norm[0])
        own = run.history.weight_singular_values.isel(member=0, step=-1).values
        kept = cell.weight_singular_values.values[:depth, : own.shape[1]]
        np.testing.assert_array_equal(kept, own)
        assert np.isnan(cell.weight_singular_values.values[depth:]).all()
        assert cell.status.item() == "finished"


def test_what_is_stored_is_not_run_again_and_what_is_new_is(tmp_path):
    first = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, out=tmp_path, **QUICK)
    again = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, out=tmp_path, **QUICK)
    more = bnrank.sweep(TASK, depths=[2, 3, 4], grid={"width": [4]}, out=tmp_path, **QUICK)
    quick = {name: value for name, value in QUICK.items() if name != "steps"}
    longer = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4], "steps": [6, 7]}, out=tmp_path, **quick)
    assert [d.attrs["ran"] for d in (first, again, more, longer)] == [2, 0, 1, 2]
    xr.testing.assert_equal(first, again)
    (steps,) = {row["steps"] for row in bnrank.Sweep.open(tmp_path).rows if row["depth"] == 4}
    assert steps == 6
    run = bnrank.Sweep.open(tmp_path).run(depth=3, steps=6)
    assert float(run.summary.loss[0]) == float(first.loss.sel(depth=3).values.ravel()[0])


def test_an_interrupted_ensemble_is_gone_on_with(tmp_path, monkeypatch):
    trained = work.with_checkpoints

    def interrupted(*args, **kwargs):
        run = trained(*args, **kwargs)
        run.summary["status"] = ("member", ["interrupted"])
        return run

    with monkeypatch.context() as patch:
        patch.setattr(work, "with_checkpoints", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bnrank.sweep(TASK, depths=[2], grid={"width": [4]}, out=tmp_path, **QUICK)
    grid = bnrank.sweep(TASK, depths=[2], grid={"width": [4]}, out=tmp_path, **QUICK)
    assert grid.attrs["ran"] == 1
    assert grid.status.values.ravel().tolist() == ["finished"]


def test_a_failure_is_a_row_with_its_error_and_is_tried_again(tmp_path, monkeypatch):
    trained = work.with_checkpoints

    def fails_at_depth_three(net, *args, **kwargs):
        if net.depth == 3:
            raise RuntimeError("out of luck")
        return trained(net, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(work, "with_checkpoints", fails_at_depth_three)
        grid = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, out=tmp_path, **QUICK)
    assert grid.status.values.ravel().tolist() == ["finished", "failed"]
    assert "out of luck" in grid.error.values.ravel()[1]
    assert np.isnan(grid.loss.sel(depth=3)).all()
    assert "1 failed: RuntimeError: out of luck" in str(bnrank.Sweep.open(tmp_path))
    again = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, out=tmp_path, **QUICK)
    assert again.attrs["ran"] == 1
    assert again.status.values.ravel().tolist() == ["finished", "finished"]


def test_a_damaged_row_is_named_and_its_network_is_trained_again(tmp_path):
    grid = bnrank.sweep(TASK, depths=[2], grid={"width": [4]}, out=tmp_path, **QUICK)
    (rows,) = (tmp_path / "rows").iterdir()
    rows.write_bytes(rows.read_bytes().replace(b"finished", b"finishee"))
    with pytest.warns(UserWarning, match=rf"{rows.name} is damaged in 1 row"):
        again = bnrank.sweep(TASK, depths=[2], grid={"width": [4]}, out=tmp_path, **QUICK)
    assert again.attrs["ran"] == 1
    xr.testing.assert_equal(*(found.drop_vars(["seconds", "worker"]) for found in (grid, again)))


def test_any_executor_and_a_process_pool_give_the_same(tmp_path):
    options = {**QUICK, "processes": None}
    here = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, **QUICK)
    with ThreadPoolExecutor(1) as executor:
        threads = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, executor=executor, **options)
    pool = bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, **{**options, "processes": 2})
    for other in (threads, pool):
        xr.testing.assert_equal(*(found.drop_vars(["seconds", "worker"]) for found in (here, other)))


def test_threads_of_this_process_are_left_as_they_were():
    before = torch.get_num_threads()
    bnrank.sweep(TASK, depths=[2], grid={"width": [4]}, **QUICK)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": []}, "depths: got"),
        ({"depths": [0]}, r"depths\[0\]: got 0"),
        ({"depths": [2, 2]}, "every value once"),
        ({"grid": {"size": [41]}}, "size: got 41, expected at most the number of samples, 40"),
        ({"ridges": [-1.0]}, r"ridges\[0\]: got -1"),
        ({"grid": {"slope": 1.0}}, "slope: got 1"),
        ({"members": 3}, "options: got 'members'"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bnrank.sweep(TASK, **{"depths": [2], "grid": {"width": [4]}, **QUICK, **changes})
