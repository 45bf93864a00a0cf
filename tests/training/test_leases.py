"""Rows and leases of sweeps: what many processes append and share."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bnrank.training.sweeping import driver, leases
from bnrank.training.sweeping.folder import SweepFolder
from bnrank.training.sweeping.groups import Member
from bnrank.training.sweeping.rows import Reader, Writer

from .common import dead


def test_rows_of_many_writers_are_read_once_and_exactly(tmp_path):
    rng = np.random.default_rng(0)
    written, reader = [], Reader(tmp_path)
    assert reader.read() == []
    for _ in range(3):
        with Writer(tmp_path) as writer:
            for _ in range(3):
                rows = [{"key": str(rng.integers(10**9)), "loss": float(rng.normal()), "text": "ü\n"} for _ in range(4)]
                writer.append(rows)
                written += rows
        found = reader.read()
        assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, written[-12:]))
    assert reader.read() == []
    assert sorted(map(json.dumps, Reader(tmp_path).read())) == sorted(map(json.dumps, written))


def test_a_half_written_or_damaged_row_is_not_read_and_the_others_are(tmp_path):
    with Writer(tmp_path) as writer:
        writer.append([{"key": "a"}, {"key": "b"}])
    whole = writer.path.read_bytes()
    for cut in range(len(whole)):
        writer.path.write_bytes(whole[:cut])
        found = [row["key"] for row in Reader(tmp_path).read()]
        assert found == ["a", "b"][: whole[:cut].count(b"\n")]
    reader = Reader(tmp_path)
    writer.path.write_bytes(whole[:-3])
    assert [row["key"] for row in reader.read()] == ["a"]
    writer.path.write_bytes(whole)  # its end arrives
    assert [row["key"] for row in reader.read()] == ["b"]
    writer.path.write_bytes(whole.replace(b'"a"', b'"c"'))
    assert [row["key"] for row in Reader(tmp_path).read()] == ["b"]


def test_a_lease_is_taken_by_one_and_taken_over_when_its_process_is_gone(tmp_path):
    lease = leases.take(tmp_path, "g")
    assert leases.take(tmp_path, "g") is None
    held = leases.holder(tmp_path, "g")
    assert held["process"] == os.getpid()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lease.path.write_text(json.dumps(held | {"process": gone.pid}))
    again = leases.take(tmp_path, "g")
    assert again.attempt == 2
    lease.path.write_text(json.dumps(held | {"started": "1"}))  # another process with the number of a dead one
    assert leases.take(tmp_path, "g").attempt == 2
    assert [path.name for path in lease.path.parent.iterdir()] == ["g"]


def test_a_lease_of_another_machine_expires_without_touches(tmp_path):
    lease = leases.take(tmp_path, "g")
    held = leases.holder(tmp_path, "g")
    lease.path.write_text(json.dumps(held | {"place": "elsewhere"}))
    assert leases.take(tmp_path, "g", expires=60.0) is None
    past = time.time() - 61
    os.utime(lease.path, (past, past))
    assert leases.take(tmp_path, "g", expires=60.0).attempt == 2


def test_a_lease_is_touched_while_it_is_held(tmp_path):
    lease = leases.take(tmp_path, "g")
    os.utime(lease.path, (1, 1))
    with leases.touching(lease, every=0.01):
        until = time.monotonic() + 10
        while lease.path.stat().st_mtime == 1 and time.monotonic() < until:
            sum(range(1000))
        assert lease.path.stat().st_mtime > 1
    assert not lease.path.exists()


@pytest.mark.parametrize("faster", [True, False])
def test_a_slow_process_takes_no_lease_from_one_that_took_over(tmp_path, monkeypatch, faster):
    dead(leases.take(tmp_path, "g"))
    expired, found = leases._expired, []

    def slowly(*args):  # another process takes over after this one has read the dead one's lease
        monkeypatch.setattr(leases, "_expired", expired)
        if faster:
            found.append(leases.take(tmp_path, "g"))
        return True

    def seen(method):  # and a third comes whenever no lease is there
        def moved(self, *args, **options):
            result = method(self, *args, **options)
            if self.name == "g":
                found.append(leases.take(tmp_path, "g"))
            return result

        return moved

    monkeypatch.setattr(leases, "_expired", slowly)
    monkeypatch.setattr(Path, "rename", seen(Path.rename))
    monkeypatch.setattr(Path, "unlink", seen(Path.unlink))
    found.append(leases.take(tmp_path, "g"))
    assert sum(lease is not None for lease in found) == 1


def test_a_holder_that_was_taken_over_leaves_the_lease_to_the_other(tmp_path):
    first = leases.take(tmp_path, "g")
    dead(first)
    second = leases.take(tmp_path, "g")
    first.release()
    assert second.is_own()
    second.release()
    assert not second.path.exists()


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_damaged_lease_expires(tmp_path, text):
    lease = leases.take(tmp_path, "g")
    lease.path.write_text(text)  # as after a power failure
    assert leases.take(tmp_path, "g") is None
    os.utime(lease.path, (1, 1))
    assert leases.take(tmp_path, "g") is not None


def test_a_lease_that_this_process_forgot_is_taken_over(tmp_path):
    lease = leases.take(tmp_path, "g")
    leases._held.pop(lease.id)  # as after Ctrl-C before it was touched first
    assert leases.take(tmp_path, "g") is not None


def _race(folder, start, results):
    start.wait()
    results.put(leases.take(Path(folder), "g") is not None)
    time.sleep(1)


def test_of_many_processes_one_takes_over(tmp_path):
    lease = leases.take(tmp_path, "g")
    lease.path.write_text(json.dumps(leases.holder(tmp_path, "g") | {"started": "1"}))
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path, start, results)) for _ in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    assert sum(results.get(timeout=30) for _ in racers) == 1
    for racer in racers:
        racer.join()


@pytest.mark.parametrize("order", [0, 1])
def test_a_trained_network_counts_wherever_the_row_of_its_failure_stands(tmp_path, order):
    place = tmp_path / "rows"
    rows = [{"key": "a", "status": "failed", "call": "1"}, {"key": "a", "status": "finished", "call": "2"}]
    for row in rows:
        with Writer(tmp_path) as writer:
            writer.append([row])
        writer.path.rename(place / f"{(row is rows[0]) ^ order}.jsonl")  # files are read in the order of their names
    folder = SweepFolder(tmp_path)
    folder.refresh()
    assert folder.rows["a"]["status"] == "finished"


def test_a_failure_counts_that_was_not_known_when_a_network_was_planned(tmp_path):
    for failures in range(3):
        folder = SweepFolder(tmp_path)
        folder.refresh()
        done = [folder.is_done(Member("a", 0.0, 0, {}, known)) for known in range(3)]
        assert done == [failures > known for known in range(3)]
        with Writer(tmp_path) as writer:
            writer.append([{"key": "a", "status": "failed"}])


def test_a_death_after_progress_does_not_count(tmp_path):
    attempts = []
    for progress in (None, None, "step 10", "step 10", "step 20", None):
        lease = leases.take(tmp_path, "g", progress=progress)
        attempts.append(lease.attempt)
        dead(lease)
    assert attempts == [1, 2, 1, 2, 1, 2]


def test_a_group_with_more_deaths_than_asked_for_is_left(tmp_path):
    dead(leases.take(tmp_path, "g", deaths=0))
    assert leases.take(tmp_path, "g", deaths=0) is None
    lease = leases.take(tmp_path, "g", progress="step 10", deaths=0)  # a death after progress does not count
    assert lease.attempt == 1
    dead(lease)
    dead(leases.take(tmp_path, "g", deaths=1))
    assert leases.take(tmp_path, "g", deaths=1) is None
    assert leases.take(tmp_path, "g", deaths=2).attempt == 3


def test_a_process_that_its_driver_takes_along_does_not_count(tmp_path):
    for process, attempt in ((os.getpid(), 1), (1, 2)):  # not of the parent of a fork
        lease = leases.take(tmp_path, str(process))
        lease.path.write_text(json.dumps(json.loads(lease.path.read_text()) | {"process": process}))
        leases.excuse()
        dead(lease)
        assert leases.take(tmp_path, str(process)).attempt == attempt


@pytest.mark.parametrize("place", ["another boot pid:[1]", None])
def test_a_process_that_cannot_be_seen_from_here_is_not_taken_for_dead(tmp_path, place):
    lease = leases.take(tmp_path, "g")
    boot, namespace = json.loads(lease.path.read_text())["place"].split(maxsplit=1)
    held = json.loads(lease.path.read_text()) | {"started": "1", "place": place or f"{boot} pid:[1]"}
    assert namespace != "pid:[1]"
    lease.path.write_text(json.dumps(held))  # of another container with the same name
    assert leases.take(tmp_path, "g") is None
    os.utime(lease.path, (1, 1))
    assert leases.take(tmp_path, "g").attempt == 2


def test_a_lease_is_not_touched_while_its_training_hangs(tmp_path):
    lease = leases.take(tmp_path, "g")
    with leases.touching(lease, every=0.05):
        os.utime(lease.path, (1, 1))
        time.sleep(0.5)
        assert lease.path.stat().st_mtime == 1
        until = time.monotonic() + 10
        while lease.path.stat().st_mtime == 1 and time.monotonic() < until:
            sum(range(1000))
        assert lease.path.stat().st_mtime > 1


def _hang(folder):
    with leases.touching(leases.take(folder, "g")):
        time.sleep(60)


def test_a_process_that_hangs_is_killed_and_its_lease_taken(tmp_path):
    hung = multiprocessing.get_context("fork").Process(target=_hang, args=(tmp_path,))
    hung.start()
    path = tmp_path / "leases" / "g"
    while not path.exists():
        time.sleep(0.01)
    driver._end_hanging(SweepFolder(tmp_path), [hung])
    assert leases.hanging(tmp_path, "g") is None
    assert hung.is_alive()
    touch, seen = leases._seen[path]
    leases._seen[path] = touch, seen - leases.EXPIRES - 1  # as if that had passed
    assert leases.hanging(tmp_path, "g") == hung.pid
    driver._end_hanging(SweepFolder(tmp_path), [multiprocessing.current_process()])  # of another pool
    assert hung.is_alive()
    driver._end_hanging(SweepFolder(tmp_path), [hung])
    hung.join()
    assert leases.take(tmp_path, "g").attempt == 2


def test_a_lease_of_a_live_process_that_hangs_is_taken_over(tmp_path):
    hung = multiprocessing.get_context("fork").Process(target=_hang, args=(tmp_path,))
    hung.start()
    path = tmp_path / "leases" / "g"
    while not path.exists():
        time.sleep(0.01)
    os.utime(path, (1, 1))  # a machine that slept: only what this process sees counts
    assert leases.take(tmp_path, "g") is None
    touch, seen = leases._seen[path]
    leases._seen[path] = touch, seen - leases.EXPIRES - 1
    assert leases.take(tmp_path, "g").attempt == 2
    hung.kill()
    hung.join()
