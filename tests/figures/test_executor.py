"""Figures whose trainings an executor runs: the same numbers as alone, also where a worker dies."""

import contextlib
import functools
import math
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import xarray as xr

from bnrank import figures
from bnrank._core.processes import Pool
from bnrank.figures.f15_rank_recovery import computation
from bnrank.figures.harness.ahead import kept
from bnrank.figures.harness.figure import Figure
from bnrank.figures.harness.training import train_recorded
from bnrank.training.sweeping.engines import engaged
from engine_figures import make, make_failing

from .reproduce_common import Settings

SMALL = computation.Settings(
    sizes=(4, 6), depths=(3, 5), depth=4, width=6, seeds=(0,), steps=8, usual_steps=10, bound_sizes=(4,)
)


def numbers(outcome):
    assert not outcome.error
    return [(claim.name, claim.measured) for claim in outcome.claims]


def test_a_figure_has_the_same_numbers_and_its_networks_are_trained_by_processes(tmp_path, monkeypatch):
    alone = computation.trials(SMALL, tmp_path / "alone", False)
    missing = []

    def looked(net, task, folder, *arguments, **options):  # in this process, not in those of the pool
        if not (folder / "summary.nc").exists():
            missing.append(folder)
        return train_recorded(net, task, folder, *arguments, **options)

    monkeypatch.setattr(computation, "train_recorded", looked)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, engaged(pool):
        found = computation.trials(SMALL, tmp_path / "pool", False)
    assert missing == []
    xr.testing.assert_identical(found, alone)


TRAININGS = {"F2": 25, "F3": 14, "F5": 5, "F6": 3, "F7": 25, "F8": 2, "F9": 8, "F10": 11, "F14": 3}
TRAININGS |= {"F15": 20, "F16": 50, "F17": 3}


LESS = {"F7": {"dims": (1,), "sizes": (20, 40), "draws": 2, "n_test": 10}, "F14": {"linear_steps": 2}}  # before them


@pytest.mark.parametrize("name", TRAININGS)
def test_the_trainings_of_figures_can_be_sent_to_workers(name, tmp_path, monkeypatch):
    sent = []

    def run_calls(calls, engine, done):
        sent.extend(calls)
        raise RuntimeError("that is enough")

    monkeypatch.setattr("bnrank.figures.harness.ahead.run_calls", run_calls)
    with ThreadPoolExecutor(1) as threads:
        found = figures.find(name).run("quick", tmp_path, progress=False, executor=threads, **LESS.get(name, {}))
    assert "that is enough" in found.error
    assert len(pickle.loads(pickle.dumps(sent))) == TRAININGS[name]


def planted(made=make):
    return Figure("P", "planted", "planted", "A paper", "losses", {"quick": Settings()}, made)


@contextlib.contextmanager
def engine(name):
    if name == "pool":
        yield functools.partial(Pool, 1)
        return
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.parametrize("name", ["pool", "dask"])
def test_a_figure_goes_on_when_a_worker_is_killed(name, tmp_path):
    alone = planted().run("quick", tmp_path / "alone", progress=False)
    with engine(name) as executor:
        found = planted().run("quick", tmp_path / "out", progress=False, executor=executor)
    runs = tmp_path / "out/planted/runs"
    assert (runs / "killed").exists()
    assert numbers(found) == numbers(alone)
    assert {path.name for path in runs.glob("by-*")} - {f"by-{os.getpid()}"}  # processes of the executor


def test_the_error_of_a_training_is_that_of_the_figure(tmp_path):
    with ThreadPoolExecutor(1) as threads:
        found = planted(make_failing).run("quick", tmp_path, progress=False, executor=threads)
    assert found.error.startswith("OSError: no such luck")


def test_what_is_no_executor_is_refused_before_anything_is_written(tmp_path):
    for wrong in (3, "tcp://nowhere"):
        with pytest.raises(TypeError, match=r"executor: .*expected a concurrent.futures.Executor"):
            figures.reproduce("F12", tmp_path / "out", progress=False, executor=wrong)
    assert not (tmp_path / "out").exists()


def test_kept_results_are_the_same_from_the_call_and_from_the_file(tmp_path):
    calls = []

    def call():
        calls.append(1)
        return [{"N": 3, "end": math.inf, "value": 0.1 + 0.2, "none": None, "name": "a"}]

    first = kept(tmp_path / "new" / "a.json", call)
    assert first == call()
    assert kept(tmp_path / "new" / "a.json", call) == first
    assert len(calls) == 2
    path = tmp_path / "new" / "a.json"
    path.write_bytes(path.read_bytes().replace(b"0.3", b"0.4"))
    assert kept(path, call) == first
    assert len(calls) == 3
