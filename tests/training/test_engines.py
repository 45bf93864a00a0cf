"""Sweeps on engines: executors that break are made anew, and Dask loses nothing when its workers are killed."""

import random
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

import bnrank
from bnrank.training.sweeping.rows import Reader

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.sweeps import kill_one

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
QUICK = {"steps": 6, "progress": False, "record": 3, "grid": {"width": [4]}}


def same(found, expected):
    for name in ("loss", "cost", "steps", "weight_singular_values"):
        np.testing.assert_array_equal(found[name].values, expected[name].values)


class Breaking(Executor):
    """An executor that breaks at its second group, as pools do whose process is killed."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.calls, self.shut = 0, False

    def submit(self, function, /, *args, **kwargs):
        future, self.calls = Future(), self.calls + 1
        if self.calls > 2:
            raise BrokenProcessPool("a process was killed")
        if self.calls == 2:
            future.set_exception(BrokenProcessPool("a process was killed"))
        else:
            future.set_result(function(*args, **kwargs))
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.shut = True


def test_an_executor_that_broke_is_made_anew():
    made = []
    settings = {"depths": [2], "seeds": range(60), **QUICK}

    def make():
        made.append(Breaking())
        return made[-1]

    found = bnrank.sweep(TASK, executor=make, **settings)
    assert (found.status == "finished").all()
    assert len(made) == 4  # of four groups, each executor trains one
    assert all(executor.shut for executor in made)
    same(found, bnrank.sweep(TASK, processes=1, **settings))


class Useless(Executor):
    def submit(self, *args, **kwargs):
        raise RuntimeError("the cluster is gone")


def test_executors_that_always_break_end_the_sweep(tmp_path):
    made = []

    def make():
        made.append(Useless())
        return made[-1]

    found = bnrank.sweep(TASK, depths=[2], executor=make, out=tmp_path, **QUICK)
    assert "the cluster is gone" in found.error.item()
    assert 1 < len(made) < 20
    with pytest.raises(TypeError, match=r"executor: got a function that returned 3 .*expected a concurrent"):
        bnrank.sweep(TASK, depths=[3], executor=lambda: 3, out=tmp_path, **QUICK)


def test_a_given_executor_is_not_shut_down():
    with ThreadPoolExecutor(1) as executor:
        bnrank.sweep(TASK, depths=[2], executor=executor, **QUICK)
        assert executor.submit(int, "3").result() == 3


def test_dask_loses_nothing_when_its_workers_are_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    settings = {"depths": [3], "ridges": [1e-3, 1e-2], "seeds": range(48), **QUICK, "steps": 60, "record": 30}
    killed, ended, rng = [], threading.Event(), random.Random(0)

    def kill():  # a worker at the beginning, and one when a third of the networks is done
        for part in (0, 32):
            while not ended.is_set() and len(Reader(tmp_path / "out").read()) < part:
                time.sleep(0.02)
            while not ended.is_set() and not kill_one(tmp_path / "out", set(), rng):
                time.sleep(0.02)
            killed.append(part)

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        thread = threading.Thread(target=kill)
        thread.start()
        found = bnrank.sweep(TASK, executor=client, out=tmp_path / "out", **settings)
        ended.set()
        thread.join()
    assert len(killed) == 2
    assert (found.status == "finished").all()
    assert found.attrs["ran"] == 96
    assert len({worker for worker in found.worker.values.ravel().tolist()}) > 2
    same(found, bnrank.sweep(TASK, processes=1, **settings))
