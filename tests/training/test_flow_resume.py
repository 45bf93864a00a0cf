"""A flow that is killed goes on from its last checkpoint, to the same bits."""

import functools
import os
import signal

import numpy as np
import pytest
import torch

import bnrank
from bnrank._core import store
from bnrank.networks.mlp import make
from training.common import flat, follow, in_subprocess, random_task

KINDS = {
    "euler": {"method": "euler", "step": 0.02},
    "batches": {"method": "euler", "step": 0.02, "batch_size": 10, "seed": 3, "every": 3, "spectra_every": 6},
    "norm power": {
        "method": "euler",
        "step": 0.02,
        "norm_power": 1.5,
        "batch_size": 10,
        "every": 3,
        "spectra_every": 6,
    },
    "heun": {"method": "heun"},
    "rk45": {},
    "dop853": {"method": "dop853", "time": "arc"},
    "float32": {"method": "euler", "step": 0.02, "dtype": torch.float32},
}
KILLED = {"method": "euler", "step": 0.01, "batch_size": 10, "seed": 3}


def start(skip_plateau=False, slope=0.0, **settings):
    init = 1e-3 if skip_plateau else 0.3
    net = make([3, 6, 5, 2], slope, False, init=init, seed=1, dtype=torch.float64)
    task = random_task()
    end = {"t_after": 2.0} if skip_plateau else {"t_end": 2.0}
    settings = {"max_networks": 7} | settings
    return follow(net, task, **end, skip_plateau=skip_plateau, **settings)


def assert_same(one, other):
    assert one.history.drop_vars("phase").identical(other.history.drop_vars("phase").assign_attrs(one.history.attrs))
    assert one.history.phase.values.tolist() == other.history.phase.values.tolist()
    assert one.network_rows == other.network_rows
    for a, b in zip(one.networks, other.networks, strict=True):
        assert torch.equal(flat(a), flat(b))
    assert (one.evaluations, one.steps, one.handover) == (other.evaluations, other.steps, other.handover)
    np.testing.assert_array_equal(one.times_since_handover, other.times_since_handover)


@pytest.mark.parametrize("skip_plateau", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_flow_is_the_uninterrupted_one(tmp_path, kind, skip_plateau):
    settings = KINDS[kind] | ({"time": "t"} if kind == "dop853" and skip_plateau else {})
    whole = start(skip_plateau, **settings)
    assert whole.status == "finished"
    for most in (10, whole.evaluations // 3, whole.evaluations * 2 // 3):
        part = start(skip_plateau, out=tmp_path, max_evaluations=most, **settings)
        assert part.status == "evaluations used up"
    done = start(skip_plateau, out=tmp_path, **settings)
    assert_same(done, whole)
    again = start(skip_plateau, out=tmp_path, **settings)  # complete: found, not run again
    assert_same(again, whole)
    kept = {int(path.stem.split("-")[1]) for path in tmp_path.glob("network-*")}
    assert kept <= set(whole.network_rows)
    assert not list(tmp_path.glob(".*"))


def test_stiff_solvers_go_on_from_the_point_reached(tmp_path):
    whole = start(slope=1.0, method="lsoda")
    start(slope=1.0, method="lsoda", out=tmp_path, max_evaluations=200)
    done = start(slope=1.0, method="lsoda", out=tmp_path)
    assert done.loss[-1] == pytest.approx(whole.loss[-1], rel=1e-4)


def test_a_killed_flow_goes_on(tmp_path):
    assert int(in_subprocess("flow_killed.py", tmp_path)) == 3
    assert (tmp_path / "flow.safetensors").exists()
    assert_same(start(**KILLED, out=tmp_path), start(**KILLED))


def test_other_settings_are_refused_and_fresh_starts_overwrite(tmp_path):
    start(out=tmp_path, max_evaluations=30)
    with pytest.raises(ValueError, match=r"other settings \(rtol: stored 1e-06, now 1e-05\)"):
        start(out=tmp_path, rtol=1e-5)
    fresh = start(out=tmp_path, rtol=1e-5, resume=False)
    assert_same(fresh, start(rtol=1e-5))


@pytest.mark.parametrize(("name", "skip_plateau"), [("t_end", False), ("t_end", True), ("t_after", True)])
def test_a_flow_goes_on_to_a_later_end_and_is_not_returned_for_an_earlier_one(name, skip_plateau, tmp_path):
    net, task = make([3, 6, 5, 2], 0.0, False, init=0.05, seed=1, dtype=torch.float64), random_task()
    to = functools.partial(follow, net, task, skip_plateau=skip_plateau, out=tmp_path)
    first = to(**{name: 9.0})
    assert (first.handover is not None) == skip_plateau
    again = to(**{name: 9.0})
    assert np.array_equal(again.loss, first.loss)
    with pytest.raises(ValueError, match=rf"^{name}: got 8\.5, but the flow in '.*' is at 9\.0"):
        to(**{name: 8.5})
    longer, whole = to(**{name: 9.5}), follow(net, task, skip_plateau=skip_plateau, **{name: 9.5})
    assert (longer.status, longer.times[-1]) == ("finished", pytest.approx(whole.times[-1], rel=1e-6))
    assert longer.loss[-1] == pytest.approx(whole.loss[-1], rel=1e-4)


@pytest.mark.parametrize("damage", ["truncated", "network", "swapped", "missing", "all"])
def test_damage_means_the_checkpoint_before_or_a_new_start(tmp_path, damage):
    settings = {"method": "heun"}
    whole = start(**settings)
    for most in (20, 30, 60):
        start(out=tmp_path, max_evaluations=most, **settings)
    path = tmp_path / "flow.safetensors"
    now, before = (set(store.load(tmp_path / name).about["kept"]) for name in (path.name, "flow.previous.safetensors"))
    last, other = (tmp_path / f"network-{row}.safetensors" for row in (max(now - before, key=int), min(now & before)))
    if damage in ("truncated", "all"):
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "network":
        last.write_bytes(last.read_bytes()[:-1])
    if damage == "missing":
        last.unlink()
    if damage == "swapped":
        last.write_bytes(other.read_bytes())
    if damage == "all":
        other.write_bytes(b"")
    named = {"truncated": "flow.safetensors", "all": "flow.safetensors"}.get(damage, last.name)
    then = "starting over" if damage == "all" else "going on from the checkpoint before"
    with pytest.warns(UserWarning, match=f"out: .*{named}.*{then}"):
        done = start(out=tmp_path, **settings)
    assert_same(done, whole)
    assert_same(start(out=tmp_path, **settings), whole)


def test_a_fresh_start_removes_what_was_stored(tmp_path):
    start(out=tmp_path, max_evaluations=30)

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(out=tmp_path, resume=False, stop=stop)
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_file_of_another_kind_is_not_replaced(tmp_path):
    bnrank.save(bnrank.MLP([2, 2]), tmp_path / "flow.safetensors")
    with pytest.raises(ValueError, match=r"out: .*no checkpoint of this computation \(it holds a network\)"):
        start(out=tmp_path)


def test_interruption_returns_what_there_is(tmp_path):
    def stop(row):
        if row.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    result = start(stop=stop, out=tmp_path)
    assert result.status == "interrupted"
    assert result.steps == 5
    assert_same(start(out=tmp_path), start())
