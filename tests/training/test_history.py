"""What a run records, against slow versions; what it saves, and reads back."""

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from bnrank import MLP, __version__
from bnrank.training import Record, Run, train
from bnrank.training.history import top_singular_values

from .common import assert_same_run, cost_and_gradient, cost_of, flat, mlp, random_task

QUIET = {"progress": False, "record": 4}


@pytest.fixture
def run():
    return train(mlp(3, 9, 5, 2, slope=0.2), random_task(50), ridge=[1e-2, 0.3], optimizer="adam", steps=10, **QUIET)


def test_dimensions_coordinates_and_attributes(run):
    history = run.history
    assert dict(history.sizes) == {"member": 2, "step": 4, "layer": 3, "index": 5}
    assert history.loss.dims == ("member", "step")
    assert history.weight_singular_values.dims == ("member", "step", "layer", "index")
    assert history.step.values.tolist() == [0, 4, 8, 10]
    assert history.layer.values.tolist() == [1, 2, 3]
    assert history.layer_name.values.tolist() == ["layers.0", "layers.1", "layers.2"]
    assert history.ridge.values.tolist() == [1e-2, 0.3]
    assert history.lr.values.tolist() == [3e-3, 3e-3]
    assert history.seed.values.tolist() == [0, 1]
    assert history.attrs["bnrank_version"] == __version__
    assert json.loads(history.attrs["settings"])["optimizer"] == "adam"
    assert all("units" in values.attrs and "long_name" in values.attrs for values in history.data_vars.values())
    assert run.summary.steps.values.tolist() == [10, 10]
    np.testing.assert_array_equal(run.summary.loss, history.loss[:, -1])


@pytest.mark.parametrize("optimizer", ["adam", "gd", "lbfgs", "kfac-lbfgs"])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_every_number_of_a_row(optimizer, loss):
    task, ridges = random_task(50, loss=loss), [1e-2, 0.3]
    net = mlp(3, 9, 5, 2, slope=0.2, dtype=torch.float64)
    run = train(net, task, ridge=ridges, optimizer=optimizer, steps=30, dtype=torch.float64, **QUIET)
    for i, ridge in enumerate(ridges):
        last, member = run.history.isel(member=i, step=-1), run.network(i)
        row = flat(member)
        loss, gradient = cost_and_gradient(member, task, row, ridge=ridge)
        assert float(last.parameter_norm) == pytest.approx(float(row.square().sum()), rel=1e-12)
        assert float(last.cost) == pytest.approx(float(cost_of(member, task).detach()), rel=1e-10)
        assert float(last.loss) == pytest.approx(float(loss), rel=1e-11)
        assert float(last.gradient_norm) == pytest.approx(float(gradient.norm()), rel=1e-7, abs=1e-10)
        weights, biases = [w.tolist() for w in member.weights], [b.tolist() for b in member.biases]
        above = total = 0.0
        for layer in range(member.depth - 1):
            for j in range(member.widths[layer + 1]):
                incoming = sum(w**2 for w in weights[layer][j]) + biases[layer][j] ** 2
                outgoing = sum(row[j] ** 2 for row in weights[layer + 1])
                above, total = above + abs(incoming - outgoing), total + incoming + outgoing
        assert float(last.balance_residual) == pytest.approx(above / total, rel=1e-9)
        for layer, weight in enumerate(member.weights):
            expected = torch.linalg.svdvals(weight.detach())
            seen = last.weight_singular_values[layer].values
            np.testing.assert_allclose(seen[: len(expected)], expected, rtol=1e-6, atol=1e-6)
            assert np.isnan(seen[len(expected) :]).all()
    total = run.history.cost + run.history.ridge * run.history.parameter_norm
    np.testing.assert_allclose(run.history.loss, total, rtol=1e-12)


def test_top_singular_values():
    matrix = torch.randn(30, 50, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.logspace(0, -5, 50))
    for m in (matrix, matrix.T):
        expected = torch.linalg.svdvals(m.double())
        torch.testing.assert_close(top_singular_values(m, 12), expected[:12], rtol=1e-6, atol=1e-6)
        assert top_singular_values(m, 100).shape == (30,)
    assert top_singular_values(matrix * float("nan"), 4).isnan().all()


def test_recording_does_not_change_the_run():
    task, net = random_task(50), mlp(3, 9, 2)
    for arguments in ({"optimizer": "adam"}, {"optimizer": "adam", "batch_size": 7}, {"optimizer": "kfac-lbfgs"}):
        often = train(net, task, steps=20, members=2, record=1, progress=False, **arguments)
        seldom = train(net, task, steps=20, members=2, record=Record(every=100, top_k=1), progress=False, **arguments)
        assert seldom.history.step.values.tolist() == [0, 20]
        assert torch.equal(often.parameters, seldom.parameters)


def test_networks_of_a_run(run):
    net = run.network(1)
    assert isinstance(net, MLP)
    assert torch.equal(flat(net), run.parameters[1])
    with pytest.raises(ValueError, match="member: got 2, expected 0 to 1"):
        run.network(2)
    with pytest.raises(ValueError, match="member: got -1"):
        run.network(-1)


def test_progress_is_shown_and_can_be_left_out(capsys):
    train(mlp(3, 2), random_task(), steps=3, progress=True)
    assert "training 1 x MLP" in capsys.readouterr().out
    train(mlp(3, 2), random_task(), steps=3, progress=False)
    assert capsys.readouterr().out == ""


class TestFolder:
    def test_round_trip(self, run, tmp_path):
        assert run.save(tmp_path / "a" / "b") == tmp_path / "a" / "b"
        back = Run.open(tmp_path / "a" / "b")
        assert_same_run(run, back)
        assert back.settings == run.settings
        assert back.seconds == run.seconds
        assert back.history.identical(run.history)
        assert back.summary.identical(run.summary)
        x = random_task().x.float()
        assert torch.equal(back.network(1)(x), run.network(1)(x))
        names = {"history.nc", "summary.nc", "networks.safetensors", "settings.json", "SHA256SUMS"}
        assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == names

    def test_a_module_needs_its_architecture(self, tmp_path):
        net = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 3), nn.Flatten())
        run = train(net, random_task(), steps=3, out=tmp_path, optimizer="adam", progress=False)
        assert_same_run(run, Run.open(tmp_path, net=net))
        assert run.history.sizes["layer"] == 1
        with pytest.raises(ValueError, match="net: the run is of a Sequential"):
            Run.open(tmp_path)
        with pytest.raises(ValueError, match="net: stored Sequential, now Linear"):
            Run.open(tmp_path, net=nn.Linear(2, 2))

    @pytest.mark.parametrize(
        "name", ["history.nc", "summary.nc", "networks.safetensors", "settings.json", "SHA256SUMS"]
    )
    @pytest.mark.parametrize("content", [None, b"", b"no such thing", 0.5])
    def test_a_damaged_folder_is_refused(self, run, tmp_path, name, content):
        run.save(tmp_path)
        path = tmp_path / name
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_bytes(path.read_bytes()[: int(content * path.stat().st_size)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ValueError, match=rf"out: .*({name}' is damaged: .*put back a copy|holds no run)"):
                Run.open(tmp_path)

    def test_no_folder(self, tmp_path):
        with pytest.raises(ValueError, match="holds no run"):
            Run.open(tmp_path / "nowhere")
