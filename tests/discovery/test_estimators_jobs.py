"""Trainings of a fit in several processes: the same bits, Ctrl-C, workers that end, and what n_jobs means."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch

from bnrank.discovery import BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.jobs import processes_for, results_of
from bnrank.discovery.estimators.keeping import folder_of_trainings, kept
from bnrank.discovery.estimators.progress import current, voice

rng = np.random.default_rng(0)
X = rng.normal(size=(110, 3))
Y = np.tanh(2 * X[:, :1] + X[:, 1:2]) ** 2 @ np.array([[1.0, -1.0]]) + 0.05 * rng.normal(size=(110, 2))
QUICK = {"steps": 60, "ridges": [0.01, 0.003], "width": 10, "n_networks": 1}


def after(seconds: float, value: int) -> Callable[[], tuple[int, int, int, str]]:
    """Return a local function, which workers can read although they cannot import this file."""

    def call() -> tuple[int, int, int, str]:
        time.sleep(seconds)
        current().advance(10 * value)
        return value, os.getpid(), torch.get_num_threads(), str(folder_of_trainings())

    return call


def test_results_come_in_the_order_of_the_calls_from_other_processes(tmp_path):
    calls = [after(seconds, i) for i, seconds in enumerate((0.4, 0.0, 0.0, 0.0, 0.2))]
    with voice(False) as told, kept(tmp_path):
        results = results_of(calls, 2)
        assert told.done == 100
    assert [result[0] for result in results] == [0, 1, 2, 3, 4]
    assert os.getpid() not in {result[1] for result in results}
    assert len({result[1] for result in results}) == 2
    assert {result[2:] for result in results} == {(1, str(tmp_path))}  # threads, folder


def test_one_process_makes_the_same_calls_on_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with voice(False) as told:
            results = results_of([after(0, i) for i in range(3)], 1)
            assert told.done == 30
        assert {result[1:] for result in results} == {(os.getpid(), 1, "None")}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert results_of([], 2) == []


def test_an_error_in_a_worker_is_raised_and_a_killed_worker_is_named():
    with pytest.raises(ValueError, match="no number"):
        results_of([after(0, 0), partial(int, "no number")], 2)
    with pytest.raises(RuntimeError, match=r"n_jobs: a worker process ended abruptly .*, expected 2 processes"):
        results_of([after(0, 0), partial(signal.raise_signal, signal.SIGKILL)], 2)


def same(one, two, x) -> None:
    np.testing.assert_array_equal(two.predict(x), one.predict(x))
    np.testing.assert_array_equal(two.held_out_, one.held_out_)
    np.testing.assert_array_equal(two.input_directions_, one.input_directions_)
    assert repr(two.stability_) == repr(one.stability_)
    assert str(two.summary()) == str(one.summary())


def test_the_bits_of_a_fit_do_not_depend_on_the_number_of_processes(tmp_path):
    one = BottleneckRegressor(**QUICK).fit(X, Y)
    assert one.model_ == "network"
    same(one, BottleneckRegressor(**QUICK, n_jobs=2).fit(X, Y, out=tmp_path), X)
    kept_by_two = {path.name for path in tmp_path.iterdir()}
    assert len(kept_by_two) == 9  # networks one by one, but for those of the other depth on the first fold
    BottleneckRegressor(**QUICK).fit(X, Y, out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept_by_two


def test_the_bits_of_a_classifier_do_not_depend_on_the_number_of_processes():
    labels = np.digitize(Y[:, 0], [0.3, 0.7])
    one, two = (BottleneckClassifier(**QUICK, n_jobs=n).fit(X, labels) for n in (1, 2))
    same(one, two, X)


def test_n_jobs_has_the_meaning_of_scikit_learn():
    assert processes_for(None) == 1
    assert processes_for(3) == processes_for(np.int64(3)) == 3
    assert processes_for(-1) == joblib.cpu_count()
    with joblib.parallel_config(n_jobs=2):
        assert processes_for(None) == 2
        assert processes_for(1) == 1
    for backend in ("threading", "multiprocessing"):
        with joblib.parallel_config(backend, n_jobs=2):
            assert processes_for(None) == processes_for(2) == 1
    assert results_of([partial(processes_for, n) for n in (None, 2)], 2) == [1, 1]  # in a worker


def test_bits_do_not_depend_on_threads(monkeypatch):
    """Also where the last network is cut and trained on."""
    polished = []
    polish = learning.polish
    monkeypatch.setattr(learning, "polish", lambda *given: polished.append(polish(*given)) or polished[-1])
    x, before = rng.normal(size=(900, 20)), torch.get_num_threads()
    y = np.abs(x[:, :10])
    options = {"n_components": 3, "ridges": [1e-3], "steps": 40, "depth": 4, "width": 40, "n_networks": 1}
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(BottleneckRegressor(**options).fit(x, y).predict(x))
    finally:
        torch.set_num_threads(before)
    assert len(polished) == 2
    assert np.array_equal(*made)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), ("2", TypeError), (True, TypeError), (1.5, TypeError)])
def test_other_values_of_n_jobs_are_refused(value, error):
    with pytest.raises(error, match=r"n_jobs: got .*, expected a number of processes, -1 for"):
        BottleneckRegressor(n_jobs=value).fit(X[:20], Y[:20])


SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import test_estimators_jobs as jobs
found = jobs.BottleneckRegressor(**jobs.LONG, n_jobs=2, progress=True)
try:
    found.fit(jobs.X, jobs.Y, out=sys.argv[2])
except KeyboardInterrupt:
    print(getattr(found, "partial_", None), hasattr(found, "summary_"), found.summary_.reason, flush=True)
"""
LONG = {**QUICK, "steps": 200, "n_networks": 4}


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals to a group of processes")
def test_ctrl_c_in_a_terminal_gives_a_partial_result_and_keeps_trainings(tmp_path):
    """A terminal sends SIGINT to the process and to its workers."""
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "kept")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("fitting: all rows"):
            time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            break
    said, errors = process.communicate(timeout=300)
    assert said.startswith("True True undetermined: partial result, since the fit was interrupted"), errors
    assert "Traceback" not in errors
    assert process.returncode == 0
    folders = list((tmp_path / "kept").iterdir())
    assert len([folder for folder in folders if list(folder.glob("*.nc"))]) >= 5
    assert all(list(folder.glob("*.nc")) for folder in folders)  # those under way were stopped, not killed
    found = BottleneckRegressor(**LONG).fit(X, Y, out=tmp_path / "kept")
    assert (found.partial_, found.n_components_) == (False, 1)
