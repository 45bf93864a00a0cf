"""Runs that end in finished networks: certificates, files, going on, refusals."""

import numpy as np
import pytest
import torch

import bnrank
from bnrank.training import Finish
from bnrank.training.finishing import ensembles

TASK = bnrank.tasks.low_rank_map(n=20, d_in=2, d_out=2, latent=2, rank=1, width=8, seed=0)
OPTIONS = {"ridge": 1e-2, "steps": 200, "members": 2, "seed": 3, "progress": False}


def net():
    return bnrank.MLP([2, 4, 4, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def run(folder):
    return bnrank.train(net(), TASK, **OPTIONS, finish=True, out=folder)


def same(a, b):
    return str(a) == str(b) and all(
        torch.equal(p, q) for p, q in zip(a.network.parameters(), b.network.parameters(), strict=True)
    )


def test_every_member_has_its_certificate_and_its_network(run):
    assert run.summary["stationarity"].values.max() <= 1e-8
    trained = bnrank.train(net(), TASK, **OPTIONS)
    assert trained.finished == ()
    assert "stationarity" not in trained.summary
    for i, done in enumerate(run.finished):
        assert run.network(i).weights[0].dtype == torch.float64
        at = bnrank.cost.stationarity(run.network(i), TASK, 1e-2)
        assert at.residual <= 1e-8
        assert run.summary["kind"].values[i] == done.kind == at.kind
        assert run.summary["finished_loss"].values[i] == done.loss
        assert done.loss <= run.summary["loss"].values[i] + 1e-6
        alone = bnrank.finish(trained.network(i), TASK, 1e-2, progress=False)
        assert alone.loss == pytest.approx(done.loss, rel=1e-12)
    np.testing.assert_array_equal(run.summary["loss"], trained.summary["loss"])
    assert "local minimum" in str(run) or "stationary" in str(run)


def test_a_finished_run_is_opened_saved_and_returned_at_once(run, folder, tmp_path, monkeypatch):
    opened = bnrank.load(folder)
    assert opened.network(1).weights[0].dtype == torch.float64
    copy = bnrank.load(bnrank.save(opened, tmp_path / "copy"))
    for other in (opened, copy):
        assert all(same(a, b) for a, b in zip(run.finished, other.finished, strict=True))
        assert torch.equal(other.parameters, run.parameters)
    monkeypatch.setattr(ensembles, "_finished", None)  # nothing is left to do
    again = bnrank.train(net(), TASK, **OPTIONS, finish=True, out=folder)
    assert all(same(a, b) for a, b in zip(run.finished, again.finished, strict=True))


def test_a_member_that_ran_out_of_time_goes_on_and_others_stay(run, tmp_path, monkeypatch):
    late = bnrank.train(net(), TASK, **OPTIONS, finish=Finish(max_minutes=1e-9), out=tmp_path)
    assert {done.reason for done in late.finished} == {"out of time"}
    starts, finished = [], ensembles._finished

    def recorded(start, *arguments, **options):
        starts.append(start)
        return finished(start, *arguments, **options)

    monkeypatch.setattr(ensembles, "_finished", recorded)
    whole = bnrank.train(net(), TASK, **OPTIONS, finish=True, out=tmp_path)
    assert starts == [done.network for done in late.finished] or len(starts) == 2
    assert [done.loss_before for done in whole.finished] == [done.loss_before for done in late.finished]
    assert max(done.stationarity.residual for done in whole.finished) <= 1e-8
    longer = bnrank.train(net(), TASK, **OPTIONS | {"steps": 210}, finish=True, out=tmp_path)
    assert len(starts) == 4  # of other networks: finished anew
    assert longer.finished[0].loss_before != whole.finished[0].loss_before


def test_a_damaged_file_of_finished_members_is_not_used(run, tmp_path):
    bnrank.train(net(), TASK, **OPTIONS, finish=True, out=tmp_path)
    file = tmp_path / "finished.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"finished\.safetensors"):
        bnrank.load(tmp_path)
    again = bnrank.train(net(), TASK, **OPTIONS, finish=True, out=tmp_path)
    assert all(a.loss == b.loss for a, b in zip(run.finished, again.finished, strict=True))
    assert bnrank.load(tmp_path).finished[0].loss == run.finished[0].loss


def test_finished_networks_are_saved_loaded_and_reported(run, tmp_path):
    done = run.finished[0]
    path = bnrank.save(done, tmp_path / "done.safetensors")
    other = bnrank.load(path)
    assert same(done, other)
    for name in ("slopes", "layers", "neurons", "samples"):
        np.testing.assert_array_equal(getattr(other.stationarity, name), getattr(done.stationarity, name))
    assert other.stationarity.live == done.stationarity.live
    for mine, theirs in zip(done.stationarity.births, other.stationarity.births, strict=True):
        np.testing.assert_array_equal(mine.incoming, theirs.incoming)
    page = bnrank.report(done, tmp_path / "done.html").read_text(encoding="utf-8")
    assert done.kind in page
    assert "live neurons" in page
    whole = bnrank.report(run, tmp_path / "run.html").read_text(encoding="utf-8")
    assert done.kind in whole
    assert "relative gradient" in whole


def test_members_that_diverged_are_not_finished():
    task = bnrank.Task(TASK.x, TASK.y)
    with pytest.warns(UserWarning, match="not finite"):
        run = bnrank.train(
            net(), task, ridge=[1e-2, 1e-2], steps=30, seed=0, finish=True, progress=False, record=10,
            optimizer=bnrank.training.GradientDescent([1e-3, 1e4]),
        )  # fmt: skip
    assert run.finished[0] is not None
    assert run.finished[1] is None
    assert run.summary["kind"].values[1] == "not finished"
    assert np.isnan(run.summary["stationarity"].values[1])
    assert "not finished" in str(run)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.0}, "ridge: got 0, .* no minimum at finite norm"),
        ({"ridge": [0.1, 0.0]}, "ridge: got 0"),
        ({"task": (TASK.x, torch.arange(20) % 2, "cross_entropy"), "ridge": 0.0}, "no minimum at finite norm where"),
        ({"net": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))}, "net: got .*MLP"),
        ({"net": bnrank.LinearNetwork([2, 3, 2])}, "linear network"),
        ({"net": bnrank.MLP([2, 2])}, "hidden layer"),
    ],
)
def test_what_cannot_be_finished_is_refused_before_training(change, match):
    given = {"net": net(), "task": TASK, "ridge": 0.1} | change
    with pytest.raises(ValueError, match=match):
        bnrank.train(given.pop("net"), given.pop("task"), **given, steps=10**9, finish=True, progress=False)


def test_the_option_is_validated():
    with pytest.raises(TypeError, match="finish: got 3"):
        bnrank.train(net(), TASK, ridge=0.1, finish=3)
    for bad in ({"rtol": 0.0}, {"max_minutes": -1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Finish(**bad)
    with pytest.raises(TypeError, match="births"):
        Finish(births="no")
