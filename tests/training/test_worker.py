"""Workers by command line that drain the folder of a sweep."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import xarray as xr

import bnrank
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.folder import SweepFolder
from bnrank.training.sweeping.rows import Reader
from bnrank.training.sweeping.work import drain
from bnrank.training.sweeping.worker import drain_folder

from .common import dead

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
SETTINGS = {"depths": [2], "seeds": range(32), "grid": {"width": [8]}, "steps": 300, "record": 150}
SETTINGS |= {"checkpoint_every": 20, "progress": False}


def start(folder):
    return subprocess.Popen([sys.executable, "-m", "bnrank", "sweep", "--worker", str(folder)])


def test_of_two_workers_one_is_killed_and_nothing_is_lost(tmp_path):
    prepared = bnrank.sweep(TASK, processes=0, out=tmp_path, **SETTINGS)
    assert set(prepared.status.values.ravel()) == {"waiting"}
    first, second = start(tmp_path), start(tmp_path)
    until, killed = time.monotonic() + 60, False
    while not killed and time.monotonic() < until:
        for path in (tmp_path / "leases").glob("[!.]*"):
            try:
                killed = killed or json.loads(path.read_text())["process"] == first.pid
            except (OSError, ValueError):
                continue
        if killed:
            os.kill(first.pid, signal.SIGKILL)
        time.sleep(0.01)
    assert killed
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, 0)
    found = bnrank.sweep(TASK, processes=1, out=tmp_path, **SETTINGS)
    assert found.attrs["ran"] == 0
    expected = bnrank.sweep(TASK, processes=1, **SETTINGS)
    drop = ["seconds", "worker"]
    xr.testing.assert_equal(found.drop_vars(drop), expected.drop_vars(drop))


def drain_as_driver(folder):
    opened = SweepFolder.open(folder, worker=True)
    groups = sorted(opened.groups().values(), key=lambda group: -group.work)
    assert len(list(drain(opened, groups, None))) == 3


@pytest.mark.parametrize("drained", [drain_folder, drain_as_driver])
def test_groups_whose_processes_died_come_last_the_most_deaths_at_the_very_end(tmp_path, drained):
    settings = SETTINGS | {"steps": 2, "record": 1, "seeds": [0], "ridges": [1e-3]}
    bnrank.sweep(TASK, processes=0, out=tmp_path, **settings | {"depths": [2, 3, 4]})
    by_depth = {group.depth: name for name, group in SweepFolder.open(tmp_path).groups().items()}
    for depth, deaths in ((4, 2), (3, 1)):  # the most work would come first
        for _ in range(deaths):
            dead(leases.take(tmp_path, by_depth[depth]))
    drained(tmp_path)
    keys = [row["key"] for row in Reader(tmp_path).read()]
    groups = SweepFolder.open(tmp_path).groups()
    assert keys == [groups[by_depth[depth]].members[0].key for depth in (2, 3, 4)]


def test_a_limit_writes_a_checkpoint_from_which_the_next_worker_goes_on(tmp_path):
    settings = SETTINGS | {"steps": 2000, "seeds": [0]}
    bnrank.sweep(TASK, processes=0, out=tmp_path, **settings)
    assert drain_folder(tmp_path, max_minutes=0.3 / 60).ended == "stopped"
    assert list((tmp_path / "work").glob("*/checkpoint*"))
    found = drain_folder(tmp_path)
    assert (found.ended, found.left, found.total) == ("done", 0, 1)
