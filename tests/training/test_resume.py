"""Killed, interrupted and resumed runs; folders that hold something else, or no room."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bnrank._core import store
from bnrank.training import Run

from .common import HERE, RUNS, assert_same_run, in_subprocess, mlp, random_task, trained

RESULTS = {"history.nc", "summary.nc", "networks.safetensors", "settings.json", "SHA256SUMS"}
FILES = {"checkpoint.safetensors", "checkpoint.previous.safetensors"} | RESULTS


def start(out=None, **arguments):
    return trained(mlp(3, 12, 9, 2), random_task(100), out=out, progress=False, **arguments)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    kills = json.loads(in_subprocess("killed.py", tmp_path, torch.get_num_threads()))
    assert all(count >= 2 for count in kills.values()), kills
    for kind, arguments in RUNS.items():
        expected = start(**arguments)
        assert_same_run(expected, Run.open(tmp_path / kind))
        assert {path.name for path in (tmp_path / kind).iterdir()} == FILES
    assert "converged" in Run.open(tmp_path / "stopped").summary.status
    assert "diverged" in Run.open(tmp_path / "diverged").summary.status


@pytest.mark.parametrize("kind", RUNS)
def test_a_complete_run_is_returned_at_once(kind, tmp_path, monkeypatch):
    run = start(tmp_path, **RUNS[kind])

    def fail(*_):
        raise AssertionError("evaluated again")

    monkeypatch.setattr("bnrank.training.objectives.MLPObjective.evaluate", fail)
    again = start(tmp_path, **RUNS[kind])
    assert_same_run(run, again)
    assert again.seconds == pytest.approx(run.seconds, abs=1.0)


def test_a_run_in_which_all_have_stopped_is_complete(tmp_path, monkeypatch):
    arguments = {"optimizer": "adam", "gradient_norm": 1e9, "members": 2, "steps": 50}
    run = start(tmp_path, **arguments)
    assert run.summary.status.values.tolist() == ["converged", "converged"]
    monkeypatch.setattr("bnrank.training.objectives.MLPObjective.evaluate", None)
    assert_same_run(run, start(tmp_path, **arguments))


@pytest.mark.parametrize("kind", ["mini-batches", "kfac-lbfgs", "stopped", "diverged"])
@pytest.mark.parametrize("first", [21, 30])
def test_a_complete_run_can_be_made_longer(kind, first, tmp_path):
    arguments = RUNS[kind] | {"steps": 60}
    start(tmp_path, **arguments | {"steps": first})
    longer, whole = start(tmp_path, **arguments), start(**arguments)
    assert torch.equal(longer.parameters, whole.parameters)
    assert longer.summary.status.values.tolist() == whole.summary.status.values.tolist()
    shared = [step for step in whole.history.step.values if step != first]
    if "batch_size" in arguments:  # the costs since the row before are those since the end of the shorter run
        shared = [step for step in shared if not first < step <= first + 7]
    np.testing.assert_array_equal(whole.history.loss.sel(step=shared), longer.history.loss.sel(step=shared))


def test_a_run_cannot_be_made_shorter_nor_longer_with_a_schedule(tmp_path):
    arguments = {"optimizer": "adam", "steps": 20}
    start(tmp_path / "a", **arguments)
    with pytest.raises(ValueError, match=r"steps: got 10, but the run in .* is at 20"):
        start(tmp_path / "a", optimizer="adam", steps=10)
    start(tmp_path / "b", schedule="cosine", **arguments)
    with pytest.raises(ValueError, match=r"other settings.*steps: stored 20, now 30"):
        start(tmp_path / "b", optimizer="adam", schedule="cosine", steps=30)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"ridge": 0.2}, r"ridge: stored \[0.1\], now \[0.2\]"),
        ({"lr": 0.2}, "lr: "),
        ({"optimizer": "gd"}, "optimizer: stored 'adam', now 'gd'"),
        ({"seed": 4}, "initial parameters: stored float32"),
        ({"dtype": torch.float64}, "dtype: stored 'float32', now 'float64'"),
        ({"every": 3}, "record_every: "),
        ({"members": 2}, "seeds: "),
    ],
)
def test_other_settings_in_the_same_folder_are_named(other, message, tmp_path):
    arguments = {"optimizer": "adam", "steps": 6, "ridge": 0.1}
    before = start(tmp_path, **arguments)
    with pytest.raises(ValueError, match=f"out: .*holds a checkpoint with other settings.*{message}.*resume=False"):
        start(tmp_path, **arguments | other)
    assert_same_run(before, Run.open(tmp_path))
    overwritten = start(tmp_path, resume=False, **arguments | other)
    assert_same_run(overwritten, start(**arguments | other))
    assert_same_run(overwritten, Run.open(tmp_path))


def test_other_data_in_the_same_folder_are_named(tmp_path):
    net = mlp(3, 2)
    trained(net, random_task(20, seed=0), out=tmp_path, steps=2, progress=False)
    with pytest.raises(ValueError, match=r"other settings \(x: stored float64 .*, now float64 "):
        trained(net, random_task(20, seed=1), out=tmp_path, steps=2, progress=False)


class TestDamage:
    arguments = {"optimizer": "adam", "steps": 40, "members": 2}  # noqa: RUF012

    @pytest.fixture
    def whole(self):
        return start(**self.arguments)

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99, -1])
    def test_a_truncated_checkpoint_is_replaced_by_the_one_before(self, share, whole, tmp_path):
        start(tmp_path, **self.arguments)
        path = tmp_path / "checkpoint.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[:-1] if share < 0 else data[: int(share * len(data))])
        before = (tmp_path / "checkpoint.previous.safetensors").read_bytes()
        expected = r"out: .*checkpoint\.safetensors \(.* is damaged .*; going on from the checkpoint before, .*previous"
        with pytest.warns(UserWarning, match=expected):
            again = start(tmp_path, **self.arguments)
        assert_same_run(whole, again)
        assert again.seconds > 0
        assert (tmp_path / "checkpoint.previous.safetensors").read_bytes() == before  # not the damaged one
        assert path.read_bytes() != data[:-1]
        assert store.is_whole(path)

    @pytest.mark.parametrize("content", [b"", b"garbage", bytes(1000), b"\x80\x04\x95" * 100])
    def test_two_damaged_checkpoints_start_over(self, content, whole, tmp_path):
        start(tmp_path, **self.arguments)
        for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
            (tmp_path / name).write_bytes(content)
        with pytest.warns(UserWarning, match=r"(?s)out: .*no undamaged checkpoint is left: starting over"):
            again = start(tmp_path, **self.arguments)
        assert_same_run(whole, again)

    def test_a_kill_between_the_two_steps_of_a_checkpoint_loses_nothing(self, whole, tmp_path, monkeypatch):
        start(tmp_path, **self.arguments | {"steps": 30})
        (tmp_path / "checkpoint.safetensors").replace(tmp_path / "checkpoint.previous.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same_run(start(tmp_path, **self.arguments | {"steps": 30}), start(**self.arguments | {"steps": 30}))

    @pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
    def test_a_file_of_another_program_is_not_replaced(self, metadata, tmp_path):
        save_file({"weight": torch.ones(2)}, tmp_path / "checkpoint.safetensors", metadata)
        with pytest.raises(ValueError, match=r"holds tensors of another program.*move it away, or use resume=False"):
            start(tmp_path, **self.arguments)
        start(tmp_path, resume=False, **self.arguments)

    @pytest.mark.parametrize("about", [{}, {"settings": []}, {"settings": {}, "step": 3}])
    def test_other_contents_are_refused(self, about, tmp_path):
        store.save(tmp_path / "checkpoint.safetensors", {"weight": torch.ones(2)}, about, "checkpoint")
        with pytest.raises(ValueError, match=r"out: .*is no checkpoint of this computation .*use resume=False"):
            start(tmp_path, **self.arguments)


@pytest.mark.parametrize("how", ["saved", "no checkpoints", "damaged checkpoints"])
def test_a_run_without_checkpoints_is_overwritten_only_by_one_with_its_settings(how, tmp_path):
    arguments = {"optimizer": "adam", "steps": 20}
    run = start(tmp_path / "a", checkpoint_every=10, **arguments)
    folder = run.save(tmp_path / "b") if how == "saved" else tmp_path / "a"
    for path in folder.glob("checkpoint*"):
        path.unlink() if how == "no checkpoints" else path.write_bytes(b"damaged")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with warnings.catch_warnings(action="ignore"):
        with pytest.raises(ValueError, match=r"out: .*holds a run with other settings \(ridge: stored \[0.0\], now"):
            start(folder, ridge=0.2, **arguments)
        assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
        assert_same_run(start(folder, **arguments), run)
        for path in folder.glob("checkpoint*"):
            path.unlink()
        (folder / "networks.safetensors").write_bytes(b"damaged")
        start(folder, ridge=0.2, **arguments)
    assert Run.open(folder).settings.ridge == (0.2,)


def test_checksums_of_other_files_are_not_overwritten(tmp_path):
    arguments, sums = {"optimizer": "adam", "steps": 5}, tmp_path / "SHA256SUMS"
    run = start(tmp_path, **arguments)
    text = sums.read_text()
    sums.write_text(text.replace("history", "hirtory"))  # damaged
    start(tmp_path, **arguments)
    Run.open(tmp_path)
    (tmp_path / "data.csv").write_text("1")
    for foreign in (f"{'0' * 64} *elsewhere.csv\n", f"{text}{'0' * 64}  data.csv\n"):
        sums.write_text(foreign)
        for work in (lambda: start(tmp_path, **arguments), lambda: start(tmp_path, resume=False, **arguments)):
            with pytest.raises(ValueError, match=r"^out: got '.*', whose SHA256SUMS lists '(elsewhere|data).csv'"):
                work()
        with pytest.raises(ValueError, match=r"^out: .*SHA256SUMS lists"):
            run.save(tmp_path)
        assert sums.read_text() == foreign


def test_a_fresh_start_that_is_interrupted_does_not_bring_the_old_run_back(tmp_path, monkeypatch):
    arguments = {"optimizer": "adam", "steps": 20}
    start(tmp_path, **arguments)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bnrank.training.objectives.MLPObjective.evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, resume=False, **arguments)
    monkeypatch.undo()
    assert not list(tmp_path.glob("checkpoint*"))
    with pytest.raises(ValueError, match=r"out: .*SHA256SUMS' is damaged: it is missing .*the folder is incomplete"):
        Run.open(tmp_path)


@contextlib.contextmanager
def full_disk(size=6000):
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("half_written", [False, True])
def test_a_full_folder_leaves_the_checkpoint_before(half_written, tmp_path, monkeypatch):
    arguments = {"optimizer": "adam", "members": 4, "every": 5}
    start(tmp_path, steps=10, **arguments)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    if half_written:

        def fail(tensors, path, metadata):
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("bnrank._core.store.save_file", fail)
        room = contextlib.nullcontext()
    else:
        room = full_disk(len(before) // 2)
    with (
        room,
        pytest.raises(ValueError, match=r"out: cannot write a checkpoint to .*the one before, if any, is untouched"),
    ):
        start(tmp_path, steps=20, **arguments)
    monkeypatch.undo()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert_same_run(start(tmp_path, steps=20, **arguments), start(steps=20, **arguments))


def test_a_full_folder_and_the_results(tmp_path):
    run = start(steps=10, optimizer="adam", members=4)
    run.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with full_disk(1000), pytest.raises(ValueError, match="out: cannot write to"):
        run.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"out: cannot write to .*file"):
            start(path, steps=3)
        with pytest.raises(ValueError, match=r"out: cannot write to .*file"):
            start(steps=3).save(path)


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    (tmp_path / ".checkpoint.safetensors.x1y2z3.partial").mkdir()
    (tmp_path / ".checkpoint.safetensors.x1y2z3.partial" / "checkpoint.safetensors").write_bytes(b"half of it")
    (tmp_path / "notes.txt").write_text("mine")
    start(tmp_path, steps=3)
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"notes.txt"}


def test_an_interrupted_process_ends_well_and_goes_on(tmp_path):
    steps = 1500
    command = [sys.executable, str(HERE / "interrupted.py"), str(tmp_path), str(steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    *status, last = printed.split()
    assert status == ["interrupted", "interrupted"]
    assert int(last) < steps
    so_far = Run.open(tmp_path)
    assert so_far.history.step[-1] == int(last)
    arguments = {"optimizer": "adam", "members": 2, "steps": steps, "every": 10}
    resumed = start(tmp_path, **arguments)
    assert_same_run(resumed, start(**arguments))
    seen = so_far.history.sizes["step"]
    np.testing.assert_array_equal(so_far.history.loss, resumed.history.loss[:, :seen])


def test_results_so_far_after_an_interruption():
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    run = start(steps=10**8, optimizer="adam")
    timer.join()
    assert run.summary.status.values.tolist() == ["interrupted"]
    assert np.isfinite(run.history.loss).all()
    assert signal.getsignal(signal.SIGINT) is before


def test_training_outside_the_main_thread():
    runs = []
    thread = threading.Thread(target=lambda: runs.append(start(steps=5, optimizer="adam")))
    thread.start()
    thread.join()
    assert_same_run(runs[0], start(steps=5, optimizer="adam"))
