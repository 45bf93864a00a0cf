"""`bnrank sweep --worker`: folders of other versions, limits, signals, and a full disk."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch

import bnrank
from bnrank.training.sweeping import leases, worker
from bnrank.training.sweeping.folder import SweepFolder

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
SETTINGS = {"depths": [2, 3], "seeds": [0, 1], "grid": {"width": [4]}, "record": 3, "processes": 0, "progress": False}


@pytest.fixture
def folder(tmp_path):
    """A folder of two groups of two networks, prepared."""
    bnrank.sweep(TASK, out=tmp_path / "swept", steps=3, checkpoint_every=2, **SETTINGS)
    return tmp_path / "swept"


def statuses(folder):
    return bnrank.Sweep.open(folder).to_frame().status.tolist()


def test_a_worker_trains_what_is_left_and_tells_how_much(folder, command):
    done = command("sweep", "--worker", "swept")
    assert (done.code, "swept: trained 2 group(s); 4 of 4 networks are done" in done.out) == (0, True)
    assert statuses(folder) == ["finished"] * 4
    assert "trained 0 group(s); 4 of 4" in command("sweep", "--worker", "swept").out


@pytest.mark.parametrize("name", ["bnrank", "torch"])
def test_a_folder_of_another_version_is_refused_and_both_are_named(folder, command, name):
    own = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(own | {name: "0.0.7"}))
    done = command("sweep", "--worker", "swept")
    assert done.code == 2
    assert f"--worker: 'swept' was begun with {name} 0.0.7, and this is {name} {own[name]}" in done.error.replace(
        f"{folder}", "swept"
    )
    assert statuses(folder) == ["waiting"] * 4


def test_a_folder_of_another_format_is_refused(folder, command):
    own = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(own | {"format": 1}))
    done = command("sweep", "--worker", "swept")
    assert done.code == 2
    assert f"was begun with format 1, and this is format {own['format']}" in done.error


def test_threads_are_those_of_the_trainings_and_are_restored(folder, command, monkeypatch):
    seen, before, train = [], torch.get_num_threads(), worker.train_group

    def looked(*arguments):
        seen.append(torch.get_num_threads())
        return train(*arguments)

    monkeypatch.setattr(worker, "train_group", looked)
    assert command("sweep", "--worker", "swept", "--threads", 3).code == 0
    assert seen == [3, 3]
    assert torch.get_num_threads() == before


# a full disk ---------------------------------------------------------------------------------------------------------


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_stops_a_worker_with_the_path_and_rows_stay_readable(folder, command, monkeypatch):
    write, calls = os.write, []

    def half(descriptor, data):
        calls.append(b'"status"' in data)
        if sum(calls) < 2:
            return write(descriptor, data)
        write(descriptor, data[: len(data) // 2])
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        done = command("sweep", "--worker", "swept")
    assert done.code == 2
    assert f"--worker: cannot write to '{folder}': No space left on device" in done.error
    assert sorted(statuses(folder)) == ["finished", "finished", "waiting", "waiting"]
    row = next(row for row in bnrank.Sweep.open(folder).rows if row["status"] == "finished")
    assert bnrank.Sweep.open(folder).run(depth=row["depth"], seed=0).network(0).depth == row["depth"]
    assert not list((folder / "leases").glob("[!.]*"))
    assert command("sweep", "--worker", "swept").code == 0  # after files were removed
    assert statuses(folder) == ["finished"] * 4


def test_wherever_a_disk_is_full_no_network_fails(tmp_path, folder, command, monkeypatch):
    sync, counts = os.fsync, []
    for k in range(40):
        place, calls = tmp_path / f"swept{k}", []
        shutil.copytree(folder, place)

        def full(descriptor, calls=calls, k=k):
            calls.append(descriptor)
            if len(calls) > k:
                raise FULL
            sync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            done = command("sweep", "--worker", place.name)
        if done.code == 0:
            break
        assert done.code == 2, (k, done.error)
        assert re.search(rf"--worker: cannot write .*{re.escape(str(place))}.*No space left on device", done.error)
        counts.append(statuses(place).count("finished"))
        assert set(statuses(place)) <= {"finished", "waiting"}
        assert not (place / "split").exists()  # nor is one suspected
    assert k > 4
    assert counts == sorted(counts)
    assert {*counts} == {0, 2}
    assert command("sweep", "--worker", "swept0").code == 0  # after files were removed
    assert statuses(tmp_path / "swept0") == ["finished"] * 4


# limits and signals --------------------------------------------------------------------------------------------------


def test_an_idle_worker_ends_with_75_and_leaves_what_others_hold(folder, command):
    first, _ = SweepFolder.open(folder).groups().values()
    held = leases.take(folder, first.id)
    done = command("sweep", "--worker", "swept", "--idle", 0)
    assert done.code == 75
    assert "trained 1 group(s); 2 of 4 networks are done" in done.out
    held.release()
    assert command("sweep", "--worker", "swept", "--idle", 0).code == 0
    assert statuses(folder) == ["finished"] * 4


def test_an_idle_worker_waits_as_long_as_it_may(folder, command):
    first, second = SweepFolder.open(folder).groups().values()
    held = [leases.take(folder, group.id) for group in (first, second)]
    began = time.monotonic()
    assert command("sweep", "--worker", "swept", "--idle", 0.02).code == 75
    assert time.monotonic() - began >= 1.2
    held[0].release()
    threading.Timer(0.5, held[1].release).start()
    assert command("sweep", "--worker", "swept", "--idle", 1).code == 0  # what others let go is trained
    assert statuses(folder) == ["finished"] * 4


def prepared(place):
    bnrank.sweep(TASK, out=place, steps=100_000, checkpoint_every=5, **SETTINGS | {"depths": [2]})


def assert_ended(code, out, place):
    assert code == 75
    assert "trained 0 group(s); 0 of 2 networks are done" in out
    assert list(place.glob("work/*/checkpoint*"))
    assert not list(place.glob("leases/[!.]*"))


def test_a_worker_whose_time_is_over_exits_with_75(tmp_path, command):
    prepared(tmp_path / "swept")
    done = command("sweep", "--worker", "swept", "--max-minutes", 0.005)
    assert_ended(done.code, done.out, tmp_path / "swept")


def test_sigterm_writes_a_checkpoint_and_exits_with_75(tmp_path):
    place = tmp_path / "swept"
    prepared(place)
    arguments = [sys.executable, "-m", "bnrank", "sweep", "--worker", str(place)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as worker:
        until = time.monotonic() + 60
        while not list(place.glob("work/*/checkpoint*")) and time.monotonic() < until:
            time.sleep(0.01)
        worker.terminate()
        out, _ = worker.communicate(timeout=60)
    assert_ended(worker.returncode, out, place)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "x"], "--out: got it with --worker"),
        (["--processes", 2], "--processes: got it with --worker"),
        (["--table", "t.csv"], "--table: got it with --worker"),
        (["--prepare"], "--prepare: got it with --worker"),
        (["grid.toml"], "GRID: got GRID and --worker"),
        (["--example"], "GRID: got --worker and --example"),
    ],
)
def test_options_of_grids_are_refused_with_a_worker(folder, command, options, message):
    done = command("sweep", "--worker", "swept", *options)
    assert (done.code, message in done.error) == (2, True), done.error
    assert statuses(folder) == ["waiting"] * 4
