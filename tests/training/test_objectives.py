"""Cost and gradient of ensembles against autograd in float64, one member after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank.training.ensemble import Workers
from bnrank.training.objectives import MLPObjective, ModuleObjective, refuse_untrainable

from .common import cost_and_gradient, flat, mlp, random_task


def evaluated(kind, net, task, rows, workers, batch=None, dtype=torch.float64, times=1):
    y = task.y if task.loss == "cross_entropy" else task.y.to(dtype)
    with workers:
        objective = kind(net, task.x.to(dtype), y, task.loss, len(rows), workers)
        for time in reversed(range(times)):  # elsewhere, and at last at the rows
            objective.theta.copy_(rows + time)
            objective.evaluate(batch)
    return objective


def check_against_autograd(kind, net, task, rows, batch=None, threads=2, rtol=1e-12):
    objective = evaluated(kind, net, task, rows, Workers(threads), batch)
    for i, row in enumerate(rows):
        cost, gradient = cost_and_gradient(net, task, row, None if batch is None else batch[i])
        assert float(objective.cost[i]) == pytest.approx(float(cost), rel=rtol)
        assert float((objective.gradient[i] - gradient).norm()) <= rtol * float(gradient.norm()) + 1e-300
    assert torch.equal(objective.theta, rows)


def random_rows(net, members, seed=0, scale=0.6):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(members, len(flat(net)), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", [40, 600])
def test_one_member_on_weighted_samples_has_the_gradient_that_it_has_among_several(n):
    net, task = mlp(3, 5, 4, 2), random_task(n, 3, 2)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    rows, found = random_rows(net, 2), []
    for some, inference in ((rows, False), (rows[:1], False), (rows[:1], True)):
        with Workers(1) as workers:
            objective = ModuleObjective(net, task.x, task.y, task.loss, len(some), workers, weights=weights)
            objective.theta.copy_(some)
            objective.evaluate()
            with torch.inference_mode(inference):
                found.append((float(objective.evaluate()[0]), objective.gradient[0].clone()))
    (several, of_several), *others = found
    assert float(of_several.norm()) > 1e-2
    for alone, gradient in others:
        assert several == pytest.approx(alone, rel=1e-14)
        torch.testing.assert_close(of_several, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [[3, 2], [3, 7, 2], [3, 1, 9, 2], [3, 5, 4, 6, 2], [3, 4, 8, 1, 5, 2]])
def test_mlp_gradient_is_that_of_autograd(loss, slope, bias, widths):
    net = mlp(*widths, slope=slope, bias=bias)
    task = random_task(600, 3, 2, loss)  # three blocks
    check_against_autograd(MLPObjective, net, task, random_rows(net, 3))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    members=st.integers(1, 5),
    n=st.sampled_from([1, 2, 17, 255, 256, 257, 513]),
    slope=st.sampled_from([0.0, 0.3, -0.4]),
    bias=st.booleans(),
    loss=st.sampled_from(["mse", "cross_entropy"]),
    own=st.booleans(),
)
def test_mlp_gradient_for_any_shape(widths, members, n, slope, bias, loss, own):
    net = mlp(*widths, slope=slope, bias=bias)
    task = random_task(n, widths[0], widths[-1], loss, seed=n)
    rows = random_rows(net, members, seed=n)
    batch = None
    if own:
        batch = torch.randint(n, (members, max(1, n // 2)), generator=torch.Generator().manual_seed(n))
    check_against_autograd(MLPObjective, net, task, rows, batch, rtol=1e-11)
    together = evaluated(MLPObjective, net, task, rows, Workers(2), batch, torch.float32)
    for i in range(members):
        own_batch = None if batch is None else batch[i : i + 1]
        alone = evaluated(MLPObjective, net, task, rows[i : i + 1], Workers(1), own_batch, torch.float32)
        assert torch.equal(alone.gradient[0], together.gradient[i])
        assert alone.cost[0] == together.cost[i]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.4])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_mlp_bits_depend_on_nobody_else(dtype, slope, loss):
    net = mlp(20, 50, 33, 50, 10, slope=slope)
    task = random_task(700, 20, 10, loss)
    rows = random_rows(net, 7, scale=0.2)
    one = evaluated(MLPObjective, net, task, rows, Workers(1), dtype=dtype)
    two = evaluated(MLPObjective, net, task, rows, Workers(2), dtype=dtype, times=3)
    three = evaluated(MLPObjective, net, task, rows, Workers(3), dtype=dtype)
    for other in (two, three):
        assert torch.equal(one.gradient, other.gradient)
        assert torch.equal(one.cost, other.cost)
    for i in range(len(rows)):
        alone = evaluated(MLPObjective, net, task, rows[i : i + 1], Workers(2), dtype=dtype)
        assert torch.equal(alone.gradient[0], one.gradient[i])
        assert alone.cost[0] == one.cost[i]


def test_a_full_batch_follows_a_mini_batch():
    net, task = mlp(3, 8, 2), random_task(300)
    rows = random_rows(net, 2)
    with Workers(2) as workers:
        objective = MLPObjective(net, task.x, task.y, "mse", 2, workers)
        objective.theta.copy_(rows)
        objective.evaluate(torch.arange(40).view(2, 20))
        objective.evaluate()
    _, gradient = cost_and_gradient(net, task, rows[1])
    torch.testing.assert_close(objective.gradient[1], gradient, rtol=1e-11, atol=1e-13)


def modules():
    torch.manual_seed(0)
    convolution = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.LayerNorm(18), nn.Linear(18, 2)
    )
    frozen = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 2))
    frozen[2].requires_grad_(False)
    tied = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))
    tied[2].weight = tied[0].weight
    return {"convolution": convolution, "frozen": frozen, "tied": tied}


@pytest.mark.parametrize("name", ["convolution", "frozen", "tied"])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("n", [30, 2500])
def test_module_gradient_is_that_of_autograd(name, loss, n):
    net = modules()[name]
    task = random_task(n, 8, 2, loss)
    rows = random_rows(net, 3)
    batch = torch.randint(n, (3, n // 2), generator=torch.Generator().manual_seed(1))
    for members in (1, 3):
        check_against_autograd(ModuleObjective, net, task, rows[:members])
        check_against_autograd(ModuleObjective, net, task, rows[:members], batch[:members])


class Squared(torch.autograd.Function):
    """x^2, without a rule for `vmap`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Applied(nn.Linear):
    """A linear layer, and a function of what it returns."""

    def __init__(self, function):
        super().__init__(8, 2)
        self.function = function

    def forward(self, x):
        return self.function(super().forward(x))


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("function", [nn.functional.dropout, Squared.apply])
def test_what_cannot_be_vectorized_is_refused_alone_too(members, function):
    net = Applied(function)
    with pytest.raises(ValueError, match="net: Applied cannot be differentiated for all members at once"):
        evaluated(ModuleObjective, net, random_task(30, 8, 2), random_rows(net, members), Workers(1))


@pytest.mark.parametrize("members", [1, 2])
def test_parameters_without_effect_have_no_gradient(members):
    net = Applied(torch.zeros_like)
    with torch.no_grad():
        objective = evaluated(ModuleObjective, net, random_task(30, 8, 2), random_rows(net, members), Workers(1))
    assert not objective.gradient.any()


def test_module_and_mlp_agree():
    net = mlp(8, 9, 2, slope=0.3)
    task, rows = random_task(50, 8, 2), random_rows(net, 3)
    fast = evaluated(MLPObjective, net, task, rows, Workers(2))
    slow = evaluated(ModuleObjective, net, task, rows, Workers(2))
    torch.testing.assert_close(fast.gradient, slow.gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(4), r"layer '1' \(BatchNorm1d\).*LayerNorm"),
        (nn.BatchNorm1d(4, track_running_stats=False), r"layer '1' \(BatchNorm1d\)"),
        (nn.InstanceNorm1d(4, track_running_stats=True), r"layer '1' \(InstanceNorm1d\) updates running statistics"),
        (nn.Dropout(0.2), r"layer '1' \(Dropout\) is random"),
        (nn.AlphaDropout(0.2), r"layer '1' \(AlphaDropout\) is random"),
        (nn.RReLU(), r"layer '1' \(RReLU\) is random"),
    ],
)
def test_untrainable_layers_are_refused_by_name(layer, message):
    with pytest.raises(ValueError, match=message):
        refuse_untrainable(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)))


def test_harmless_layers_are_let_through():
    harmless = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0), nn.InstanceNorm1d(4), nn.LayerNorm(4))
    assert refuse_untrainable(harmless) is None


def fail():
    raise RuntimeError("inside")


def test_threads_of_libraries_are_put_back():
    before = torch.get_num_threads()
    with Workers(2) as workers:
        assert torch.get_num_threads() == 1
        with pytest.raises(RuntimeError, match="inside"):
            workers.share([lambda: None, fail, lambda: None])
    assert torch.get_num_threads() == before
