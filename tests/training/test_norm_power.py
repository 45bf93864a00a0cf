"""Steps divided by a power of ||theta||: against plain loops, T35, and waiting against skipping the first plateau."""

import copy
import math

import numpy as np
import pytest
import torch

import bnrank
from bnrank.tasks import digits
from bnrank.training import GradientDescent, Limits, Record, SkipPlateau, Solver
from bnrank.training.ensemble import BatchOrder, scaled_step

from .common import cost_of, flat, follow, mlp, put, random_task

SIZE, STEPS, SEED = 16, 40, 3


def loop(net, task, step, power, ridge=0.0, seed=SEED):
    """The loop that anyone would write: theta <- theta - step / ||theta||^power gradient; also the sum of the steps."""
    net, order, time = put(net, flat(net)), BatchOrder([seed], task.n, SIZE), 0.0
    for number in range(STEPS):
        own = list(net.parameters())
        squares = sum(p.square().sum() for p in own)
        loss = cost_of(net, task, order.at(number)[0]) + ridge * squares
        rate = step / math.sqrt(squares.item()) ** power
        time += rate
        with torch.no_grad():
            for p, gradient in zip(own, torch.autograd.grad(loss, own), strict=True):
                p -= rate * gradient
    return flat(net), time


@pytest.mark.parametrize("power", [0.5, 4.0])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_train_is_the_loop(power, loss):
    task, net = random_task(100, loss=loss), mlp(3, 8, 8, 2, seed=5, dtype=torch.float64)
    rates, ridges = [0.3, 1.0], [0.0, 0.02]
    optimizer = GradientDescent(rates, norm_power=power)
    options = {"batch_size": SIZE, "steps": STEPS, "dtype": torch.float64, "progress": False}
    run = bnrank.train([net, net], task, ridge=ridges, seed=[SEED, SEED + 1], optimizer=optimizer, **options)
    for i in range(2):
        start = copy.deepcopy(net).reset(SEED + i)
        expected = loop(start, task, rates[i], power, ridges[i], SEED + i)[0]
        torch.testing.assert_close(run.parameters[i], expected, rtol=1e-10, atol=1e-11)


def test_flow_is_the_loop():
    task, net = random_task(100, loss="cross_entropy"), mlp(3, 8, 8, 2, seed=5, bias=False, dtype=torch.float64)
    expected, time = loop(net, task, 1.0, 2.0)
    settings = {"step": 1.0, "norm_power": 2.0, "max_relative_step": 1e9, "batch_size": SIZE, "seed": SEED}
    result = follow(net, task, 1e9, method="euler", max_evaluations=STEPS + 1, **settings)
    assert (result.steps, result.status) == (STEPS, "evaluations used up")
    torch.testing.assert_close(flat(result.network), expected, rtol=1e-10, atol=1e-11)
    assert result.times[-1] == pytest.approx(time, rel=1e-12)


def test_the_longest_relative_step_still_applies():
    task, net = random_task(100), mlp(3, 8, 8, 2, seed=5, bias=False, dtype=torch.float64)
    result = follow(net, task, 1.0, method="euler", step=1e6, norm_power=2.0, max_relative_step=1e-3)
    lengths = np.diff(result.times) * result.gradient_norm[:-1] / np.sqrt(result.parameter_norm[:-1])
    assert len(lengths) > 10
    np.testing.assert_allclose(lengths[:-1], 1e-3, rtol=1e-9)


def test_a_step_beyond_the_range_of_floats():
    assert scaled_step(10.0, 2.0, 4.0) == pytest.approx(10 / 16, rel=1e-14)
    assert scaled_step(10.0, 1e-300, 4.0) == math.inf
    assert scaled_step(10.0, 1e300, 4.0) == 0.0
    assert scaled_step(10.0, 0.0, 4.0) == scaled_step(0.0, 1.0, 4.0) == 0.0


def test_zero_weights_stay():
    net, task = mlp(3, 4, 2, init=0.0, bias=False), random_task(20)
    run = bnrank.train(net, task, optimizer=GradientDescent(1.0, norm_power=4), steps=3, progress=False)
    assert not run.parameters.any()


@pytest.mark.parametrize(("init", "dtype"), [(1e-80, torch.float64), (1e-20, torch.float32)])
def test_weights_whose_gradient_underflows(init, dtype):
    """The step is infinite in this precision while the gradient is 0: an error, not NaN."""
    net, task = mlp(3, 4, 4, 4, 4, 4, 2, init=init, bias=False, seed=0, dtype=torch.float64), random_task(20)
    message = r"norm_power: got 4, for which the step 0.1 / \|\|theta\|\|\^4 is above .* at \|\|theta\|\| = \d"
    rule = GradientDescent(0.1, norm_power=4)
    with pytest.raises(ValueError, match=message):
        bnrank.train(net, task, optimizer=rule, seed=0, steps=3, dtype=dtype, progress=False)
    solver, data = Solver("euler", step=0.1, norm_power=4), (task.x, task.y, task.loss)
    with pytest.raises(ValueError, match=message):
        bnrank.flow(net, data, 1e9, solver=solver, dtype=dtype)
    if init > 1e-50:  # the plateau's end is in the range of floats
        skip = SkipPlateau(t_after=1e-3)
        assert bnrank.flow(net, data, solver=solver, plateau=skip, dtype=dtype).status == "finished"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientDescent(norm_power=-1.0), "norm_power: got -1.0"),
        (lambda: GradientDescent(norm_power=math.nan), "norm_power: got nan"),
        (
            lambda: GradientDescent(schedule="normalized", norm_power=4),
            "norm_power: got 4, expected 0 for the schedule",
        ),
        (lambda: Solver("rk45", norm_power=4), "norm_power: got 4, expected 0 for method 'rk45'"),
        (lambda: Solver("euler", step=0.1, norm_power=-2.0), "norm_power: got -2.0"),
        (lambda: SkipPlateau(batch_size=0), "batch_size: got 0"),
    ],
)
def test_bad_powers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("size", "given", "message"), [(41, 8, "got 41, expected at most"), (8, None, "both or neither")]
)
def test_bad_batches_on_the_plateau(size, given, message):
    net, task = mlp(3, 6, 2, init=1e-3, bias=False), random_task(40)
    solver = Solver("euler", step=0.1, batch_size=given)
    with pytest.raises(ValueError, match=message):
        bnrank.flow(net, task, solver=solver, plateau=SkipPlateau(t_after=1.0, batch_size=size))


def wait(init, power, step):
    """Return the steps until a tenth of the loss is gone, None if it is not in 800 steps."""
    task = bnrank.tasks.low_rank_map(n=40, d_in=4, d_out=4, latent=3, rank=2, seed=0)
    net = bnrank.MLP([4, 12, 12, 12, 4], bias=False, init=init)
    optimizer = GradientDescent(step, norm_power=power)
    record = Record(5, spectra_every=800)
    options = {"steps": 800, "dtype": torch.float64, "record": record, "progress": False}
    run = bnrank.train(net, task, seed=0, optimizer=optimizer, **options)
    below = np.flatnonzero(run.history.loss.values[0] < 0.9 * run.history.loss.values[0, 0])
    return int(run.history.step[below[0]]) if len(below) else None


def test_the_plateau_takes_few_steps_from_any_scale_at_power_depth_minus_two():
    """Steps are constant in the time s of T35, in which log ||theta|| grows at a rate that only the direction sets."""
    near, far, further = (wait(init, 2.0, 0.02) for init in (1e-2, 1e-3, 1e-4))
    assert None not in (near, far, further)
    assert 0 < far - near < 100
    assert further - far == pytest.approx(far - near, rel=0.1)  # as many for every factor of ten
    assert wait(1e-2, 0.0, 0.02) is None  # a constant step needs a hundred times as many as from 0.1


def flat_cosine(one, other):
    one, other = flat(one).double(), flat(other).double()
    return float(one @ other / one.norm() / other.norm())


def followed(net, task, plateau, end=None, stop=2.1):
    """Return the flow of the printed rule with mini-batches, at depth 4."""
    solver = Solver("euler", step=1.0, norm_power=2.0, max_relative_step=1e9, batch_size=32)
    limits = Limits(stop=lambda row: row.loss < stop, max_evaluations=20_000)
    options = {"solver": solver, "dtype": torch.float32, "record": Record(every=10), "limits": limits}
    return bnrank.flow(net, (task.x, task.y, task.loss), end, plateau=plateau, **options)


def test_waiting_and_skipping_agree_with_the_printed_rule():
    """Where both can be run. The skipped plateau takes steps on all samples, as waiting averages over its batches."""
    task = digits(400, n_test=0)
    net = mlp(64, 20, 20, 20, 10, bias=False, init=1e-2, seed=0)
    waited = followed(net, task, None, 1e12)
    skip = followed(net, task, SkipPlateau(handover_rtol=1e-2, t_after=1e9, batch_size=400))
    assert waited.status == skip.status == "stopped"
    assert skip.steps < waited.steps / 4
    assert skip.times[-1] == pytest.approx(waited.times[-1], rel=0.01)  # the escape, 300 steps from the start
    assert flat_cosine(waited.network, skip.network) > 0.97  # 0.989, at norms that differ by a few percent
    # the criterion of the hand-over is measured on the batches of the plateau, here all samples
    outputs = dict(zip(skip.network_rows, skip.networks, strict=True))[skip.handover.row](task.x).double().detach()
    labels = torch.nn.functional.one_hot(task.y, 10)
    change = (outputs.softmax(1) - 0.1).norm() / (torch.full_like(outputs, 0.1) - labels).norm()
    assert skip.handover.criterion == pytest.approx(float(change), rel=1e-3)
    assert skip.handover.criterion <= 1e-2
    assert skip.handover.skipped_steps + skip.steps == pytest.approx(waited.steps, rel=0.1)


def test_another_power_is_another_run(tmp_path):
    task, net = random_task(), mlp(3, 6, 2, bias=False, init=0.3)

    def train(power, folder="train"):
        options = {"steps": 6, "out": tmp_path / folder, "progress": False, "batch_size": 8}
        return bnrank.train(net, task, optimizer=GradientDescent(0.1, norm_power=power), **options)

    def flow(power, size=20):
        solver = Solver("euler", step=0.1, norm_power=power, batch_size=8)
        plateau = SkipPlateau(t_after=1.0, batch_size=size)
        return bnrank.flow(net, task, solver=solver, plateau=plateau, out=tmp_path / "flow")

    first = train(2.0)
    assert torch.equal(first.parameters, train(2.0).parameters)
    assert bnrank.training.Run.open(tmp_path / "train").settings.norm_power == 2.0
    with pytest.raises(ValueError, match="norm_power"):
        train(3.0)
    flow(2.0)
    with pytest.raises(ValueError, match="norm_power"):
        flow(3.0)
    with pytest.raises(ValueError, match="plateau_batch_size"):
        flow(2.0, size=40)
