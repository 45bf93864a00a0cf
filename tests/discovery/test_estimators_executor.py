"""Fits whose trainings an executor runs: the same bits as alone, also where workers die."""

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from sklearn.base import clone

from bnrank.discovery import BottleneckRegressor

SETTINGS = {"depth": 3, "width": 8, "steps": 12, "n_networks": 1, "ridges": [1e-2, 1e-3]}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(140, 4))
    return x, x[:, :2] @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(140, 3))


class Breaking(Executor):
    """An executor that loses its second training, and takes no more work."""

    def __init__(self, lasting=False, cancels=False):
        self.calls, self.lasting, self.cancels = 0, lasting, cancels

    def submit(self, function, /, *args, **kwargs):
        self.calls += 1
        if self.calls > 2 and not self.lasting:
            raise BrokenProcessPool("a process was killed")
        future = Future()
        if self.calls == 2 and self.cancels:
            future.cancel()
            future.set_running_or_notify_cancel()
            return future
        if self.calls == 2:
            future.set_exception(BrokenProcessPool("a process was killed"))
            return future
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("kind", ["threads", "one that loses a training", "one that cancels a training", "a function"])
def test_an_executor_gives_the_same_bits(table, kind):
    x, y = table
    expected = BottleneckRegressor(**SETTINGS).fit(x, y).predict(x)
    made = []

    def make():
        made.append(Breaking(lasting=len(made) >= 1))
        return made[-1]

    with ThreadPoolExecutor(2) as threads:
        executor = {"threads": threads, "a function": make}.get(kind, Breaking(True, cancels="cancels" in kind))
        fitted = BottleneckRegressor(**SETTINGS, executor=executor).fit(x, y)
    np.testing.assert_array_equal(fitted.predict(x), expected)
    assert kind != "a function" or len(made) >= 2


def test_an_executor_is_passed_on_by_clone_and_not_saved(table, tmp_path):
    x, y = table
    with ThreadPoolExecutor(1) as threads:
        estimator = BottleneckRegressor(**SETTINGS, executor=threads)
        assert clone(estimator).executor is threads
        assert clone(estimator).get_params() == estimator.get_params()
        estimator.fit(x, y).save(tmp_path / "fit.safetensors")
    again = BottleneckRegressor.load(tmp_path / "fit.safetensors")
    assert again.executor is None
    np.testing.assert_array_equal(again.predict(x), estimator.predict(x))


class Failing(Executor):
    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_exception(OSError("the cluster is gone"))
        return future


def test_an_executor_that_loses_everything_is_an_error(table):
    with pytest.raises(RuntimeError, match=r"executor: a training failed 3 times: OSError\('the cluster"):
        BottleneckRegressor(**SETTINGS, executor=Failing()).fit(*table)
    with pytest.raises(TypeError, match="executor: got 3"):
        BottleneckRegressor(**SETTINGS, executor=3).fit(*table)


def test_dask_fits_the_same_bits(table):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        found = BottleneckRegressor(**SETTINGS, executor=client).fit(*table)
    expected = BottleneckRegressor(**SETTINGS).fit(*table)
    np.testing.assert_array_equal(found.predict(table[0]), expected.predict(table[0]))
