"""Workers by command line that drain the folder of a sweep."""

import json
import os
import signal
import subprocess
import sys
import time

import xarray as xr

import bnrank
from bnrank.training.sweeping.worker import drain_folder

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


def test_a_limit_writes_a_checkpoint_from_which_the_next_worker_goes_on(tmp_path):
    settings = SETTINGS | {"steps": 2000, "seeds": [0]}
    bnrank.sweep(TASK, processes=0, out=tmp_path, **settings)
    assert drain_folder(tmp_path, max_minutes=0.3 / 60).ended == "stopped"
    assert list((tmp_path / "work").glob("*/checkpoint*"))
    found = drain_folder(tmp_path)
    assert (found.ended, found.left, found.total) == ("done", 0, 1)
