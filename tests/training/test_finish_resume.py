"""A search for a stationary point that is killed goes on from its file."""

import multiprocessing
import shutil

import numpy as np
import pytest
import torch

import bnrank
from bnrank.training import Save
from bnrank.training.finishing import stages

from .finish_killed import finished

TASK = bnrank.tasks.low_rank_map(n=20, d_in=2, d_out=2, latent=1, rank=1, width=8, seed=0)


def run(folder, wanted=0):
    """Return the evaluations, files, loss and residual of a search in a process of its own; None if it was killed."""
    context = multiprocessing.get_context("fork")  # without imports
    there = context.SimpleQueue()
    process = context.Process(target=finished, args=(there, folder, wanted))
    process.start()
    process.join(300)
    assert process.exitcode == (-9 if wanted else 0)
    return None if wanted else there.get()


def test_a_killed_search_goes_on_to_the_same_point(tmp_path):
    evaluations, written, loss, residual = run(tmp_path / "whole")
    assert residual <= 1e-8
    assert not (tmp_path / "whole" / stages.SEARCH).exists()
    for share, left in ((0.4, 0.95), (0.9, 0.6)):
        folder = tmp_path / str(share)
        run(folder, max(1, int(share * written)))
        assert not (folder / "finished.safetensors").exists()
        rest, _, again, residual = run(folder)
        assert residual <= 1e-8
        assert again == pytest.approx(loss, rel=1e-6)
        assert rest < left * evaluations
        assert not list(folder.glob(".*"))


def tiny():
    return bnrank.MLP([2, 4, 4, 2], seed=1)


def test_a_result_is_returned_at_once(tmp_path, monkeypatch):
    done = bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, progress=False)
    assert bnrank.load(tmp_path / "finished.safetensors").loss == done.loss
    with monkeypatch.context() as patch:
        patch.setattr("bnrank.training.finishing.finisher.searched", None)
        again = bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, progress=False)
    assert str(again) == str(done)
    assert torch.equal(again.network.weights[0], done.network.weights[0])


def test_a_search_whose_time_was_over_goes_on(tmp_path):
    late = bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, max_minutes=1e-6, progress=False)
    assert late.reason == "out of time"
    assert (tmp_path / stages.SEARCH).exists()
    done = bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, progress=False)
    assert done.stationarity.residual <= 1e-8
    assert done.seconds > late.seconds
    assert not (tmp_path / stages.SEARCH).exists()


@pytest.mark.parametrize("minutes", [1e-6, None], ids=["begun", "done"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.03}, r"ridge: got 0.03, expected that of the search in"),
        ({"net": bnrank.MLP([2, 4, 4, 2], seed=2)}, r"net: got another one than before"),
        ({"task": (TASK.x, TASK.y + 1)}, r"task: got another one than before"),
        ({"rtol": 1e-6}, r"rtol: got 1e-06"),
        ({"births": False}, r"births: got False"),
        ({"seed": 3}, r"seed: got 3"),
    ],
)
def test_folders_of_other_searches_are_refused(tmp_path, minutes, change, match):
    bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, max_minutes=minutes, progress=False)
    given = {"net": tiny(), "task": TASK, "ridge": 0.02, "out": tmp_path, "max_minutes": 1e-6} | change
    with pytest.raises(ValueError, match=match):
        bnrank.finish(**given, progress=False)
    given["out"] = Save(tmp_path, resume=False)
    bnrank.finish(**given, progress=False)


def test_folders_of_runs_and_folders_that_vanish_are_refused(tmp_path, monkeypatch):
    run = bnrank.train(tiny(), TASK, ridge=0.02, steps=5, members=2, out=tmp_path / "run", progress=False)
    assert run.members == 2
    for out in (tmp_path / "run", Save(tmp_path / "run", resume=False)):
        with pytest.raises(ValueError, match=r"out: .*run.*expected a folder without checksums of other files"):
            bnrank.finish(tiny(), TASK, 0.02, out=out, progress=False)
    folder, write = tmp_path / "gone", stages.Stages.write

    def removed(self):
        shutil.rmtree(folder)
        write(self)

    monkeypatch.setattr(stages.Stages, "write", removed)
    monkeypatch.setattr(stages, "EVERY", 0.0)
    with pytest.raises(ValueError, match=r"out: cannot write to .*gone"):
        bnrank.finish(tiny(), TASK, 0.02, out=folder, progress=False)


def test_a_damaged_file_is_refused(tmp_path):
    bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, max_minutes=1e-6, progress=False)
    path = tmp_path / stages.SEARCH
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"out: .* is damaged"):
        bnrank.finish(tiny(), TASK, 0.02, out=tmp_path, progress=False)


def test_states_belong_to_stages_that_were_not_left(tmp_path):
    path = tmp_path / "a.safetensors"
    before = stages.Stages(path, {"net": "1"})
    with before.stage("outermost"), before.stage("outer"):
        before.note(number=1, layers=[np.ones((2, 3)), np.zeros((0, 2))], nothing=[])
        with before.stage("inner"):
            before.note(values=np.arange(3))
        with before.stage("other"):
            before.note(reason="x")
            before.write()
    assert stages.Stages(path, {"net": "2"}).read() == ["net"]
    after = stages.Stages(path, {"net": "1"})
    assert after.read() == []
    with after.stage("outermost"), after.stage("outer") as outer:
        assert outer["number"] == 1
        assert [layer.shape for layer in outer["layers"]] == [(2, 3), (0, 2)]
        assert outer["nothing"] == []
        with after.stage("inner") as inner:
            assert inner == {}
        with after.stage("other") as other:
            assert other == {"reason": "x"}
        with after.stage("other") as other:
            assert other == {}
    after.read()
    with after.stage("new"):
        pass
    with after.stage("outermost"), after.stage("outer"), after.stage("other") as other:
        assert other == {"reason": "x"}
    after.read()
    after.known.pop("outermost/outer")
    with (
        after.stage("outermost"),
        after.stage("outer"),
        after.stage("other") as other,
    ):  # of one begun anew
        assert other == {}


def test_a_run_goes_on_with_the_member_that_was_being_finished(tmp_path, monkeypatch):
    def train(folder):
        settings = {"ridge": 1e-2, "steps": 100, "members": 2, "seed": 3, "progress": False}
        return bnrank.train(bnrank.MLP([2, 4, 4, 2]), TASK, **settings, finish=True, out=folder)

    whole = train(tmp_path / "whole")
    write, written, entered = stages.Stages.write, 0, []

    def interrupted(self):
        nonlocal written
        write(self)
        written += 1
        if written == 6:
            raise RuntimeError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(stages.Stages, "write", interrupted)
        patch.setattr(stages, "EVERY", 0.0)
        with pytest.raises(RuntimeError, match="interrupted"):
            train(tmp_path / "run")
    assert (tmp_path / "run" / stages.SEARCH).exists()
    read = stages.Stages.read

    def recorded(self):
        differences = read(self)
        entered.append((differences, len(self.known)))
        return differences

    monkeypatch.setattr(stages.Stages, "read", recorded)
    run = train(tmp_path / "run")
    assert entered[0][0] == []
    assert entered[0][1] > 0
    assert [a.loss for a in run.finished] == pytest.approx([b.loss for b in whole.finished], rel=1e-9)
    assert not (tmp_path / "run" / stages.SEARCH).exists()
