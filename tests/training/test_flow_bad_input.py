"""bnrank.flow refuses what it cannot do, and says why."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from training.common import follow, random_task

TASK = random_task()
NET = bnrank.MLP([3, 4, 2], bias=False, init=1e-3, dtype=torch.float64)
WRONG = [
    ({"t_end": None}, ValueError, "t_end: give either"),
    ({"t_after": 1.0, "skip_plateau": True}, ValueError, "t_end: give either"),
    ({"t_end": None, "t_after": 0.0, "skip_plateau": True}, ValueError, "t_after: got 0.0"),
    ({"t_end": 0.0}, ValueError, "t_end: got 0.0, expected a finite number > 0"),
    ({"t_end": float("inf")}, ValueError, "t_end: got inf"),
    ({"method": "rk54"}, ValueError, "did you mean 'rk45'"),
    ({"rtol": 0.0}, ValueError, "rtol: got 0"),
    ({"rtol": 1e-17}, ValueError, "rtol: got 1e-17"),
    ({"rtol": 1e-8, "dtype": torch.float32}, ValueError, "rtol: got 1e-08"),
    ({"method": "euler"}, ValueError, "step: method 'euler' takes steps of a fixed length"),
    ({"method": "euler", "step": -1.0}, ValueError, "step: got -1.0"),
    ({"step": 0.1}, ValueError, "step: got 0.1, which applies to method 'euler' only, not to 'rk45'"),
    ({"batch_size": 5}, ValueError, "batch_size: error control, as in method 'rk45', means nothing"),
    ({"batch_size": 50, "method": "euler", "step": 0.1}, ValueError, "batch_size: got 50, expected at most"),
    ({"max_relative_step": 0.0, "method": "euler", "step": 0.1}, ValueError, "max_relative_step: got 0.0"),
    ({"max_growth": 1.0, "skip_plateau": True}, ValueError, "max_growth: got 1.0"),
    ({"kink_rtol": -1.0}, ValueError, "kink_rtol: got -1.0"),
    ({"handover_rtol": 0.0, "skip_plateau": True}, ValueError, "handover_rtol: got 0.0"),
    ({"time": "s"}, ValueError, "time: got 's'"),
    ({"time": "arc", "method": "bdf"}, ValueError, "time: method 'bdf' runs in 't'"),
    ({"dtype": torch.float16}, ValueError, "dtype: got torch.float16"),
    ({"every": 0}, ValueError, "every: got 0"),
    ({"every": 2, "spectra_every": 3}, ValueError, "spectra_every: got 3, expected a multiple"),
    ({"max_networks": 1}, ValueError, "max_networks: got 1"),
    ({"stop": 3}, TypeError, "stop: got 3"),
    ({"max_minutes": 0.0}, ValueError, "max_minutes: got 0.0"),
    ({"loss": "mae"}, ValueError, "loss: got 'mae'"),
    ({"loss": lambda outputs, y: outputs}, ValueError, "loss: the function returned Tensor of shape"),
    ({"net": 3}, TypeError, "net: got 3"),
    ({"net": nn.ReLU()}, ValueError, "net: got a module without trainable parameters"),
    ({"x": TASK.x[:, :2]}, ValueError, "x: got shape"),
    ({"x": TASK.x * np.nan}, ValueError, "x: got NaN or infinite"),
    ({"x": [[1.0]]}, TypeError, "x: got"),
    ({"y": TASK.y[:3]}, ValueError, "y: got shape"),
    ({"y": TASK.y[:, :1]}, ValueError, "y: got shape .* expected the shape of the outputs"),
    ({"y": TASK.y / 0}, ValueError, "y: got NaN or infinite"),
    ({"y": "labels"}, TypeError, "y: got 'labels'"),
    ({"loss": "cross_entropy"}, ValueError, "y: got .* expected class indices"),
    ({"loss": "cross_entropy", "y": torch.full((40,), 2)}, ValueError, "y: got classes 2 to 2, expected 0 to 1"),
    ({"out": __file__}, ValueError, "out: cannot write"),
    ({"out": "unused", "checkpoint_every": 0}, ValueError, "checkpoint_every: got 0"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG)
def test_wrong_arguments(changes, error, message):
    arguments = {"net": NET, "loss": "mse", "x": TASK.x, "y": TASK.y, "t_end": 1.0} | changes
    x, y, loss = (arguments.pop(name) for name in ("x", "y", "loss"))
    with pytest.raises(error, match=message):
        follow(task=(x, y, loss), **arguments)


def skipping(net, task=TASK, loss="mse", **settings):
    return follow(net, (task.x, task.y, loss), t_after=1.0, skip_plateau=True, **settings)


def test_what_cannot_be_skipped():
    with pytest.raises(ValueError, match="plateau: got a network with biases"):
        skipping(bnrank.MLP([3, 4, 2], init=1e-3))
    with pytest.raises(TypeError, match=r"plateau: .*Tanh"):
        skipping(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)))
    with pytest.raises(TypeError, match=r"plateau: .*Conv1d"):
        skipping(nn.Sequential(nn.Conv1d(1, 1, 1)))
    with pytest.raises(ValueError, match="plateau: got a network of depth 1"):
        skipping(bnrank.MLP([3, 2], bias=False))
    with pytest.raises(ValueError, match="plateau: got a network of zero parameters"):
        skipping(bnrank.MLP([3, 4, 2], bias=False, init=0.0))
    frozen = copy.deepcopy(NET)
    frozen.weights[0].requires_grad_(False)
    with pytest.raises(ValueError, match="plateau: got parameters that are not trained"):
        skipping(frozen)
    with pytest.raises(ValueError, match="G, the gradient of the loss at zero outputs, is zero"):
        follow(NET, (TASK.x, 0 * TASK.y), t_after=1.0, skip_plateau=True)
    with pytest.raises(ValueError, match="x: got zeros only"):
        follow(NET, (0 * TASK.x, TASK.y), t_after=1.0, skip_plateau=True)


def test_absolute_values_have_no_gradient_to_rely_on():
    """A loss with a kink at zero outputs: the gradient there is not that nearby."""

    def loss(outputs, y):
        return outputs.abs().sum(1).mean()

    with pytest.raises(ValueError, match=r"loss: its gradient at zero outputs is not continuous|is zero"):
        skipping(NET, loss=loss)


def test_infinite_parameters_are_named():
    net = from_layers([torch.full((4, 3), torch.inf), torch.ones(2, 4)])
    with pytest.raises(ValueError, match=r"layers.0.weight"):
        follow(net, TASK, 1.0)
    huge = from_layers([torch.full((4, 3), 1e200, dtype=torch.float64), torch.full((2, 4), 1e200, dtype=torch.float64)])
    with pytest.raises(ValueError, match="at the start is not finite"):
        follow(huge, TASK, 1.0)


def test_the_network_is_left_as_it_is():
    before = copy.deepcopy(NET.state_dict())
    skipping(NET)
    for name, tensor in NET.state_dict().items():
        assert torch.equal(tensor, before[name])
