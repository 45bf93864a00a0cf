"""Several trainings at the same time: threads, processes, and a driver that is killed."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import rich.progress
import torch
import xarray as xr
from threadpoolctl import threadpool_info

import bnrank
from bnrank._core import store
from bnrank._core.progress import bar
from bnrank.networks.files import load_module
from bnrank.networks.graph import values
from bnrank.training import Record
from bnrank.training.ensemble import Workers
from bnrank.training.sweeping import driver as sweep_driver
from bnrank.training.sweeping import work

from .common import HERE
from .driver import TASK, start

NET = bnrank.MLP([5, 6, 4], seed=0)
QUICK = {"progress": False, "optimizer": "adam", "record": 50}


def thread_settings():
    """PyTorch's number of threads in this thread and in a new one, and that of every BLAS."""
    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(torch.get_num_threads).result()
    return torch.get_num_threads(), new, [pool["num_threads"] for pool in threadpool_info()]


class Pause:
    """A watcher that stops a training at its first row, until the test goes on."""

    def __init__(self):
        self.there, self.go = threading.Event(), threading.Event()

    def observe(self, **row):
        self.there.set()
        assert self.go.wait(30)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_threads_of_libraries_are_restored_in_whatever_order_trainings_end(first_ends_first):
    before, inside, after = thread_settings(), [], {}
    begun = [threading.Event(), threading.Event()]
    end = [threading.Event(), threading.Event()]

    def work(i):
        own = torch.get_num_threads()
        with Workers() as workers:
            with Workers() as nested:
                assert torch.get_num_threads() == nested.threads == 1
            assert torch.get_num_threads() == 1
            with workers.all_threads():
                inside.append((workers.threads, torch.get_num_threads()))
            begun[i].set()
            assert end[i].wait(30)
        after[i] = own, torch.get_num_threads()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread, event in zip(threads, begun, strict=True):
        thread.start()
        assert event.wait(30)
    for i in (0, 1) if first_ends_first else (1, 0):
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        end[i].set()
        threads[i].join()
    assert thread_settings() == before
    assert inside == [(2, 2)] * 2
    assert after == {0: (2, 2), 1: (1, 2)}  # the second inherited the limit of the first


@pytest.mark.usefixtures("two_threads")
def test_threads_of_libraries_are_restored_after_errors():
    before = thread_settings()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"), Workers(2) as workers, workers.all_threads():
            raise RuntimeError("mine")
    assert thread_settings() == before


@pytest.mark.usefixtures("two_threads")
def test_trainings_in_threads_equal_their_solo_runs():
    before = thread_settings()

    def one(i):
        time.sleep(0.02 * i)
        return bnrank.train(NET, TASK, steps=50 + 100 * (i % 3), seed=i, members=2, **QUICK).parameters

    alone = [one(i) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert thread_settings() == before


def test_one_progress_bar_is_shown_at_a_time(monkeypatch):
    shown, begin = [], rich.progress.Progress.start
    monkeypatch.setattr(rich.progress.Progress, "start", lambda self: shown.append(self) or begin(self))
    with bar(True, "outer", 2) as outer:
        with bar(True, "inner", 2) as inner:
            inner(1, "inner")
        outer(1, "outer")
    assert len(shown) == 1
    with pytest.raises(RuntimeError, match="mine"), bar(True, "next", 2):
        raise RuntimeError("mine")
    with bar(True, "last", 2):
        pass
    assert len(shown) == 3


def test_random_generators_are_restored_with_several_traces_at_a_time():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    def work(seed, pause):
        with values.generators(seed) as drawn:
            first = float(torch.rand(1))
            time.sleep(pause)
            assert drawn()
            return first

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, [0, 1, 0], [0.05, 0.1, 0.1]))  # the first one ends first
    assert found[0] == found[2] != found[1]
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_files_loaded_at_the_same_time_find_what_lies_beside_them_first(tmp_path):
    path = list(sys.path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"beside_{name}.py").write_text("import torch\nmake = torch.nn.Identity\n")
        text = f"import sys, time\ntime.sleep(0.05)\nassert sys.path[0] == {str(tmp_path / name)!r}\n"
        text += f"from beside_{name} import make\n"
        (tmp_path / name / f"{name}.py").write_text(text)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: load_module(f"{tmp_path / name / name}.py:make"), ("a", "b")))
    assert [type(net).__name__ for net in found] == ["Identity"] * 2
    assert sys.path == path


@pytest.mark.parametrize(
    "second",
    [
        lambda run, folder: bnrank.train(NET, TASK, steps=10, out=folder, **QUICK),
        lambda run, folder: bnrank.flow(NET, (TASK.x, TASK.y), 1.0, out=folder),
        lambda run, folder: run.save(folder),
    ],
    ids=["train", "flow", "save"],
)
def test_a_folder_in_which_a_training_is_at_work_is_refused(second, tmp_path):
    run = bnrank.train(NET, TASK, steps=5, **QUICK)
    pause = Pause()
    options = {**QUICK, "record": Record(5, watch=pause)}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bnrank.train, NET, TASK, steps=10, out=tmp_path, **options)
        assert pause.there.wait(30)
        try:
            with pytest.raises(ValueError, match=r"^out: .* is in use by this process"):
                second(run, tmp_path)
        finally:
            pause.go.set()
        first.result()
    assert not (tmp_path / ".lock").exists()
    again = bnrank.train(NET, TASK, steps=10, out=tmp_path, **QUICK | {"record": 5})
    assert torch.equal(again.parameters, first.result().parameters)


def test_two_sweeps_in_a_folder_share_the_work(tmp_path, monkeypatch):
    there, go = threading.Event(), threading.Event()
    options = {"depths": [2, 3], "grid": {"width": [4]}, "out": tmp_path, "processes": 1, "steps": 5}

    def train(net, *args, trained=work.with_checkpoints, **kwargs):
        run = trained(net, *args, **kwargs)
        if net.depth == 3 and not there.is_set():  # the first ensemble of the first sweep
            there.set()
            assert go.wait(30)
        return run

    def told(done, text):
        if threading.current_thread() is threading.main_thread() and done == 1:
            go.set()  # the second sweep has trained the other ensemble

    monkeypatch.setattr(work, "with_checkpoints", train)
    monkeypatch.setattr(sweep_driver, "bar", lambda *_: contextlib.nullcontext(told))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(bnrank.sweep, TASK, progress=False, **options)
        assert there.wait(30)
        second = bnrank.sweep(TASK, progress=False, **options)
        first = first.result()
    assert (first.ran, second.ran) == (1, 1)
    xr.testing.assert_equal(*(found.drop_vars(["seconds", "worker"]) for found in (first, second)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_their_driver_and_the_next_sweep_goes_on(tmp_path):
    folder, driver = tmp_path / "out", Path(HERE, "driver.py")
    with subprocess.Popen([sys.executable, str(driver), str(folder)]) as process:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("work/*/checkpoint.safetensors"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        workers = _children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 5
    while any(map(_is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) >= 2
    assert not [number for number in workers if _is_alive(number)]
    found = [(path.parent, store.read(path).about["step"]) for path in folder.glob("work/*/checkpoint*.safetensors")]
    assert len({group for group, _ in found}) == 2
    assert min(step for _, step in found) > 0
    resumed = start(folder, 1)
    assert (resumed.ran, resumed.status.values.ravel().tolist()) == (2, ["finished"] * 2)
    whole = start(tmp_path / "other", 1)
    xr.testing.assert_equal(*(found.drop_vars(["seconds", "worker"]) for found in (resumed, whole)))


def _children(number):
    return [int(n) for n in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def _is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
