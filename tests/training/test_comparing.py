"""Checkpoints of a training compared with the first one."""

import copy
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import bnrank


def checkpoints():
    """Return networks along a training in which the first layer changes by matrices of rank 1, and the last not."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3)).double()]
    direction = torch.randn(12, 1).double() @ torch.randn(1, 8).double()
    for size in (0.1, 0.3):
        net = copy.deepcopy(nets[0])
        with torch.no_grad():
            net[0].weight += size * direction
        nets.append(net)
    return nets, direction


def test_a_folder_of_checkpoints_is_compared_with_its_first_one(tmp_path):
    nets, direction = checkpoints()
    for step, net in zip((10, 20, 100), nets, strict=True):
        save_file(net.state_dict(), tmp_path / f"step-{step}.safetensors")
    found = bnrank.compare(tmp_path)
    assert found.history.step.values.tolist() == [10, 20, 100]
    first = found.history.sel(layer="0")
    size = float(direction.norm() / nets[0][0].weight.detach().norm())
    assert np.allclose(first["change"], [0, 0.1 * size, 0.3 * size])
    since = float(0.2 * direction.norm() / nets[1][0].weight.detach().norm())
    assert np.allclose(first["change_since"], [0, 0.1 * size, since])
    assert np.allclose(first["update_stable_rank"][1:], 1)
    assert np.allclose(first["update_effective_rank"][1:], 1, atol=1e-6)
    assert np.allclose(first["update_share"][1:], 1)
    assert np.isnan(first["update_share"][0])
    assert (found.history["change"].sel(layer="2") == 0).all()
    plain = bnrank.training.read_checkpoints(tmp_path).history
    assert "change" not in plain
    assert (plain["stable_rank"] == found.history["stable_rank"]).all()


def test_the_share_of_all_singular_values_is_not_shown(tmp_path):
    nets = [nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 3)) for _ in range(2)]
    for step, net in enumerate(nets):
        torch.save(net.state_dict(), tmp_path / f"{step}.pt")
    first, second = (row["update share"] for row in bnrank.compare(*nets).layers())
    for found in (bnrank.compare(tmp_path), bnrank.compare(nets)):
        assert [row["in top singular values"] for row in found.summary()] == [f"{100 * first:.3g} %", None]
    assert np.isnan(second)


def test_files_that_cannot_be_read_are_listed_and_skipped(tmp_path):
    nets, _ = checkpoints()
    for step, net in zip((10, 20, 100), nets, strict=True):
        torch.save(net.state_dict(), tmp_path / f"step-{step}.pt")
    whole = bnrank.training.read_checkpoints(tmp_path).history
    (tmp_path / "step-30.pt").write_bytes(b"no checkpoint")
    (tmp_path / "step-200.safetensors").write_bytes(b"")
    found = bnrank.training.read_checkpoints(tmp_path)
    assert found.history.drop_attrs().equals(whole.drop_attrs())
    damaged, empty = found.notes
    assert damaged.startswith("left out, since it cannot be read: step-30.pt (got step-30.pt, which is no file of ")
    assert empty.startswith("left out, since it cannot be read: step-200.safetensors (")
    assert "step-30.pt" in str(bnrank.compare(tmp_path))
    save_file({"more.weight": torch.eye(3)}, tmp_path / "step-100-1-of-2.safetensors")
    (tmp_path / "step-100.pt").rename(tmp_path / "step-100-2-of-2.pt")
    (tmp_path / "step-10.pt").write_bytes(b"no checkpoint")  # changes are then since step 20
    assert bnrank.compare(tmp_path).history.step.values.tolist() == [20, 100]
    for path in tmp_path.iterdir():
        path.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match=r"folder: got .*step-10\.pt, which is no"):
        bnrank.training.read_checkpoints(tmp_path)


def test_a_sequence_of_networks_is_the_same_as_their_checkpoints(tmp_path):
    nets, _ = checkpoints()
    for step, net in enumerate(nets):
        torch.save(net.state_dict(), tmp_path / f"{step}.pt")
    folder = bnrank.compare(tmp_path, top=2).history
    for sources in (nets, [net.state_dict() for net in nets], sorted(tmp_path.iterdir())):
        history = bnrank.compare(sources, top=2).history
        for name in folder.data_vars:
            assert np.array_equal(history[name], folder[name], equal_nan=True), name


def test_representations_along_a_sequence_are_those_of_pairs():
    nets, _ = checkpoints()
    x = torch.randn(40, 8).double()
    history = bnrank.compare(nets, x=x).history
    for step, net in enumerate(nets):
        pair = bnrank.compare(nets[0], net, x).data
        for name in ("cka", "cka_debiased"):
            assert np.allclose(history[name].values[step], np.diag(pair[name]), atol=1e-12)
    assert float(history["cka"].values[0].min()) == pytest.approx(1)
    assert "CKA with the first" in str(bnrank.compare(nets, x=x))


def test_a_training_that_diverged_has_nan_and_ranks_before_it():
    nets, _ = checkpoints()
    with torch.no_grad():
        nets[2][0].weight[0, 0] = torch.nan
    history = bnrank.compare([net.state_dict() for net in nets]).history
    assert np.isfinite(history["change"].values[:2]).all()
    assert np.isnan(history["change"].sel(layer="0").values[2])
    assert float(history["change"].sel(layer="2").values[2]) == 0


def test_a_layer_that_changes_its_shape_or_comes_later_has_no_change():
    nets = [nn.Linear(3, 4), nn.Linear(3, 5), nn.Sequential(nn.Linear(3, 4))]
    history = bnrank.compare([net.state_dict() for net in nets]).history
    assert history.layer.values.tolist() == ["weight", "0"]
    assert np.isnan(history["change"].sel(layer="weight").values[1])
    assert float(history["change"].sel(layer="0").values[2]) == 0  # its own first one


def test_a_network_of_another_shape_in_between_takes_no_change_from_others(tmp_path):
    def mlp(width):
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)).double()

    torch.manual_seed(0)
    first, wide, last = mlp(10), mlp(14), mlp(10)
    expected = bnrank.compare(first, last).data["change"].values
    for nets, apart in (((first, wide, last), 1), ((first, last, wide), 2)):
        folder = tmp_path / str(apart)
        folder.mkdir()
        for step, net in enumerate(nets):
            torch.save(net.state_dict(), folder / f"{step}.pt")
        for found in (bnrank.compare(list(nets)), bnrank.compare(folder)):
            history = found.history
            assert np.allclose(history["change"].values[3 - apart], expected)
            assert np.isnan(history["change"].values[apart]).all()
            assert np.isnan(history["change_since"].values[2]).all()
            shown = [row["change"] for row in found.summary()]
            assert shown == ([None, None] if apart == 2 else pytest.approx(expected.tolist()))
            assert found.notes == ["change at 0, 2: not measured where the shape is not that of the first"]


def test_the_table_is_that_of_the_last_checkpoint(tmp_path):
    torch.manual_seed(0)
    a, b = torch.randn(2, 8), torch.randn(8, 2)
    states = [{"a": a + 0.1 * step, "b": step * b, "c": b if step < 2 else torch.nan * b} for step in range(3)]
    states[0]["d"] = torch.eye(3)  # not in later ones
    found = bnrank.compare(states)
    one, grown, lost, gone = found.summary()
    assert one["change"] == found.history["change"].sel(layer="a").values[2]
    assert grown["change"] == np.inf  # from 0, as in the comparison of a pair
    assert grown["stable rank of W"].startswith("– to 1.")
    assert (lost["change"], lost["effective rank"], lost["stable rank of W"][-5:]) == (None, None, " to –")
    assert (gone["change"], gone["stable rank of W"], gone["in top singular values"]) == (None, "3 to –", None)
    page = bnrank.report(found, tmp_path / "page.html").read_text()
    assert "Weights of 1 layer have changed from 0." in page
    wide = [{"a": torch.eye(9)}, {"a": torch.eye(9)}]
    assert bnrank.compare(wide, top=2).summary()[0]["in top singular values"] is None  # of a change of 0


def test_networks_beyond_the_time_are_listed(tmp_path):
    nets, _ = checkpoints()
    for step, net in enumerate(nets):
        save_file(net.state_dict(), tmp_path / f"step-{step}.safetensors")
    for given, said in (
        ({"a": nets}, "networks 1 to 2: not reached within max_minutes=1e-09"),
        ({"a": tmp_path}, "steps 1 to 2: not reached within max_minutes=1e-09"),
    ):
        found = bnrank.compare(**given, max_minutes=1e-9)
        assert found.history.sizes["step"] == 1
        assert said in found.notes
        assert not bnrank.compare(**given, max_minutes=10).notes


def test_checkpoints_are_those_of_one_member(tmp_path):
    task = bnrank.tasks.low_rank_map(n=20, d_in=4, d_out=2, latent=2, rank=1, width=5, seed=0)
    kept = bnrank.training.Checkpoints(tmp_path, member=1)
    record = bnrank.training.Record(3, watch=kept)
    run = bnrank.train(bnrank.MLP([4, 6, 2]), task, members=2, steps=6, record=record, progress=False)
    assert kept.written == 3
    last = load_file(tmp_path / "step-6.safetensors")
    assert all(torch.equal(last[name], value) for name, value in run.network(1).state_dict().items())
    assert not torch.equal(last["layers.0.weight"], run.network(0).layers[0].weight)


def trained(folder, steps, *, members=1, out=None, **options):
    task = bnrank.tasks.low_rank_map(n=20, d_in=4, d_out=2, latent=2, rank=1, width=5, seed=0)
    record = bnrank.training.Record(2, watch=bnrank.training.Checkpoints(folder, **options))
    net = bnrank.MLP([4, 6, 2], seed=0)
    return bnrank.train(net, task, members=members, steps=steps, record=record, out=out, progress=False)


def test_checkpoints_of_a_member_that_a_run_does_not_have_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"member: got 5 \(int\), expected at most 1: the run has 2 members"):
        trained(tmp_path, 4, members=2, member=5)
    flow = bnrank.training.Record(2, watch=bnrank.training.Checkpoints(tmp_path, member=1))
    task = bnrank.tasks.low_rank_map(n=20, d_in=4, d_out=2, latent=2, rank=1, width=5, seed=0)
    with pytest.raises(ValueError, match=r"member: got 1 \(int\), expected at most 0: the run has 1 member$"):
        bnrank.flow(bnrank.MLP([4, 6, 2], seed=0), task, 0.01, record=flow, progress=False)
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_two_runs_are_not_mixed(tmp_path):
    def steps():
        return sorted(int(path.stem[5:]) for path in folder.glob("step-*.safetensors"))

    folder, out = tmp_path / "checkpoints", tmp_path / "run"
    trained(folder, 8, out=out)
    assert steps() == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match=r"folder: got 'step-0.safetensors' in .* expected no checkpoints of another"):
        trained(folder, 4)
    assert steps() == [0, 2, 4, 6, 8]
    (folder / "notes.txt").touch()
    trained(folder, 12, out=out)  # continues
    assert steps() == [0, 2, 4, 6, 8, 10, 12]
    shutil.copy(folder / "step-12.safetensors", folder / "step-14.safetensors")  # of a run that was cut off
    trained(folder, 12, out=out)
    assert steps() == [0, 2, 4, 6, 8, 10, 12]
    trained(folder, 4, fresh=True)
    assert steps() == [0, 2, 4]
    assert (folder / "notes.txt").exists()


def test_one_checkpoint_has_not_changed_by_0(tmp_path):
    nets, _ = checkpoints()
    for step, said in ((7, "1 measurement, at step 7"), (9, "2 measurements, steps 7 to 9")):
        save_file(nets[0].state_dict(), tmp_path / f"step-{step}.safetensors")
        found = bnrank.compare(tmp_path)
        page = bnrank.report(found, tmp_path / "page.html").read_text()
        assert said in str(found)
        assert f"{said}. Ranges" in page
        assert ("Weights have changed by 0 times" in page) == (step == 9)


def test_pages_of_checkpoints_show_the_change(tmp_path):
    nets, _ = checkpoints()
    page = bnrank.report(bnrank.compare(nets), tmp_path / "page.html").read_text()
    assert "3 networks" in page


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda nets: bnrank.compare(nets, top=11), ValueError, "top: got 11 .*expected at most 10 without b"),
        (lambda nets: bnrank.compare([nets[0], 3]), TypeError, r"a\[1\]: got 3"),
        (
            lambda nets: bnrank.compare([net.state_dict() for net in nets], x=torch.ones(3, 8)),
            TypeError,
            r"a\[0\]: got",
        ),
        (lambda nets: bnrank.compare(nets, x=torch.ones(3, 9)), ValueError, "x"),
        (lambda nets: bnrank.compare([nn.ReLU(), nn.ReLU()]), ValueError, "a"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(checkpoints()[0])


def test_a_budget_that_is_too_small_is_the_reason():
    nets, _ = checkpoints()
    with pytest.raises(ValueError, match=r"^max_minutes: "):
        bnrank.compare(nets[0], nets[1], max_minutes=1e-9)
    cut = bnrank.compare(nets, max_minutes=1e-9)
    assert str(cut).startswith("1 of 3 networks: 1 measurement, at step 0")
    assert "networks 1 to 2: not reached within max_minutes=1e-09" in str(cut)
    assert str(bnrank.compare(nets)).startswith("3 networks: 3 measurements")
