"""Sweeps whose workers and drivers are killed: nothing is lost, nothing is trained twice, and no bit changes."""

import contextlib
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr

import bnrank
from bnrank._core import store
from bnrank._core.processes import end_gently
from bnrank.training.sweeping import driver, leases
from bnrank.training.sweeping.driver import _tell
from bnrank.training.sweeping.folder import SweepFolder, planned
from bnrank.training.sweeping.groups import Group, decoded, encoded, grouped, store_task
from bnrank.training.sweeping.rows import Reader, Writer
from bnrank.training.sweeping.work import drain, work
from bnrank.training.trainer import CHECKPOINT

from .common import dead

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
QUICK = {"steps": 6, "progress": False, "record": 3, "grid": {"width": [4]}}


def same(found, expected):
    """Equality bit by bit, apart from who trained a network and when."""
    drop = ["seconds", "worker"]
    xr.testing.assert_equal(found.drop_vars(drop).drop_attrs(), expected.drop_vars(drop).drop_attrs())


# groups --------------------------------------------------------------------------------------------------------------


def groups_of(folder, count, **options):
    digest = store_task(folder.path, TASK)
    settings = {"task": digest, "size": TASK.n, "depth": 2, "width": 4, "device": "cpu", "checkpoint_every": None}
    settings |= {"network": {"slope": 0.0, "bias": True, "init": "he"}, "options": {"steps": 5} | options}
    return grouped(settings, [(1e-3, seed, {"seed": seed}) for seed in range(count)])


def test_a_key_depends_on_all_that_decides_the_bits_and_on_nothing_else(tmp_path):
    folder = SweepFolder.create(tmp_path)
    (group,) = groups_of(folder, 3)
    keys = {member.key for member in group.members}
    assert len(keys) == 3
    assert {member.key for member in groups_of(folder, 20)[0].members} >= keys  # not on company
    assert not keys & {member.key for member in groups_of(folder, 3, dtype="float64")[0].members}
    assert Group.from_json(group.to_json()) == group
    assert Group.from_json(group.to_json()).id == group.id
    assert [len(g.members) for g in groups_of(folder, 40)] == [16, 16, 8]


def test_the_number_of_classes_decides(tmp_path):
    labels = torch.arange(40) % 3
    few, many = (bnrank.Task(TASK.x, labels, loss="cross_entropy", classes=count) for count in (3, 5))
    folder = SweepFolder.create(tmp_path)
    assert store_task(folder.path, few) != store_task(folder.path, many)
    first, second = (bnrank.sweep(task, depths=[2], processes=1, **QUICK) for task in (few, many))
    assert second.loss.item() != first.loss.item()


@pytest.mark.parametrize(
    "value",
    [
        *(3, 0.1, "adam", None, True, torch.float64),
        bnrank.training.Adam(lr=(0.1, 0.2), schedule="cosine"),
        bnrank.training.GradientDescent(0.1, norm_power=2),
        bnrank.training.Stop(5, gradient_norm=1e-3),
        bnrank.training.Record(every=2, top_k=3),
    ],
)
def test_options_are_stored_as_text_and_come_back(value):
    assert decoded(json.loads(json.dumps(encoded(value)))) == value


def test_an_option_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeError, match=r"record: got .*expected a number"):
        encoded([object()], "record")


def test_members_that_another_sweep_planned_stay_in_their_groups(tmp_path):
    folder = SweepFolder.create(tmp_path)
    first = planned(folder, groups_of(folder, 20))
    second = planned(SweepFolder.open(tmp_path), groups_of(folder, 21))
    assert [len(group.members) for group in first] == [16, 4]
    assert [len(group.members) for group in second] == [16, 4, 1]
    assert [group.id for group in second[:2]] == [group.id for group in first]
    assert list(drain(folder, second, None)) == ["trained"] * 3
    assert planned(folder, groups_of(folder, 21)) == []


def test_one_more_seed_trains_only_that_seed(tmp_path):
    first = bnrank.sweep(TASK, depths=[2], seeds=range(18), processes=1, out=tmp_path, **QUICK)
    more = bnrank.sweep(TASK, depths=[2], seeds=range(19), ridges=[1e-3], processes=1, out=tmp_path, **QUICK)
    assert (first.attrs["ran"], more.attrs["ran"]) == (18, 1)
    same(more.sel(seed=range(18)), first)


# killed workers ------------------------------------------------------------------------------------------------------


class Killing(Executor):
    """An executor of processes, some of which are killed: the caller hears nothing of what they did."""

    def __init__(self, kills, seed):
        self.kills, self.random, self.killed, self.whole = kills, random.Random(seed), 0, 0.0
        self.context = multiprocessing.get_context("fork")

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        process = self.context.Process(target=function, args=args, kwargs=kwargs)
        began = time.monotonic()
        process.start()
        if self.whole and self.killed < self.kills:
            process.join(self.random.uniform(0.0, self.whole))
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                self.killed += 1
        process.join()
        self.whole = self.whole or time.monotonic() - began  # of the first, which lives
        if process.exitcode == 0:
            future.set_result("whatever")
        else:
            future.set_exception(KeyError("an error of the engine"))  # no BrokenExecutor
        return future


def test_100_networks_survive_killed_workers_bit_by_bit(tmp_path):
    settings = {"depths": [3], "ridges": [1e-3, 1e-2], "seeds": range(50), **QUICK, "steps": 60, "record": 30}
    expected = bnrank.sweep(TASK, processes=1, **settings)
    executor = Killing(12, seed=0)
    found = bnrank.sweep(TASK, executor=executor, out=tmp_path, **settings)
    assert executor.killed >= 3  # of 7 groups, each killed while it was trained if the machine is not slower then
    assert (found.status == "finished").all()
    assert found.attrs["ran"] == 100
    same(found, expected)
    assert not list((tmp_path / "leases").iterdir())
    assert not list((tmp_path / "work").glob("*/*"))
    rows = Reader(tmp_path).read()
    assert len(rows) == len({row["key"] for row in rows}) == 100  # none was trained to its end twice


DRIVER = """
    import sys, bnrank
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
    if __name__ == "__main__":
        bnrank.sweep(task, depths=[3], seeds=range(32), steps=300, record=150, processes=2, progress=False,
                     checkpoint_every=20, grid={"width": [8]}, out=sys.argv[1])
"""


def test_a_killed_driver_and_killed_processes_of_the_pool_lose_nothing(tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(textwrap.dedent(DRIVER))
    sweeping = subprocess.Popen([sys.executable, str(script), str(out)])
    until = time.monotonic() + 120
    killed = set()
    while len(killed) < 2 and time.monotonic() < until:  # two workers, while they train
        time.sleep(0.02)
        for path in (out / "leases").glob("[!.]*"):
            with contextlib.suppress(OSError, ValueError):
                holder = json.loads(path.read_text())["process"]
                if holder not in killed and len(killed) < 2:
                    assert os.getpgid(holder) != os.getpgid(sweeping.pid)  # the terminal's Ctrl-C is not for it
                    os.kill(holder, signal.SIGKILL)
                    killed.add(holder)
    assert len(killed) == 2
    while not Reader(out).read() and time.monotonic() < until:
        time.sleep(0.02)
    sweeping.kill()
    sweeping.wait()
    settings = {"depths": [3], "seeds": range(32), "steps": 300, "record": 150, "progress": False}
    settings |= {"checkpoint_every": 20, "grid": {"width": [8]}, "processes": 1}
    found = bnrank.sweep(TASK, out=out, **settings)
    assert found.attrs["ran"] < 32
    assert (found.status == "finished").all()
    same(found, bnrank.sweep(TASK, **settings))


def test_a_network_that_kills_its_process_fails_alone(tmp_path, monkeypatch):
    from bnrank.training.sweeping import work as module

    trained = module.with_checkpoints

    def deadly(net, task, folder, checkpoint_every, **options):
        if 7 in options["seed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return trained(net, task, folder, checkpoint_every, **options)

    monkeypatch.setattr(module, "with_checkpoints", deadly)
    found = bnrank.sweep(TASK, depths=[2], seeds=range(10), executor=Killing(0, 0), out=tmp_path, **QUICK)
    status = found.status.values.ravel().tolist()
    assert status == ["finished"] * 7 + ["failed"] + ["finished"] * 2
    assert "WorkerDied: 3 processes ended" in found.error.sel(seed=7).item()
    monkeypatch.setattr(module, "with_checkpoints", trained)
    again = bnrank.sweep(TASK, depths=[2], seeds=range(10), processes=1, out=tmp_path, **QUICK)
    assert again.attrs["ran"] == 1
    same(again, bnrank.sweep(TASK, depths=[2], seeds=range(10), processes=1, **QUICK))


def test_two_sweeps_try_a_failed_network_again_once(tmp_path):
    folder = SweepFolder.create(tmp_path)
    (group,) = planned(folder, groups_of(folder, 3))
    with Writer(tmp_path) as writer:
        writer.append([{"key": m.key, "status": "failed", "error": "", "call": "1"} for m in group.members])
    assert planned(folder, [group]) != []
    (first,) = planned(SweepFolder.open(tmp_path), [group])
    other = SweepFolder.open(tmp_path)
    (second,) = planned(other, [group.of(group.members[1:])])  # with another grid
    assert second.id == first.id
    with Writer(tmp_path) as writer:
        writer.append([{"key": m.key, "status": "failed", "error": "", "call": "2"} for m in first.members])
    assert list(drain(other, [second], "3")) == ["stored"]
    assert {row["call"] for row in Reader(tmp_path).read()} == {"1", "2"}
    assert list(drain(other, planned(other, [group]), "3")) == ["trained"]  # later calls try again


class Hung(Executor):
    """An executor whose first worker takes the lease of a group and hangs."""

    def __init__(self, folder):
        self.folder, self.process = folder, None

    def submit(self, function, path, text, *rest):
        future = Future()
        if self.process is None:
            self.process = multiprocessing.get_context("fork").Process(target=self.hang, args=(text,))
            self.process.start()
        else:
            future.set_result(function(path, text, *rest))
        return future

    def hang(self, text):
        leases.take(self.folder, Group.from_json(text).id)
        time.sleep(60)


def test_a_worker_of_an_executor_that_hangs_holds_nothing_up(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TOUCHED", 0.0)
    untouched = leases._untouched
    monkeypatch.setattr(leases, "_untouched", lambda *args: 100 * untouched(*args))
    executor = Hung(tmp_path)
    found = bnrank.sweep(TASK, depths=[2], seeds=[0, 1], executor=executor, out=tmp_path, **QUICK)
    assert (found.status == "finished").all()
    assert executor.process.is_alive()
    executor.process.kill()
    executor.process.join()


def test_what_waits_for_the_lease_of_another_process_is_trained_once(tmp_path):
    folder = SweepFolder.create(tmp_path)
    (group,) = planned(folder, groups_of(folder, 2))
    lease = leases.take(folder.path, group.id)
    arguments = str(folder.path), group.to_json(), None, None, 2, os.getpid()
    assert work(*arguments) == "busy"
    lease.release()
    assert work(*arguments) == "trained"
    assert work(*arguments) == "stored"


def _drained(folder, text):
    end_gently()
    list(drain(SweepFolder.open(folder), [Group.from_json(text)], None))


def test_a_process_that_is_asked_to_end_writes_a_checkpoint_and_gives_its_lease_back(tmp_path):
    folder = SweepFolder.create(tmp_path)
    (group,) = groups_of(folder, 2, **{"steps": 10**7, "record": 10**7})
    (group,) = planned(folder, [replace(group, checkpoint_every=1009)])
    process = multiprocessing.get_context("fork").Process(target=_drained, args=(tmp_path, group.to_json()))
    process.start()
    until = time.monotonic() + 60
    while folder.progress(group) is None and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode not in (None, 0)
    assert not leases.names(tmp_path)
    assert store.read(folder.checkpoints(group) / CHECKPOINT).about["step"] % 1009  # where it was


def test_networks_of_dead_workers_are_waiting_and_of_live_ones_running(tmp_path):
    folder = SweepFolder.create(tmp_path)
    group, other = planned(folder, groups_of(folder, 20))
    assert list(drain(folder, [other], None)) == ["trained"]
    lease = leases.take(folder.path, group.id)
    assert bnrank.Sweep.open(tmp_path).counts == {"running": 16, "finished": 4}
    assert np.isfinite(bnrank.Sweep.open(tmp_path).seconds_left)
    dead(lease)
    assert bnrank.Sweep.open(tmp_path).counts == {"waiting": 16, "finished": 4}
    assert bnrank.Sweep.open(tmp_path).seconds_left == float("inf")
    assert bnrank.Sweep.open(tmp_path).path == tmp_path


def test_a_worker_that_was_taken_over_leaves_the_checkpoints_to_the_other(tmp_path, monkeypatch):
    from bnrank.training.sweeping import work as module

    folder = SweepFolder.create(tmp_path)
    (group,) = planned(folder, groups_of(folder, 2))
    trained = module.with_checkpoints

    def slept(*args, **options):
        dead(leases.Lease(tmp_path / "leases" / group.id, 1, ""))
        assert leases.take(tmp_path, group.id) is not None
        return trained(*args, **options)

    monkeypatch.setattr(module, "with_checkpoints", slept)
    assert list(drain(folder, [group], None)) == ["trained"]
    assert leases.holder(tmp_path, group.id) is not None
    assert (tmp_path / "work" / group.id).is_dir()


def test_a_full_disk_is_no_failure_of_a_network(tmp_path, monkeypatch):
    def full(self, group):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SweepFolder, "checkpoints", full)
    with pytest.raises(ValueError, match=r"out: cannot write to .*No space left"):
        bnrank.sweep(TASK, depths=[2], processes=1, out=tmp_path, **QUICK)
    assert Reader(tmp_path).read() == []


class Failing(Executor):
    """An executor whose first calls fail, and that counts its calls."""

    def __init__(self, failures):
        self.failures, self.calls = failures, 0

    def submit(self, function, /, *args, **kwargs):
        future, self.calls = Future(), self.calls + 1
        if self.calls <= self.failures:
            future.set_exception(KeyError("an error of the engine"))
        else:
            future.set_result(function(*args, **kwargs))
        return future


def test_all_members_of_a_group_may_end_their_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "POLL", 0.0)
    executor = Failing(3 + 3 * 16)  # as if the group died three times, and then each of its members
    found = bnrank.sweep(TASK, depths=[2], seeds=range(16), executor=executor, out=tmp_path, **QUICK)
    assert (found.status == "finished").all()


def test_a_busy_group_is_submitted_once_a_poll(tmp_path, monkeypatch):
    folder = SweepFolder.create(tmp_path)
    first, second = planned(folder, groups_of(folder, 20))
    lease, slept = leases.take(folder.path, first.id), []
    future = Future()  # of the second group, at work elsewhere

    def submit(function, path, text, *rest):
        if Group.from_json(text).id == second.id and not future.done():
            return future
        done = Future()
        done.set_result(function(path, text, *rest))
        return done

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            lease.release()
            future.set_result("whatever")

    monkeypatch.setattr(driver.time, "sleep", sleep)
    executor = SimpleNamespace(submit=submit)
    driver._on_executor(folder, [first, second], "call", executor, folder.refresh)
    assert len(slept) >= 3
    assert folder.is_done(*first.members, *second.members)


def test_what_a_worker_left_that_was_killed_after_its_rows_is_removed(tmp_path):
    folder = SweepFolder.create(tmp_path)
    groups = planned(folder, groups_of(folder, 20))
    assert list(drain(folder, groups, None)) == ["trained"] * 2
    for group in groups:
        folder.checkpoints(group)
        lease = leases.take(tmp_path, group.id)
    dead(leases.Lease(tmp_path / "leases" / groups[0].id, 1, ""))
    assert driver.run_all(folder, groups, None, 1, False) == 0
    assert [path.name for path in (tmp_path / "leases").iterdir()] == [groups[1].id]  # that of a live process stays
    assert [path.name for path in (tmp_path / "work").iterdir()] == [groups[1].id]
    lease.release()


class Client:
    """What a client of Dask offers."""

    def __init__(self, executor):
        self.executor = executor

    def get_executor(self, *, pure):
        assert not pure  # the same call again is another attempt
        return self.executor


def test_a_client_with_an_executor_is_taken_and_anything_else_refused():
    with ThreadPoolExecutor(1) as executor:
        found = bnrank.sweep(TASK, depths=[2], seeds=[0, 1], executor=Client(executor), **QUICK)
    same(found, bnrank.sweep(TASK, depths=[2], seeds=[0, 1], processes=1, **QUICK))
    with pytest.raises(TypeError, match=r"executor: got 3 .*expected a concurrent\.futures\.Executor, a dask"):
        bnrank.sweep(TASK, depths=[2], executor=3, **QUICK)


class Refusing(ThreadPoolExecutor):
    def submit(self, *args, **kwargs):
        raise RuntimeError("the cluster is gone")


def test_an_executor_that_takes_no_work_leaves_rows_that_say_so(tmp_path):
    found = bnrank.sweep(TASK, depths=[2, 3], executor=Refusing(1), out=tmp_path, **QUICK)
    assert (found.status == "failed").all()
    assert "the cluster is gone" in found.error.values.ravel()[0]
    assert bnrank.sweep(TASK, depths=[2, 3], processes=1, out=tmp_path, **QUICK).attrs["ran"] == 2


# folders -------------------------------------------------------------------------------------------------------------


def test_folders_of_something_else_and_of_other_versions_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"out: got .*which holds 'notes.txt', expected a new or empty folder"):
        bnrank.sweep(TASK, depths=[2], processes=1, out=tmp_path, **QUICK)
    out = tmp_path / "out"
    bnrank.sweep(TASK, depths=[2], processes=1, out=out, **QUICK)
    about = json.loads((out / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(about | {"torch": "1.0"}))
    with pytest.raises(ValueError, match=rf"was begun with torch 1\.0, and this is torch {torch.__version__[:3]}"):
        bnrank.sweep(TASK, depths=[2], processes=1, out=out, **QUICK)


@pytest.mark.parametrize("engine", [None, ThreadPoolExecutor])
def test_a_folder_that_was_removed_begins_anew_in_the_same_process(tmp_path, engine):
    settings = {"depths": [2], "seeds": [0, 1], "processes": 1, "out": tmp_path / "out", **QUICK}
    with contextlib.nullcontext() if engine is None else engine(1) as executor:
        for _ in range(2):
            found = bnrank.sweep(TASK, executor=executor, **settings)
            assert found.attrs["ran"] == 2
            assert (found.status == "finished").all()
            shutil.rmtree(tmp_path / "out")


def test_sweeps_without_a_folder_leave_no_open_files():
    def open_files():
        return len(list(Path("/dev/fd").iterdir()))

    bnrank.sweep(TASK, depths=[2], processes=1, **QUICK)
    before = open_files()
    for _ in range(3):
        bnrank.sweep(TASK, depths=[2], processes=1, **QUICK)
    assert open_files() == before


class UnreadableError(ValueError):
    """An error that can be pickled, but not read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("error", [ValueError("plain"), UnreadableError("one", "two")])
def test_errors_of_workers_reach_the_driver_even_if_they_cannot_be_pickled(error):
    ours, theirs = multiprocessing.Pipe(duplex=False)
    _tell(theirs, error)
    assert ours.poll(5)
    found = ours.recv()
    assert isinstance(found, ValueError | RuntimeError)
    assert str(error) in str(found)
