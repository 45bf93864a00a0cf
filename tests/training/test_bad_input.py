"""What cannot be trained is refused at once, by name, with what came and what was expected."""

import numpy as np
import pytest
import torch
from torch import nn

from bnrank import MLP
from bnrank.tasks import Task
from bnrank.training import GradientDescent, flow, train

from .common import mlp, random_task, trained

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(20, 2)


def changed(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (X, Y[:19], ValueError, "x, y: got 20 and 19 samples, expected the same number"),
        (changed(X, (3, 1), float("nan")), Y, ValueError, "x: got NaN or infinite entries in 1 of 20 samples"),
        (X, changed(Y, 4, float("inf")), ValueError, "y: got NaN or infinite entries in 1 of 20"),
        (X[:0], Y[:0], ValueError, r"x: got an empty array of shape \(0, 3\), expected \(N, ...\)"),
        (X[:, :0], Y, ValueError, r"x: got an empty array of shape \(20, 0\)"),
        (X, Y[:, :0], ValueError, r"y: got an empty array of shape \(20, 0\)"),
        (X.long(), Y, TypeError, "x: got dtype torch.int64, expected floating point"),
        (X, Y.int(), TypeError, "y: got dtype torch.int32, expected floating point"),
        (X.numpy().astype(int), Y, TypeError, "x: got dtype torch.int64"),
        (X.tolist(), Y, TypeError, r"x: got .*\(list\), expected a torch.Tensor or numpy.ndarray"),
        (X, Y[:, 0], ValueError, r"y: got Tensor of shape \(20,\) .*expected \(N, d_out\).*cross_entropy"),
        (X[0], Y, ValueError, r"x: got shape \(3,\), expected \(N, ...\), one sample per row"),
        (np.array([["a", "b"]]), Y, TypeError, "x: got ndarray .*expected floating-point"),
    ],
)
def test_data(x, y, error, message):
    with pytest.raises(error, match=message):
        train(mlp(3, 4, 2), Task(x, y), progress=False)


@pytest.mark.parametrize(
    ("labels", "classes", "error", "message"),
    [
        (Y[:, 0], 2, TypeError, "y: got Tensor .*expected class indices"),
        (torch.full((20,), 2), 2, ValueError, "y: got class indices from 2 to 2, expected class indices from 0 to 1"),
        (torch.full((20,), -1), 2, ValueError, "y: got class indices from -1 to -1"),
        (torch.zeros(19, dtype=torch.long), 2, ValueError, "x, y: got 20 and 19 samples"),
    ],
)
def test_labels(labels, classes, error, message):
    with pytest.raises(error, match=message):
        Task(X, labels, loss="cross_entropy", classes=classes)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8])
def test_class_numbers_may_be_of_any_integer_type(dtype):
    """PyTorch finds no smallest entry of unsigned integers of more than one byte."""
    labels = (np.arange(20) % 3).astype(dtype)
    task = Task(X, labels, loss="cross_entropy")
    assert (task.classes, task.y.dtype, task.y.tolist()) == (3, torch.int64, labels.tolist())
    flow(mlp(3, 4, 3), (X, labels, "cross_entropy"), 0.01, progress=False)


def test_one_sample():
    with pytest.raises(ValueError, match="task: got 1 sample, expected at least 2"):
        train(mlp(3, 4, 2), Task(X[:1], Y[:1]), progress=False)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ridge": -1e-3}, ValueError, "ridge: got -0.001, expected a finite number >= 0"),
        ({"ridge": float("nan")}, ValueError, "ridge: got nan"),
        ({"ridge": "large"}, TypeError, "ridge: got 'large'"),
        ({"ridge": [0.1, -0.2]}, ValueError, r"ridge\[1\]: got -0.2"),
        ({"ridge": [0.1, "a"]}, TypeError, r"ridge\[1\]: got 'a'"),
        ({"ridge": [[0.1], [0.2]]}, TypeError, r"ridge\[0\]: got \[0.1\]"),
        (
            {"ridge": [0.1, 0.2], "members": 3},
            ValueError,
            r"ridge: got 2 values, expected one number or one per mem.*3",
        ),
        ({"ridge": np.array([0.1, 0.2]), "seed": [1, 2, 3]}, ValueError, "ridge: got 2 values.*3"),
        ({"ridge": []}, ValueError, "ridge: got 0 values"),
        ({"lr": [0.1, 0.2], "members": 3, "optimizer": "adam"}, ValueError, "lr: got 2 values.*3"),
        ({"lr": 0, "optimizer": "adam"}, ValueError, "lr: got 0, expected a finite number > 0"),
        ({"seed": [1, 2], "members": 3}, ValueError, r"seed: got 2 values, expected one or one per member \(3\)"),
        ({"seed": -1}, ValueError, "seed: got -1"),
        ({"seed": 0.5}, TypeError, "seed: got 0.5"),
        (
            {"net": [mlp(3, 4, 2)] * 2, "members": 3},
            ValueError,
            r"net: got 2 networks, expected .* one per member \(3\)",
        ),
        (
            {"net": [mlp(3, 4, 2), mlp(3, 5, 2)]},
            ValueError,
            r"net: members 0 and 1 .*differ in more than .*layers.0.weight",
        ),
        ({"net": []}, TypeError, r"net: got \[\]"),
        ({"net": [mlp(3, 4, 2), 3]}, TypeError, r"net: got 3"),
        ({"members": 0}, ValueError, "members: got 0, expected an integer of at least 1"),
        ({"members": 2.0}, TypeError, r"members: got 2.0 \(float\)"),
        ({"optimizer": "adamw"}, ValueError, r"optimizer: got 'adamw' .*expected one of .*did you mean 'adam'\?"),
        ({"optimizer": "kfac"}, ValueError, r"optimizer: got 'kfac'.*did you mean 'kfac-lbfgs'\?"),
        ({"optimizer": None}, ValueError, "optimizer: got None"),
        ({"schedule": "cosin", "optimizer": "adam"}, ValueError, r"schedule: got 'cosin'.*did you mean 'cosine'\?"),
        ({"schedule": "normalized", "optimizer": "adam"}, ValueError, "schedule: got 'normalized'"),
        ({"batch_size": 21}, ValueError, "batch_size: got 21, expected at most the number of samples, 20"),
        ({"batch_size": 0}, ValueError, "batch_size: got 0"),
        ({"batch_size": 4, "optimizer": "lbfgs"}, ValueError, "optimizer: 'lbfgs' needs the whole gradient"),
        ({"batch_size": 4, "gradient_norm": 0.1}, ValueError, "gradient_norm: .*mini-batches"),
        ({"gradient_norm": -1}, ValueError, "gradient_norm: got -1"),
        ({"balance_residual": "no"}, TypeError, "balance_residual: got 'no'"),
        ({"dtype": torch.float16}, ValueError, "dtype: got torch.float16, expected torch.float32 or torch.float64"),
        ({"dtype": torch.int64}, ValueError, "dtype: got torch.int64"),
        ({"dtype": "float64"}, ValueError, "dtype: got float64"),
        ({"steps": -1}, ValueError, "steps: got -1, expected an integer of at least 0"),
        ({"steps": 1e3}, TypeError, r"steps: got 1000.0 \(float\)"),
        ({"every": 0}, ValueError, "every: got 0"),
        ({"record": "all"}, TypeError, "every: got 'all'"),
        ({"every": 2, "spectra_every": 3}, ValueError, "spectra_every: got 3, expected a multiple of every, 2"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every: got 0"),
        ({"top_k": 0}, ValueError, "top_k: got 0"),
        ({"net": mlp(4, 5, 2)}, ValueError, r"net: got widths \[4, 5, 2\], expected 3 inputs and 2 outputs"),
        ({"net": mlp(3, 5, 1)}, ValueError, r"net: got widths \[3, 5, 1\], expected 3 inputs and 2 outputs"),
        ({"net": nn.Linear(4, 2)}, ValueError, r"net: cannot take x of shape \(20, 3\)"),
        ({"net": nn.Linear(3, 1)}, ValueError, r"net: gives outputs of shape \(1,\), expected \(2,\)"),
        ({"net": nn.LSTM(3, 2)}, ValueError, "(?s)net: gives .*tuple.*expected one tensor"),
        ({"net": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, ValueError, r"net: layer '1' \(BatchNorm1d\)"),
        ({"net": nn.Sequential(nn.Linear(3, 2), nn.Dropout())}, ValueError, r"net: layer '1' \(Dropout\) is random"),
        ({"net": nn.Flatten()}, ValueError, "net: got a module without trainable parameters"),
        ({"net": "mlp"}, TypeError, "net: got 'mlp'"),
        ({"net": lambda seed: seed}, TypeError, r"net: the function returned 0 \(int\)"),
        (
            {"net": lambda seed: MLP([3, 4 + seed, 2]), "members": 2},
            ValueError,
            "net: members 0 and 1 .*differ in more than .*layers.0.weight",
        ),
        ({"net": nn.Linear(3, 2), "members": 2}, ValueError, "members: got 2 of the same Linear"),
        (
            {"net": nn.Linear(3, 2), "optimizer": "kfac-lbfgs"},
            ValueError,
            "'kfac-lbfgs' needs a bnrank.MLP",
        ),
        ({"net": nn.Linear(3, 2), "balance_residual": 0.1}, ValueError, "balance_residual: .*for a bnrank.MLP"),
        ({"task": X}, TypeError, "(?s)task: got .*expected a bnrank.tasks.Task or a tuple"),
        ({"task": (X, Y, "mae")}, ValueError, "loss: got 'mae'"),
    ],
)
def test_arguments(arguments, error, message, tmp_path):
    given = {"net": mlp(3, 4, 2), "task": Task(X, Y)} | arguments
    with pytest.raises(error, match=message):
        trained(given.pop("net"), given.pop("task"), out=tmp_path / "run", progress=False, **given)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("ridge", [torch.tensor(0.1), np.float32(0.1), np.array(0.1), 1])
def test_numbers_of_any_kind(ridge):
    run = train(mlp(3, 4, 2), random_task(), ridge=ridge, steps=2, progress=False)
    assert run.settings.ridge == (float(ridge),)


@pytest.mark.parametrize("seed", [np.array([3, 5]), torch.tensor([3, 5]), (3, 5)])
def test_sequences_of_any_kind(seed):
    run = train(mlp(3, 4, 2), random_task(), seed=seed, ridge=np.array([0.1, 0.2]), steps=2, progress=False)
    assert run.settings.seeds == (3, 5)
    assert run.settings.ridge == (0.1, 0.2)


class Infinite(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 0


def test_data_that_require_a_gradient_train_as_those_that_do_not():
    for net in (mlp(3, 4, 2), nn.Sequential(nn.Linear(3, 2))):
        plain = train(net, (X, X[:, :2]), steps=3, progress=False)
        given = train(net, (X.clone().requires_grad_(), X[:, :2].clone().requires_grad_()), steps=3, progress=False)
        assert torch.equal(plain.parameters, given.parameters)


def test_a_loss_that_is_not_finite_at_the_start_is_told():
    with pytest.warns(UserWarning, match="net: the loss at the start is not finite for 1 of 1 members"):
        run = train(Infinite(3, 2), (X, Y), steps=3, progress=False)
    assert run.summary.status.values.tolist() == ["diverged"]


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.MultiheadAttention(3, 1), "net: cannot take x of shape"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)), "net: .* cannot be differentiated for all members"),
    ],
)
def test_networks_that_cannot_be_evaluated_are_named(net, message):
    with pytest.raises(ValueError, match=message):
        train(net, (X, Y), steps=3, progress=False)


def test_a_flow_that_an_implicit_solver_cannot_follow_names_the_solver():
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)

    def loss(outputs, y):
        return outputs.mean() * torch.sqrt(outputs.mean() - 0.9) / torch.sqrt(outputs.mean() - 0.9)

    with pytest.raises(ValueError, match="solver: 'bdf' cannot integrate this flow"):
        flow(net, (torch.ones(4, 1), torch.zeros(4, 1), loss), 10.0, solver="bdf")


def test_a_loss_that_diverges_during_training_is_told():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    settings = {"steps": 30, "optimizer": GradientDescent(lr=1e6), "record": 10, "progress": False}
    with pytest.warns(UserWarning, match="the loss during training is not finite for 1 of 1 members"):
        run = train(MLP([3, 4, 3], seed=0), (x, x), **settings)
    assert run.summary.status.values.tolist() == ["diverged"]
