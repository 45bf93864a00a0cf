"""The monitor in trainings that are not the plain ones: half precision, frozen parameters, schedules, failures."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.theory.invariants import steps
from bnrank.theory.invariants.finding import find
from bnrank.theory.invariants.monitor import Monitor
from bnrank.theory.invariants.signs import SignTrace
from bnrank.theory.invariants.squares import Forms
from bnrank.theory.invariants.track import Increments, Ledger, Track
from bnrank.training import GradientDescent, Record


def network(seed=0, dtype=torch.float64):
    """A ReLU network with a linear tail."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2)).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return net


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    made = {"generator": generator, "dtype": torch.float64}
    return torch.randn(16, 3, **made).to(dtype), torch.randn(16, 2, **made).to(dtype)


def train(net, optimizer, steps, after=lambda step: None, before=lambda: None):
    x, y = data(next(net.parameters()).dtype)
    for step in range(steps):
        optimizer.zero_grad()
        (net(x) - y).square().sum(1).mean().backward()
        before()
        optimizer.step()
        after(step)


def statuses(monitor, tolerance):
    """Return what is said of the drifts, and all reasons."""
    verdicts = [v for v in monitor.verdicts(tolerance) if v.id != "T48"]
    return {v.status for v in verdicts}, " | ".join(v.reason for v in verdicts)


# -- half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True}])
def test_half_precision_is_recorded_and_rounding_is_no_violation(dtype, options):
    finals = []
    for watch in (False, True):
        net = network(dtype=dtype)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, **options)
        monitor = Monitor(net, data(dtype)[0][:2], every=1, matrices_every=1)
        if watch:
            monitor.attach(optimizer)
        train(net, optimizer, 60)
        finals.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))
    assert not monitor.notes
    assert len(monitor.history.row) == 61
    found, reason = statuses(monitor, 1e-5)
    assert found <= {"holds", "inconclusive"}
    assert "rounding" in reason


def test_signs_and_turns_of_half_precision_are_those_of_the_same_numbers_in_float32():
    generator = torch.Generator().manual_seed(0)
    half, full = SignTrace(), SignTrace()
    for step in range(4):
        p = torch.randn(40, 30, generator=generator).bfloat16()
        half.look({"a": p}, step=step)
        full.look({"a": p.float()}, step=step)
    assert half.changed == full.changed
    assert half.changed_since(1) == full.changed_since(1)
    assert half.from_last == pytest.approx(full.from_last, rel=1e-6)
    assert half.from_first == pytest.approx(full.from_first, rel=1e-6)


def test_float32_rounding_is_no_violation_and_a_jump_is_one():
    net = network(dtype=torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    with Monitor(net, data(torch.float32)[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
        train(net, optimizer, 50)
    found, reason = statuses(monitor, 1e-9)
    assert "inconclusive" in found
    assert "violated" not in found
    assert "rounding" in reason

    def jump(step):
        if step == 30:
            with torch.no_grad():
                net[0].weight.mul_(1.05)

    net = network(dtype=torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    with Monitor(net, data(torch.float32)[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
        train(net, optimizer, 50, jump)
    assert next(v for v in monitor.verdicts() if v.id == "T44").status == "violated"


# -- frozen parameters, and what goes wrong


@pytest.mark.parametrize("every", [1, 7])
def test_freezing_and_unfreezing_midway(every):
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    monitor = Monitor(net, data()[0][:2], every=every, matrices_every=3).attach(optimizer)

    def freeze(step):
        if step == 9:
            net[2].weight.requires_grad_(False)
            str(monitor), monitor.history
        if step == 24:
            net[2].weight.requires_grad_(True)

    train(net, optimizer, 40, freeze)
    assert monitor.history.step[0, -1] == 40
    assert bool(np.isfinite(monitor.history["drift"][0, -1]).all())
    assert "2.weight was found frozen at step" in str(monitor)
    found, reason = statuses(monitor, 1e-9)
    assert "not applicable" in found
    assert "violated" not in found
    assert "2.weight" in reason
    assert monitor.signs_changed_since(0).keys() == {n for n, _ in net.named_parameters()}


def test_freezing_before_it_is_attached():
    net = network()
    monitor = Monitor(net, data()[0][:2], every=1, matrices_every=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    net[2].weight.requires_grad_(False)
    with monitor.attach(optimizer):
        train(net, optimizer, 5)
    assert monitor.history.step[0, -1] == 5
    assert monitor.notes == ["parameter 2.weight was found frozen at step 0"]


def test_unfreezing_what_was_frozen_at_first():
    net = network()
    net[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.02)
    monitor = Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer)
    train(net, optimizer, 5)
    net[0].bias.requires_grad_(True)
    optimizer.add_param_group({"params": [net[0].bias]})
    train(net, optimizer, 5)
    assert monitor.history.step[0, -1] == 10
    assert not monitor.notes
    assert statuses(monitor, 1e-9)[0] == {"holds"}  # of what was found conserved with it frozen


@pytest.mark.parametrize("where", ["rule_of", "split"])
def test_a_failure_ends_the_recording_and_not_the_training(where, monkeypatch):
    def failing(*args):
        raise RuntimeError("no luck")

    net, other = network(), network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    monitor = Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer)
    train(net, optimizer, 5)
    monkeypatch.setattr(steps, where, failing)
    with pytest.warns(RuntimeWarning, match="recording stopped at step 5: RuntimeError: no luck") as warned:
        train(net, optimizer, 5)
    assert len(warned) == 1
    train(other, torch.optim.SGD(other.parameters(), lr=0.02), 10)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert "no luck" in str(monitor)
    assert monitor.history.step[0, -1] <= 5
    monitor.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_row_is_added_whole_or_not_at_all(monkeypatch):
    net = network()
    monitor = Monitor(net, data()[0][:2], matrices_every=1)
    monitor.record(0)

    def failing(*args):
        raise RuntimeError("no luck")

    with monkeypatch.context() as patched:
        patched.setattr(Track, "_measure_tail", failing)
        with pytest.raises(RuntimeError, match="no luck"):
            monitor.record(1)
    assert monitor.history.step.values.tolist() == [[0]]
    monitor.record(1)
    assert monitor.history.step.values.tolist() == [[0, 1]]
    assert bool(np.isfinite(monitor.history["ratio"]).all())


# -- which rows


def test_rows_get_further_apart_and_matrices_are_seldom():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Monitor(net, data()[0][:2], every=20).attach(optimizer) as monitor:
        train(net, optimizer, 230)
    steps = monitor.history.step[0].values
    early = steps[steps < 60]
    assert early[:8].tolist() == [0, 1, 2, 3, 4, 5, 7, 10]
    assert all(b - a <= max(1, b // 3) for a, b in itertools.pairwise(early))
    assert len(early) < 20
    assert steps[steps >= 60].tolist() == [*range(60, 221, 20), 230]
    assert steps[np.isfinite(monitor.history["ratio"][0, :, 0].values)].tolist() == [0, 100, 200, 230]


def test_matrices_of_many_channels_are_seldom():
    few, many = (nn.Sequential(nn.Linear(2, n), nn.Linear(n, 1)) for n in (128, 129))
    vertices = nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Linear(200, 1))
    assert [Monitor(net, torch.ones(1, 2)).matrices_every for net in (few, many, vertices)] == [100, 1000, 100]
    assert Monitor(many, torch.ones(1, 2), matrices_every=7).matrices_every == 7


# -- the sums over steps between rows


def ledger():
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    return Ledger(Forms([q for q in find(net, torch.ones(1, 1)) if q.kind == "vertex"]))


def test_between_rows_the_parts_are_a_trapezoid():
    """Parts that are linear in the step are summed exactly."""
    book, rows, one = ledger(), [0, 4, 5, 12], np.ones(1)
    for number, step in enumerate(rows):
        book.add(number, step, float(step), 0 * one, one)
        book.complete(Increments(np.stack([(3 + 2 * step) * one, (1 - step) * one])))
    vectors = book.vectors()
    assert vectors["by_step"] == pytest.approx(sum(3 + 2 * s for s in range(12)))
    assert vectors["by_decay"] == pytest.approx(sum(1 - s for s in range(12)))


def test_between_rows_of_momentum_what_is_to_come_is_nearly_that_of_every_step():
    mu, late = 0.8, lambda step: 5 + 0.7 * step
    brute = sum(mu ** (12 - s - 1) * late(s) for s in range(12))
    found = {}
    for rows in (range(13), [0, 1, 4, 12]):
        book, one = ledger(), np.ones(1)
        for number, step in enumerate(rows):
            book.add(number, step, float(step), 0 * one, one)
            book.complete(Increments(np.zeros((2, 1)), lag=mu, late=np.stack([late(step) * one, 0 * one])))
        found[len(rows)] = -float(book.vectors()["by_step"][0])
    assert found[13] == pytest.approx(brute, rel=1e-12)
    assert found[4] == pytest.approx(brute, rel=1e-3)


def test_momentum_between_rows_estimates_the_parts():
    rests = []
    for every in (1, 5, 10):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.002, momentum=0.9)
        with Monitor(net, data()[0][:2], every=every).attach(optimizer) as monitor:
            train(net, optimizer, 300)
        last = monitor.history.isel(member=0, row=-1).sel(quantity="vertex 0 | 2")
        rests.append(float(last["norm_rest"] / last["drift"]))
    assert rests[0] < 1e-9
    assert max(rests) < 0.03


# -- verdicts of ordinary training


def schedule(name, optimizer):
    kinds = torch.optim.lr_scheduler
    if name == "step":
        return kinds.StepLR(optimizer, 30, 0.5)
    if name == "one cycle":
        return kinds.OneCycleLR(optimizer, max_lr=0.1, total_steps=200)
    return kinds.LinearLR(optimizer, 0.01, total_iters=100)


@pytest.mark.parametrize("name", ["step", "one cycle", "warm-up"])
def test_schedules_with_momentum_are_inconclusive_and_without_exact(name):
    found = {}
    for mu in (0.0, 0.9):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=mu)
        scheduler = schedule(name, optimizer)
        with Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
            train(net, optimizer, 150, lambda step, s=scheduler: s.step())
        found[mu] = statuses(monitor, 1e-9)
    assert "violated" not in found[0.9][0]
    assert "constant" in found[0.9][1]
    if name != "one cycle":  # that one cycles the momentum of any SGD
        assert found[0.0][0] == {"holds"}


def test_momentum_that_is_there_already_is_inconclusive():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    train(net, optimizer, 5)
    with Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
        train(net, optimizer, 30)
    found, reason = statuses(monitor, 1e-9)
    assert "violated" not in found
    assert "before the first row" in reason


def test_minibatches_of_train_are_inconclusive():
    net = bnrank.MLP([20, 6, 6, 20], seed=0)
    task = bnrank.tasks.low_rank_map(n=24, seed=0)
    monitor = Monitor(net, torch.ones(2, 20))
    options = {"optimizer": GradientDescent(0.01), "steps": 60, "batch_size": 8, "ridge": 1e-3}
    options |= {"record": Record(every=1, watch=monitor)}
    bnrank.train(net, task, dtype=torch.float64, seed=0, progress=False, **options)
    found, reason = statuses(monitor, 1e-9)
    assert found == {"inconclusive"}
    assert "mini-batches" in reason


def test_training_that_was_not_watched_is_inconclusive():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    monitor = Monitor(net, data()[0][:2], every=1, matrices_every=1)
    for unseen in (0, 20):
        with monitor.attach(optimizer):
            train(net, optimizer, 10)
        found, reason = statuses(monitor, 1e-9)
        assert found == {"holds"}  # detached and attached again with nothing in between is one training
        train(net, optimizer, unseen)
    with monitor.attach(optimizer):
        train(net, optimizer, 10)
    found, reason = statuses(monitor, 1e-9)
    assert "violated" not in found
    assert "not watched" in reason


def test_clipping_by_value_is_inconclusive_and_by_norm_exact():
    found = {}
    for name in ("clip_grad_value_", "clip_grad_norm_"):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
        clip = getattr(nn.utils, name)
        with Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
            train(net, optimizer, 30, before=lambda net=net, clip=clip: clip(net.parameters(), 0.05))
        found[name] = statuses(monitor, 1e-9)
    assert found["clip_grad_norm_"][0] == {"holds"}
    assert found["clip_grad_value_"][0] == {"inconclusive"}
    assert "clipped by value" in found["clip_grad_value_"][1]


def test_decay_that_differs_and_optimizers_of_ones_own_are_inconclusive():
    net = network()
    groups = [{"params": [p for p in net.parameters() if p.ndim == 2], "weight_decay": 0.1}]
    groups.append({"params": [p for p in net.parameters() if p.ndim == 1]})

    class Own(torch.optim.SGD):
        """Steps twice as far as it says."""

        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.mul_(0.999)

    for make, expected in (
        (lambda n: torch.optim.SGD(groups, lr=0.05), "weight decay differs"),
        (lambda n: Own(n.parameters(), lr=0.05), "Own is not torch's own SGD"),
    ):
        optimizer = make(net)
        with Monitor(net, data()[0][:2], every=1, matrices_every=1).attach(optimizer) as monitor:
            train(net, optimizer, 30)
        found, reason = statuses(monitor, 1e-12)
        assert "violated" not in found
        assert expected in reason


def test_the_bound_of_t48_is_judged_where_quantities_stayed():
    """A broken bound is a violation only while the conserved quantities are, whatever explains their drift."""
    net = network()
    generator = torch.Generator().manual_seed(0)
    monitor = Monitor(net, data()[0][:2], every=1, matrices_every=1)
    monitor.record(0, time=0.0, lr=0.1, gradient={n: 0 * p for n, p in net.named_parameters()})
    with torch.no_grad():
        net[2].weight.copy_(5 * torch.linalg.qr(torch.randn(8, 8, generator=generator).double())[0][:6])
    monitor.record(1, time=0.1)
    found = [v for v in monitor.verdicts(1e-2) if v.id == "T48" and v.status != "holds"]
    assert found
    assert {v.status for v in found} == {"not applicable"}
    relative = float(np.nanmax(monitor.history["relative"]))
    assert all(f"drifted by {relative:.2g}" in v.reason for v in found)
    assert {v.status for v in monitor.verdicts(10.0) if v.id == "T48"} >= {"violated"}


# -- bad input


def test_a_monitor_of_another_network_is_refused():
    monitor = Monitor(bnrank.MLP([3, 9, 1], seed=0), torch.ones(2, 3))
    for widths in ([3, 4, 1], [3, 16, 1]):
        other = bnrank.MLP(widths, seed=0)
        name, p = next((n, p) for n, p in other.named_parameters() if p.ndim == 2)
        came, expected = tuple(p.shape), (9, 3)
        with pytest.raises(ValueError, match="another MLP") as caught:
            monitor.observe(0, 0.0, dict(other.named_parameters()))
        for part in (name, str(came), str(expected)):
            assert part in str(caught.value)


def test_signs_beyond_the_last_row_are_refused():
    net = network()
    monitor = Monitor(net, data()[0][:2], matrices_every=1)
    for step in range(3):
        monitor.record(step, time=0.1 * step)
    assert set(monitor.signs_changed_since(2).values()) == {0.0}
    with pytest.raises(ValueError, match="step: got 1000, expected at most 2"):
        monitor.signs_changed_since(1000)
    with pytest.raises(ValueError, match=r"time: got 5.0, expected at most 0.2"):
        monitor.signs_changed_since(time=5.0)
    monitor = Monitor(net, data()[0][:2], matrices_every=0)
    monitor.record(0)
    with pytest.raises(ValueError, match="matrices_every: got 0, so no signs"):
        monitor.signs_changed_since(0)
    assert math.isnan(float(monitor.history["turned_from_last"][0, 0]))


def test_alignments_of_large_matrices_are_those_of_the_decomposition():
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(70, 90), nn.Linear(90, 80), nn.Linear(80, 100)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    monitor = Monitor(net, torch.ones(1, 70).double())
    monitor.record(0)
    expected = [a.value for a in monitor.tail.alignments(net)]
    np.testing.assert_allclose(monitor.history["alignment"][0, 0, :2], expected, rtol=1e-6)
    np.testing.assert_allclose(monitor.history["ratio"][0, 0], monitor.tail.ratios(net), rtol=1e-12)
