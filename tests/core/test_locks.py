"""Locks of folders: one writer, released by the system when a process dies."""

import contextlib
import os
import signal
import stat
import threading
import time

import pytest

from bnrank._core import files, locks
from bnrank._core.locks import InUseError
from bnrank._core.shared import Shared


def forked(work):
    """Start a process that does something and then waits, and return its number once it waits."""
    ready, done = os.pipe()
    number = os.fork()
    if number == 0:
        try:
            with work():
                os.write(done, b"1")
                time.sleep(60)
        finally:
            os._exit(1)
    os.read(ready, 1)
    return number


def kill(number):
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


def test_a_folder_in_use_is_refused_until_its_process_is_killed(tmp_path):
    number = forked(lambda: files.one_writer(tmp_path))
    with pytest.raises(InUseError, match=f"^out: .* is in use by process {number}$"), files.one_writer(tmp_path):
        pass
    kill(number)
    with files.one_writer(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_by_another_thread_is_refused(tmp_path):
    with files.one_writer(tmp_path):
        with pytest.raises(ValueError, match=f"in use by this process, {os.getpid()}"), files.one_writer(tmp_path):
            pass
        assert (tmp_path / files.LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_one_waits_for_the_other(tmp_path):
    order = []
    began = threading.Event()

    def other():
        with files.one_writer(tmp_path):
            began.set()
            time.sleep(0.2)
            order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    began.wait()
    with files.one_writer(tmp_path, wait=True):
        order.append("this")
    thread.join()
    assert order == ["other", "this"]


def test_many_threads_are_never_together_although_the_file_is_removed(tmp_path):
    inside, together, turns = [0], [], [0]

    def work():
        for _ in range(50):
            with files.one_writer(tmp_path, wait=True):
                inside[0] += 1
                together.append(inside[0])
                turns[0] += 1
                time.sleep(0.0001)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (set(together), turns[0]) == ({1}, 200)


def test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path):
    (tmp_path / "run").mkdir()

    @contextlib.contextmanager
    def with_child():
        with files.one_writer(tmp_path / "run"):
            child = forked(contextlib.nullcontext)
            (tmp_path / "child").write_text(str(child))
            yield

    number = forked(with_child)
    with pytest.raises(InUseError), files.one_writer(tmp_path / "run"):
        pass
    kill(number)
    child = int((tmp_path / "child").read_text())
    os.kill(child, 0)  # it lives
    try:
        with files.one_writer(tmp_path / "run"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_being_written_is_removed_only_when_its_process_is_dead(tmp_path):
    number = forked(lambda: files.atomic_path(tmp_path / "a.txt"))
    (part,) = tmp_path.iterdir()
    os.utime(part, (0, 0))  # the clock has jumped
    files.discard_partial(tmp_path)
    assert part.exists()
    kill(number)
    files.discard_partial(tmp_path)
    assert not part.exists()


def test_what_is_being_written_is_never_removed(tmp_path):
    end, numbers = time.monotonic() + 1.5, []

    def work(i):
        while time.monotonic() < end:
            if i < 2:
                files.write_atomically(tmp_path / f"{i}.txt", "whole")
            else:
                files.discard_partial(tmp_path)

    for i in range(4):
        numbers.append(os.fork())
        if numbers[-1] == 0:
            try:
                work(i)
                os._exit(0)
            finally:
                os._exit(1)
    assert [os.waitpid(number, 0)[1] for number in numbers] == [0] * 4


def test_without_locks_nothing_is_removed_and_nobody_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    (tmp_path / ".a.txt.x1y2z3.partial").mkdir()
    with files.one_writer(tmp_path), files.one_writer(tmp_path):
        files.write_atomically(tmp_path / "a.txt", "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.txt.x1y2z3.partial", "a.txt"]


def test_the_umask_of_the_process_is_applied_and_never_changed(tmp_path, monkeypatch):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)
            files.write_atomically(tmp_path / "a.txt", "whole")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_a_long_name_is_written(tmp_path):
    files.write_atomically(tmp_path / ("é" * 120), "whole")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]


def test_a_setting_is_restored_by_the_last_one_in_any_order():
    log = []

    class Setting:
        def __enter__(self):
            log.append("on")

        def __exit__(self, *error):
            log.append("off")

    shared = Shared(Setting)
    for last in (0, 1):  # who came first leaves last, and first
        shared.__enter__()
        shared.__enter__()
        shared.__exit__()
        assert log[-1] == "on", last
        shared.__exit__()
    assert log == ["on", "off"] * 2
