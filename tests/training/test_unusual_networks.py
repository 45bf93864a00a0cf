"""Networks that are not quite an MLP are trained as what they are, and what happens to members is told as it is."""

import json
import math

import pytest
import torch
from torch import nn

import bnrank
from bnrank._core import store
from bnrank.measures import balance
from bnrank.training.kronecker import SAMPLES, KroneckerCurvature

from .common import trained

TASK = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=3, latent=3, rank=2, seed=0)
QUICK = {"every": 1, "progress": False}


class Shifted(bnrank.MLP):
    def forward(self, x):
        return super().forward(x) + 100


def true_cost(net, task=TASK):
    with torch.no_grad():
        return float((net(task.x) - task.y).square().sum() / task.n)


@pytest.mark.parametrize("optimizer", ["auto", "adam"])
def test_a_subclass_is_trained_by_its_own_forward(optimizer):
    net = Shifted([4, 6, 3], seed=1)
    run = trained(net, TASK, steps=3, optimizer=optimizer, **QUICK)
    assert float(run.history.cost[0, 0]) == pytest.approx(true_cost(net), rel=1e-5)
    assert float(run.summary.cost[0]) == pytest.approx(true_cost(run.network(0)), rel=1e-5)


def test_a_replaced_layer_and_a_frozen_one_are_respected():
    net = bnrank.MLP([4, 6, 6, 3], seed=1)
    net.layers[1] = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    run = trained(net, TASK, steps=3, optimizer="adam", **QUICK)
    assert float(run.history.cost[0, 0]) == pytest.approx(true_cost(net), rel=1e-5)
    frozen = bnrank.MLP([4, 6, 3], seed=1)
    frozen.layers[0].weight.requires_grad_(False)
    run = trained(frozen, TASK, steps=5, optimizer="adam", **QUICK)
    assert torch.equal(run.network(0).weights[0], frozen.weights[0])
    assert not torch.equal(run.network(0).weights[1], frozen.weights[1])
    assert "not trained" in run.history.attrs["skipped"]
    with pytest.raises(ValueError, match="kfac-lbfgs"):
        trained(frozen, TASK, steps=1, optimizer="kfac-lbfgs", **QUICK)


def test_a_layer_used_twice_is_trained_as_one_and_left_whole():
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    run = trained(net, TASK, steps=10, optimizer="adam", **QUICK)
    assert all(isinstance(p, nn.Parameter) for p in net.parameters())
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    learned = run.network(0)
    assert learned[0] is learned[2]
    assert not torch.equal(learned[0].weight, layer.weight)
    assert float(run.summary.cost[0]) == pytest.approx(true_cost(learned), rel=1e-5)


def test_a_function_without_a_signature_gives_the_members():
    nets = {3: bnrank.MLP([4, 5, 3], seed=7), 4: bnrank.MLP([4, 5, 3], seed=8)}
    run = trained(nets.__getitem__, TASK, steps=2, members=2, seed=[3, 4], optimizer="adam", **QUICK)
    assert [float(c) for c in run.history.cost[:, 0]] == pytest.approx([true_cost(nets[s]) for s in (3, 4)], rel=1e-5)


def test_a_compiled_network_is_trained_as_the_network_inside():
    net = bnrank.MLP([4, 6, 3], seed=1)
    compiled = trained(torch.compile(net, backend="eager"), TASK, steps=5, **QUICK)
    plain = trained(net, TASK, steps=5, **QUICK)
    assert torch.equal(compiled.parameters, plain.parameters)
    assert compiled.history.identical(plain.history)


def test_the_seed_of_another_module_decides_its_batches():
    net = nn.Sequential(nn.Linear(4, 3))
    options = {"steps": 4, "batch_size": 8, **QUICK}
    ones = trained(net, TASK, seed=1, **options)
    twos = trained(net, TASK, seed=2, **options)
    both = trained(net, TASK, seed=1, members=2, **options)
    assert not torch.equal(ones.parameters, twos.parameters)
    torch.testing.assert_close(both.parameters, torch.cat([ones.parameters, twos.parameters]))


def test_a_function_that_takes_no_seed_is_refused():
    with pytest.raises(TypeError, match="net: got a function that cannot be called with a seed"):
        trained(lambda: bnrank.MLP([4, 3]), TASK, steps=1, **QUICK)


def test_a_convolution_that_pads_with_zeros_says_what_its_spectrum_is():
    net = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 1, 3, padding=1), nn.Flatten(), nn.Linear(4, 3))
    run = trained(net, TASK, steps=1, optimizer="adam", **QUICK)
    (note,) = json.loads(run.history.attrs["notes"])
    assert note["name"] == "1"
    assert "circular" in note["note"]


def test_a_nan_is_never_balanced():
    residual = balance.between([torch.tensor([[math.nan]]), torch.tensor([[1.0]])], []).residual
    assert math.isnan(residual)


@pytest.mark.parametrize("lr", [10.0, 1e6, 1e30])
def test_a_diverged_member_keeps_the_parameters_of_its_last_finite_row(lr):
    net = bnrank.MLP([4, 8, 8, 3], seed=0)
    options = {"optimizer": "gd", "steps": 40, "seed": [0, 1], "balance_residual": 1e-6}
    run = trained(net, TASK, lr=[1e-3, lr], **options, **QUICK)
    assert run.summary.status.values.tolist() == ["finished", "diverged"]
    assert math.isfinite(float(run.summary.loss[1]))
    with torch.no_grad():
        kept = float((run.network(1).double()(TASK.x.double()) - TASK.y).square().sum() / TASK.n)
    assert kept == pytest.approx(float(run.summary.cost[1]), rel=1e-4)


def test_the_metric_sees_all_classes_of_data_in_periodic_order():
    task = bnrank.tasks.s_shapes(n=4 * SAMPLES)
    net = bnrank.MLP([2, 5, 4])
    for seed in (0, 1):
        seen = KroneckerCurvature(net, task.x, task.loss, 1e-3, seed).x
        assert len(seen) == SAMPLES
        assert abs(float(seen[:, 0].mean() - task.x[:, 0].mean())) < 0.1


@pytest.mark.parametrize("damage", ["final", "shape"])
def test_a_checkpoint_with_the_wrong_tensors_is_refused_by_name(tmp_path, damage):
    net = bnrank.MLP([4, 6, 3], seed=1)
    trained(net, TASK, steps=4, optimizer="adam", out=tmp_path, **QUICK)
    path = tmp_path / "checkpoint.safetensors"
    stored = store.load(path)
    tensors = dict(stored.tensors)
    if damage == "final":
        del tensors["final"]
    else:
        tensors["final"] = tensors["final"][:, :5].contiguous()
    store.save(path, tensors, stored.about, stored.kind)
    with pytest.raises(ValueError, match=r"out: .*checkpoint.safetensors' is no checkpoint"):
        trained(net, TASK, steps=8, optimizer="adam", out=tmp_path, **QUICK)


def test_a_run_made_longer_has_the_rows_of_a_long_run(tmp_path):
    net = bnrank.MLP([4, 6, 3], seed=1)
    options = {"optimizer": "adam", "every": 10, "progress": False}
    trained(net, TASK, steps=25, out=tmp_path, **options)
    longer = trained(net, TASK, steps=50, out=tmp_path, **options)
    at_once = trained(net, TASK, steps=50, **options)
    assert longer.history.step.values.tolist() == at_once.history.step.values.tolist() == [0, 10, 20, 30, 40, 50]
    assert longer.history.drop_attrs().identical(at_once.history.drop_attrs())
