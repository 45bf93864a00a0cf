"""The monitor: what it says of the drift is what happens, T49 by content, and the training is not touched."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import nn

import bnrank
from bnrank.theory.invariants.finding import find
from bnrank.theory.invariants.monitor import Monitor
from bnrank.theory.invariants.signs import SignTrace
from bnrank.theory.invariants.squares import CHUNK, Forms
from bnrank.training import GradientDescent, Record

PARTS = ("by_step", "by_decay", "rest")


def relu(seed=0, bias=True):
    """A ReLU network with a linear tail of three layers, float64."""
    layers = [nn.Linear(3, 8, bias=bias), nn.ReLU(), nn.Linear(8, 6, bias=bias), nn.Linear(6, 5), nn.Linear(5, 1)]
    return drawn(nn.Sequential(*layers), seed)


def linear(seed=0):
    return drawn(nn.Sequential(nn.Linear(3, 6, bias=False), nn.Linear(6, 5, bias=False), nn.Linear(5, 2)), seed)


def drawn(net, seed):
    generator = torch.Generator().manual_seed(seed)
    net = net.double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator, dtype=torch.float64) / max(1, p.shape[-1]) ** 0.5)
    return net


def data(net, n=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = next(m.in_features for m in net.modules() if isinstance(m, nn.Linear))
    outputs = [m.out_features for m in net.modules() if isinstance(m, nn.Linear)][-1]
    made = {"generator": generator, "dtype": torch.float64}
    return torch.randn(n, features, **made), torch.randn(n, outputs, **made)


def train(net, optimizer, steps, batch=None, between=lambda: None, seed=0):
    x, y = (values.to(next(net.parameters()).dtype) for values in data(net))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randperm(len(x), generator=generator)[:batch] if batch else slice(None)
        optimizer.zero_grad()
        (net(x[chosen]) - y[chosen]).square().sum(1).mean().backward()
        optimizer.step()
        between()


def watched(net, optimizer, steps, batch=None, **options):
    monitor = Monitor(net, data(net)[0][:2], **options).attach(optimizer)
    train(net, optimizer, steps, batch)
    return monitor


def exact(monitor, tolerance):
    """Assert that the parts of step and decay are all of the drift, entry by entry, and that there is a drift."""
    parts = monitor.parts()
    for q in monitor.quantities:
        if q.kind != "matrix":
            size = float(q.scale(dict(monitor.net.named_parameters())).norm())
            assert float(parts["rest"][q.name].norm()) <= tolerance * size, q.name
            assert float(parts["drift"][q.name].norm()) > 100 * tolerance * size, q.name


# -- the forms, against the quantities themselves


def networks():
    conv = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    return {
        "relu": (relu(), torch.ones(1, 3).double()),
        "linear": (linear(), torch.ones(1, 3).double()),
        "conv": (drawn(conv, 0), torch.ones(1, 2, 4, 4).double()),
        "wide": (bnrank.MLP([20, 300, 2 * CHUNK // 300, 2], seed=0), torch.ones(1, 20)),  # more than one piece
    }


@pytest.mark.parametrize("name", ["relu", "linear", "conv", "wide"])
def test_forms_are_the_quantities(name):
    net, x = networks()[name]
    forms = Forms([q for q in find(net, x) if q.kind != "pair"])
    parameters = {n: p.detach() for n, p in net.named_parameters()}
    other = {n: torch.sin(7 * p) for n, p in parameters.items()}
    flat, scales = forms.measure(parameters)
    step = forms.split(forms.of_step(other, parameters, {n: 0.7 for n in other}))
    rough = 1e-13 if parameters[forms.parameters[0]].dtype == torch.float64 else 1e-5
    for q, size in zip(forms.quantities, scales, strict=True):
        torch.testing.assert_close(forms.split(flat)[q.name], q.of(parameters), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(torch.tensor(size), q.scale(parameters).norm(), rtol=1e-12, atol=0)
        difference = {n: p.double() - 0.7 * other[n].double() for n, p in parameters.items()}
        bound = rough * float(q.scale(difference).norm())
        torch.testing.assert_close(step[q.name], q.of(difference), rtol=0, atol=bound)


# -- T49


@pytest.mark.parametrize("make", [relu, linear])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("batch", [None, 5])
def test_gradient_descent_is_exactly_its_two_parts(make, decay, batch):
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=decay)
    monitor = watched(net, optimizer, 40, batch, every=1, matrices_every=1)
    exact(monitor, 1e-13)
    for q in monitor.quantities:  # the matrices as well, at every step
        assert float(monitor.parts()["rest"][q.name].norm()) < 1e-13 * len(net)


def test_parts_are_those_of_t49_computed_by_hand():
    net, eta, lam = relu(), 0.05, 0.02
    x, y = data(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=eta, weight_decay=2 * lam)
    monitor = Monitor(net, x[:2], every=1, matrices_every=1).attach(optimizer)
    step = {q.name: 0.0 for q in monitor.quantities}
    decay, start = dict(step), {q.name: q.value(net) for q in monitor.quantities}
    for _ in range(15):
        optimizer.zero_grad()
        (net(x) - y).square().sum(1).mean().backward()
        gradient = {n: p.grad.clone() for n, p in net.named_parameters()}
        for q in monitor.quantities:
            step[q.name] = step[q.name] + eta**2 * q.of(gradient)
            decay[q.name] = decay[q.name] + ((1 - 2 * eta * lam) ** 2 - 1) * q.value(net)
        optimizer.step()
    parts = monitor.parts()
    for q in monitor.quantities:
        torch.testing.assert_close(parts["drift"][q.name], q.value(net) - start[q.name], rtol=0, atol=1e-14)
        torch.testing.assert_close(parts["by_step"][q.name], step[q.name], rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(parts["by_decay"][q.name], decay[q.name], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (False, 0.5), (True, 0.0)])
@pytest.mark.parametrize("decay", [0.0, 0.03])
def test_momentum_is_exactly_its_two_parts(nesterov, dampening, decay):
    net = relu()
    options = {"lr": 0.01, "momentum": 0.9, "nesterov": nesterov, "dampening": dampening, "weight_decay": decay}
    exact(watched(net, torch.optim.SGD(net.parameters(), **options), 60, 5, every=1), 1e-13)


def test_decay_of_a_decoupled_optimizer_is_told_apart():
    """With a gradient of 0 AdamW only decays: Q is multiplied by (1 - lr weight_decay)^2 per step."""
    net = relu()
    monitor = Monitor(net, data(net)[0][:2], every=1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.2)
    start = {q.name: q.value(net) for q in monitor.quantities}
    with monitor.attach(optimizer):
        for _ in range(10):
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
    for q in monitor.quantities[:-2]:
        expected = (0.98**20 - 1) * start[q.name]
        torch.testing.assert_close(monitor.parts()["by_decay"][q.name], expected, rtol=1e-12, atol=1e-15)
        assert float(monitor.parts()["by_step"][q.name].norm()) < 1e-25


def test_groups_without_decay_are_split_by_what_decays():
    net = relu()
    biases = [p for p in net.parameters() if p.ndim == 1]
    weights = [p for p in net.parameters() if p.ndim == 2]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    monitor = Monitor(net, data(net)[0][:2], every=1)
    q = monitor.findings["vertex 0 | 2"]
    first = {n: p.detach().clone() for n, p in net.named_parameters()}
    with monitor.attach(optimizer):
        train(net, optimizer, 1)
    kept = {n: p * (0.995 if p.ndim == 2 else 1.0) for n, p in first.items()}
    expected = q.of(kept) - q.of(first)
    torch.testing.assert_close(monitor.parts()["by_decay"][q.name], expected, rtol=1e-12, atol=1e-15)


def test_adam_leaves_a_rest_and_says_so():
    net = relu()
    monitor = watched(net, torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01), 60, every=1)
    last = monitor.history.isel(member=0, row=-1)
    assert float(last["norm_rest"].sel(quantity="vertex 0 | 2")) > 2 * float(
        last["norm_by_step"].sel(quantity="vertex 0 | 2")
    )
    assert "Adam rescales its weight decay" in str(monitor)
    assert {v.status for v in monitor.verdicts(1e-9) if v.id != "T48"} == {"not applicable"}


def test_lbfgs_is_not_split_and_says_so():
    net = relu()
    x, y = data(net)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    with Monitor(net, x[:2], every=1).attach(optimizer) as monitor:
        for _ in range(5):
            optimizer.step(closure)
    last = monitor.history.isel(member=0, row=-1)
    assert bool(np.isnan(last["by_step"]).all())
    assert float(last["drift"].max()) > 0
    assert "not split" in str(monitor)


def test_a_diverging_training_is_recorded_and_not_ended():
    net = relu()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=1e3), 30, every=1, matrices_every=1)
    history = monitor.history
    assert not np.isfinite(history["drift"][0, -1]).any()
    assert bool(np.isfinite(history["drift"][0, 1]).all())
    str(monitor), monitor.plot(), monitor.verdicts()


def test_drift_is_of_first_order_in_the_step_at_a_fixed_time():
    drifts = []
    for eta in (0.02, 0.01, 0.005):
        net = relu()
        monitor = watched(net, torch.optim.SGD(net.parameters(), lr=eta), round(1 / eta), every=1)
        drifts.append(float(monitor.history["relative"].sel(quantity="vertex 0 | 2")[0, -1]))
    slopes = np.diff(np.log(drifts)) / math.log(0.5)
    assert np.all(np.abs(slopes - 1) < 0.2)


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.02}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]
)
def test_seldom_rows_estimate_the_parts(options):
    net = relu()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.003, **options), 400, every=10)
    last = monitor.history.isel(member=0, row=-1).sel(quantity=["vertex 0 | 2", "diagonal 2 | 3"])
    assert last.step == 400
    assert len(monitor.history.row) < 80
    assert float((last["norm_rest"] / last["drift"]).max()) < 0.1


def test_verdicts_know_estimates_from_violations():
    net = relu()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9), 300, 3, every=30)
    statuses = {v.status for v in monitor.verdicts(1e-6) if v.id != "T48"}
    assert statuses == {"inconclusive"}
    net = relu()
    monitor = Monitor(net, torch.ones(1, 3).double())  # a flow that is none: its quantities may not change at all
    for step in range(3):
        monitor.record(step, time=float(step))
        with torch.no_grad():
            net[0].weight.mul_(1.5)
    assert monitor.verdicts()["T44"].status == "violated"


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    mu=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 0.01, 0.1]),
    seed=st.integers(0, 1000),
    rate=st.floats(1e-4, 0.02),
)
def test_parts_add_up_along_the_drift(mu, decay, seed, rate):
    net = relu(seed)
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=rate, momentum=mu, weight_decay=decay), 12, 4, every=3)
    history = monitor.history
    total = sum(history[name] for name in PARTS)
    np.testing.assert_allclose(total, history["drift"], rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(history["drift"][0, 0], 0)


# -- the training is not touched


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_training_is_not_changed_by_a_bit(kind):
    finals = []
    for watch in (False, True):
        net = relu()
        net = net.float()
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)
        state = torch.random.get_rng_state()
        attributes = {k: dict(vars(m)) for k, m in net.named_modules()}
        if watch:
            Monitor(net, torch.ones(2, 3), every=1, matrices_every=1).attach(optimizer)
        train(net, optimizer, 20)
        assert torch.equal(state, torch.random.get_rng_state())
        assert {k: vars(m).keys() for k, m in net.named_modules()} == {k: v.keys() for k, v in attributes.items()}
        finals.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))


def test_detached_it_leaves_nothing_and_adds_the_last_row():
    net = relu()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    before = (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))
    with Monitor(net, data(net)[0][:2], every=1000).attach(optimizer) as monitor:
        train(net, optimizer, 7)
    assert (len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)) == before
    rows = len(monitor.history.row)
    assert monitor.history.step[0, -1] == 7
    train(net, optimizer, 3)
    assert len(monitor.history.row) == rows
    monitor.attach(optimizer)
    train(net, optimizer, 3)
    assert monitor.history.step[0, -1] == 10  # the three that it did not see are not counted


def test_reading_in_between_changes_no_part():
    results = []
    for read in (False, True):
        net = relu()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.02, weight_decay=0.01, momentum=0.5)
        monitor = Monitor(net, data(net)[0][:2], every=1).attach(optimizer)
        train(net, optimizer, 20, between=(lambda m=monitor: str(m)) if read else (lambda: None))
        results.append(monitor.parts())
    for name in ("drift", *PARTS):
        for q, value in results[0][name].items():
            if not q.startswith("matrix"):
                torch.testing.assert_close(value, results[1][name][q], rtol=1e-12, atol=1e-16)


def test_copies_are_not_attached():
    net = relu()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    monitor = watched(net, optimizer, 12)
    rows = len(monitor.history.row)
    for copied in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        train(net, optimizer, 5)
        assert len(copied.history.row) == rows
        copied.attach(torch.optim.SGD(copied.net.parameters(), lr=0.01))


# -- signs, direction, tail


def test_signs_and_directions():
    net = linear()
    monitor = Monitor(net, torch.ones(1, 3).double(), matrices_every=1)
    first = torch.cat([p.detach().flatten() for p in net.parameters()])
    monitor.record(0, time=0.0)
    with torch.no_grad():
        net[0].weight[0].neg_()  # 3 of 18
    monitor.record(1, time=0.5)
    with torch.no_grad():
        net[1].weight.neg_()
    monitor.record(2, time=1.0)
    with torch.no_grad():
        net[1].weight.mul_(3)
    monitor.record(3, time=1.5)
    assert monitor.signs_changed_since(0)["0.weight"] == pytest.approx(1 / 6)
    assert monitor.signs_changed_since(0)["1.weight"] == 1
    assert monitor.signs_changed_since(1)["0.weight"] == 0
    assert monitor.signs_changed_since(time=0.7)["1.weight"] == 1
    assert monitor.signs_changed_since(time=1.0)["1.weight"] == 0
    now = torch.cat([p.detach().flatten() for p in net.parameters()])
    expected = 1 - float(first @ now / first.norm() / now.norm())
    history = monitor.history
    assert float(history["turned_from_first"][0, -1]) == pytest.approx(expected, rel=1e-12)
    assert history["sign_changes"].sel(parameter="1.weight")[0].values.tolist() == [0, 0, 1, 0]


def test_a_small_turn_is_measured_without_cancellation():
    trace = SignTrace()
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    trace.look({"a": a}, step=0)
    trace.look({"a": 5 * torch.tensor([1.0, 1e-9], dtype=torch.float64)}, step=1)
    assert trace.from_first[-1] == pytest.approx(5e-19, rel=1e-6)


def test_tail_is_recorded_as_singular_values_say():
    net = relu()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.01), 30, matrices_every=5)
    history = monitor.history
    row = history.isel(member=0, row=-1)
    assert row.layer.values.tolist() == ["2", "3", "4"]
    for name in ("2", "3", "4"):
        values = torch.linalg.svdvals(net[int(name)].weight.detach())
        assert float(row["ratio"].sel(layer=name)) == pytest.approx(float(values[0] ** 2 / values.square().sum()))
    u = torch.linalg.svd(net[2].weight.detach())[0][:, 0]
    v = torch.linalg.svd(net[3].weight.detach())[2][0]
    assert float(row["alignment"].sel(layer="2")) == pytest.approx(abs(float(u @ v)))
    assert np.isnan(row["alignment"].sel(layer="4"))
    assert {v.status for v in monitor.verdicts() if v.id == "T48"} == {"holds"}


def test_a_bound_on_the_tail_that_any_matrix_satisfies_says_nothing():
    def bounds(net):
        monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.0), 1)
        return {v.name.removeprefix("low rank of "): v for v in monitor.verdicts() if v.id == "T48"}

    usual = bounds(linear())
    assert usual["1"].left > 0
    assert {v.label for v in usual.values()} == {"holds (vacuous)"}
    low = nn.Sequential(*[nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(2)], nn.Linear(3, 1).double())
    with torch.no_grad():
        for i, layer in enumerate(low):  # balanced and of rank one
            layer.weight.copy_(torch.eye(3)[: len(layer.weight)] * torch.tensor([1.0, 0.0, 0.0]))
            if i == 2:
                layer.bias.zero_()
    assert [bounds(low)[name].label for name in ("0", "1", "2")] == ["holds", "holds", "holds (vacuous)"]


# -- with bnrank.train and bnrank.flow


def task():
    return bnrank.tasks.low_rank_map(n=24, seed=0)


def test_watching_gradient_descent_of_an_ensemble():
    net = bnrank.MLP([20, 6, 6, 20], seed=0)
    monitor = Monitor(net, torch.ones(2, 20), matrices_every=0)
    options = {"optimizer": GradientDescent([1e-3, 2e-3]), "ridge": [0.0, 0.05], "steps": 30}
    options |= {"record": Record(every=1, watch=monitor)}
    run = bnrank.train(net, task(), dtype=torch.float64, seed=0, progress=False, **options)
    history = monitor.history
    assert history.sizes["member"] == 2
    assert history.step[0].values.tolist() == list(range(31))
    assert float((history["norm_rest"] / history["drift"].max("row")).max()) < 1e-9
    assert float(history["norm_by_decay"].sel(member=0).max()) == 0
    assert float(history["norm_by_decay"].sel(member=1).max()) > 0
    q = monitor.quantities[0]
    value = float(q.value(run.network(1)).norm())
    assert float(history["value"].sel(member=1, quantity=q.name)[-1]) == pytest.approx(value, rel=1e-12)
    assert monitor.verdicts(1e-9).ok


def test_watching_a_flow():
    net = bnrank.MLP([20, 6, 6, 20], seed=0)
    monitor = Monitor(net, torch.ones(2, 20))
    bnrank.flow(net, task(), 1.0, record=Record(watch=monitor))
    history = monitor.history
    assert float(history["relative"].max()) < 1e-4
    assert bool(np.isnan(history["by_step"][0, 1:]).all())
    assert float(history["time"][0, -1]) == pytest.approx(1.0)
    assert monitor.verdicts(1e-3).ok


# -- showing


@pytest.mark.parametrize(
    ("make", "panels"), [(relu, 3), (lambda: bnrank.MLP([3] + [4] * 11 + [1], seed=0).double(), 2)]
)
def test_plot(make, panels):
    net = make()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.01, weight_decay=0.01), 40)
    axes = monitor.plot()
    assert len(axes) == panels
    labels = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert len(labels) <= 8
    if len(monitor.quantities) > 8:
        assert labels[-1].endswith("others")
    given = Figure().subplots(1, panels)
    assert monitor.plot(given)[0] is given[0]
    with pytest.raises(ValueError, match="axes"):
        monitor.plot(Figure().subplots())


def test_table_names_every_quantity_and_the_history_describes_itself():
    net = relu()
    monitor = watched(net, torch.optim.SGD(net.parameters(), lr=0.01), 25)
    assert all(q.name in str(monitor) for q in monitor.quantities)
    assert "step 25" in str(monitor)
    assert all(v.attrs.get("units") and v.attrs.get("long_name") for v in monitor.history.data_vars.values())
    assert "nothing recorded yet" in str(Monitor(net, torch.ones(1, 3).double()))


# -- bad input


def test_bad_input():
    net = relu()
    x = torch.ones(2, 3).double()
    with pytest.raises(ValueError, match="every: got 0"):
        Monitor(net, x, every=0)
    with pytest.raises(ValueError, match="matrices_every: got -1"):
        Monitor(net, x, matrices_every=-1)
    with pytest.raises(TypeError, match="every"):
        Monitor(net, x, every=2.5)
    with pytest.raises((TypeError, ValueError)):
        Monitor(net, torch.ones(2, 4).double())
    with pytest.raises(ValueError, match=r"nothing is conserved: (.|\n)*Softmax"):
        Monitor(nn.Sequential(nn.Linear(3, 4), nn.Softmax(1), nn.Linear(4, 2)), torch.ones(2, 3))
    monitor = Monitor(net, x)
    with pytest.raises(ValueError, match="nothing recorded yet"):
        _ = monitor.history
    with pytest.raises(TypeError, match="optimizer: got"):
        monitor.attach(net)
    with pytest.raises(ValueError, match=r"does not hold 2\.weight, 2\.bias"):
        monitor.attach(torch.optim.SGD([p for n, p in net.named_parameters() if not n.startswith("2")], lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor.attach(optimizer)
    with pytest.raises(ValueError, match="already attached to SGD"):
        monitor.attach(optimizer)
    with pytest.raises(ValueError, match="record: attached to SGD"):
        monitor.record()
    train(net, optimizer, 2)
    with pytest.raises(ValueError, match="member: got 3"):
        monitor.plot(member=3)
    with pytest.raises(ValueError, match="step, time"):
        monitor.signs_changed_since()
    monitor.detach()
    with pytest.raises(ValueError, match="one run"):
        monitor.record(0)
    with pytest.raises(ValueError, match=r"parameters: got no 0\.bias"):
        monitor.observe(9, None, {"0.weight": net[0].weight})
