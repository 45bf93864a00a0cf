"""Entries set to zero: the fits against dense oracles, planted cases, and results that any user can save and run."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
from bnrank.discovery.compression import Timing, compress, zeros
from bnrank.discovery.compression.judging import Judge
from bnrank.discovery.compression.lowrank import swapped
from bnrank.reporting.charts.discovery import view
from helpers import normal

QUICK = {"timing": Timing(repeats=2, batch_size=16), "zeros": True}


def flat(value):
    return value.flatten(1)


def judged(net, x):
    with torch.no_grad():
        out = flat(net(x))
    n = 3 * len(x) // 4
    return Judge((x[:n], flat, out[:n]), (x[n:], flat, out[n:]), out)


def made(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(layer() for layer in layers)).double().eval()


def entries(net):
    return sum(int((p != 0).sum()) for p in net.parameters())


def change(after, before, x):
    with torch.no_grad():
        a, b = flat(after(x)), flat(before(x))
    return float((a - b).norm() / (b - b.mean(0)).norm())


class Seeded(nn.Module):
    """Draws its weights from a fixed seed."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.build()


class Encoder(Seeded):
    """One layer of attention and a readout."""

    def build(self):
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


class Recurrent(Seeded):
    """A recurrent module, a convolution and a readout."""

    def build(self):
        self.body, self.conv = nn.LSTM(6, 8, batch_first=True), nn.Conv1d(8, 6, 3, stride=2, padding=1)
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, x):
        return self.head(self.conv(self.body(x)[0].transpose(1, 2)).relu().mean(-1))


def test_the_fit_of_the_entries_left_solves_the_dense_system():
    net, x = made(lambda: nn.Linear(5, 4), nn.Tanh, lambda: nn.Linear(4, 3)), normal(200, 5)
    one = zeros.curvatures(judged(net, x), net, ["0"], 50)["0"]
    kept = (normal(4, 6, seed=3) > -0.3).double()
    dense = torch.kron(one.out, one.into)
    free = kept.flatten().bool()
    expected = torch.zeros(24).double()
    expected[free] = torch.linalg.solve(dense[free][:, free], dense[free] @ one.weight.flatten())
    for start in (kept, kept * one.weight, kept * normal(4, 6, seed=5)):
        assert torch.allclose(one.fitted(start).flatten(), expected, atol=1e-7)
    target, penalty = normal(4, 6, seed=4), 0.3
    right = dense @ one.weight.flatten() + penalty * target.flatten()
    nearest = torch.linalg.solve(dense + penalty * torch.eye(24).double(), right)
    assert torch.allclose(one.nearest(target, penalty).flatten(), nearest, atol=1e-9)


def test_layers_with_many_inputs_are_fitted_in_float32_almost_as_well(monkeypatch):
    net, x = made(lambda: nn.Linear(40, 8), nn.Tanh, lambda: nn.Linear(8, 3)), normal(300, 40) @ normal(40, 40, seed=1)
    found, fitted = {}, {}
    for wide in (zeros.WIDE, 39):
        monkeypatch.setattr(zeros, "WIDE", wide)
        found[wide] = zeros.curvatures(judged(net, x), net, ["0", "2"], 100)
        target = zeros.thinnest(found[wide], 100)
        fitted[wide] = {name: part.weight for name, part in zeros._with_zeros(net, found[wide], target).items()}
    assert [one["0"].weight.dtype for one in found.values()] == [torch.float64, torch.float32]
    assert found[39]["2"].weight.dtype == torch.float64
    for name, exact in fitted[zeros.WIDE].items():
        weight, largest = fitted[39][name], float(exact.detach().abs().max())
        assert weight.dtype == torch.float64
        assert torch.equal(weight == 0, exact == 0)
        assert torch.allclose(weight, exact, rtol=1e-3, atol=1e-4 * largest)


def test_the_fit_is_almost_exact_where_inputs_are_nearly_dependent():
    x = normal(300, 5) @ normal(5, 60, seed=1) + 0.01 * normal(300, 60, seed=2)
    net = made(lambda: nn.Linear(60, 10), nn.Tanh, lambda: nn.Linear(10, 4))
    one = zeros.curvatures(judged(net, x), net, ["0"], 100)["0"]
    target = zeros.thinnest({"0": one}, 300)["0"]
    free, dense = (target != 0).flatten(), torch.kron(one.out, one.into)
    best = torch.zeros(610).double()
    best[free] = torch.linalg.solve(dense[free][:, free], dense[free] @ one.weight.flatten())
    changes = [float(d @ dense @ d) for w in (one.fitted(target), best) for d in [w.flatten() - one.weight.flatten()]]
    assert changes[0] < 1.01 * changes[1]


def test_rounding_of_nearly_equal_inputs_in_float32_stays_finite(monkeypatch):
    """Damped less, 60 inputs have the spread of eigenvalues that thousands have."""
    monkeypatch.setattr(zeros, "DAMPING", 1e-10)
    monkeypatch.setattr(zeros, "WIDE", 59)
    net, x = made(lambda: nn.Linear(60, 8), nn.Tanh, lambda: nn.Linear(8, 3)), 5 + 1e-3 * normal(300, 60)
    judge = judged(net, x)
    one = zeros.curvatures(judge, net, ["0"], 100)["0"]
    assert float(one.spectra[2].min()) > 0
    layers, change, count = zeros.thinned(judge, net, ["0", "2"], 0.1, 100)
    assert set(layers) == {"0", "2"}
    assert change <= 0.1
    assert count > 100


@pytest.mark.parametrize("chunk_size", [200, 64])
def test_the_curvature_predicts_the_change_of_a_linear_network(chunk_size):
    net, x = made(lambda: nn.Linear(5, 4), lambda: nn.Linear(4, 3)), normal(200, 5) @ normal(5, 5, seed=1)
    judge = judged(net, x)
    one = zeros.curvatures(judge, net, ["0", "1"], chunk_size)["0"]
    step = 0.1 * normal(4, 6, seed=2)
    scaled = step * one.rows[:, None] * one.columns
    predicted = float((scaled * (one.out @ scaled @ one.into)).sum())
    with torch.no_grad():
        rows = torch.cat([judge.x, torch.ones(len(judge.x), 1).double()], 1)
        actual = float((rows @ step.T @ net[1].weight.T).square().sum(1).mean())
    assert predicted == pytest.approx(actual, rel=0.02)  # damped


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 3), (2, 5, 4)),
        (nn.Conv1d(3, 2, 3, stride=2, padding=1, padding_mode="circular"), (2, 3, 7)),
        (nn.Conv2d(3, 4, (3, 2), padding=(1, 0), dilation=(2, 1)), (2, 3, 6, 5)),
        (nn.Conv3d(2, 3, 3, padding="same"), (2, 2, 3, 4, 3)),
    ],
)
def test_what_a_layer_reads_times_its_weight_is_what_it_gives(layer, shape):
    layer, x = layer.double(), normal(*shape)
    with torch.no_grad():
        out = layer(x)
        rows = zeros._patches(layer, x) @ layer.weight.flatten(1).T + layer.bias
    expected = out.reshape(-1, 3) if isinstance(layer, nn.Linear) else out.movedim(1, -1).reshape(-1, out.shape[1])
    assert torch.allclose(rows, expected)


class Twice(Seeded):
    """A layer that runs on two halves of the input, of which the second counts three times."""

    def build(self):
        self.layer = nn.Linear(4, 3, bias=False).double()

    def forward(self, x):
        return self.layer(x[:, 0]) + 3 * self.layer(x[:, 1])


def test_inputs_count_by_the_gradient_at_their_position_or_run():
    net, x = Twice(), normal(80, 2, 4)
    net(x)
    one = zeros.curvatures(judged(net, x), net, ["layer"], 33)["layer"]
    rows = x[:60]
    expected = (rows[:, 0].T @ rows[:, 0] + 9 * rows[:, 1].T @ rows[:, 1]) / (10 * 60)
    assert torch.allclose(one.into * one.columns[:, None] * one.columns, expected, rtol=0.01, atol=0.003)


def test_the_matrices_of_a_recurrent_module_get_zeros():
    found = compress(Recurrent().eval(), normal(160, 5, 6), tol=0.1, **QUICK)
    for layers in (found.network.body.input, found.network.body.hidden):
        assert all(bool((p == 0).any()) for p in layers.parameters() if p.ndim == 2)


def test_the_factors_of_a_recurrent_module_get_zeros():
    net = Recurrent().eval()
    for p in (net.body.weight_ih_l0, net.body.weight_hh_l0):
        p.data = p.data[:, :1] @ p.data[:1]
    found = compress(net, normal(160, 5, 6), tol=0.1, **QUICK)
    assert [step.kind for step in found.steps][-2:] == ["factor", "zero"]
    assert any(bool((p == 0).any()) for p in found.network.body.parameters() if p.ndim == 2)


def test_as_many_become_zero_as_asked_and_zeros_stay():
    net, x = made(lambda: nn.Linear(6, 8), nn.Tanh, lambda: nn.Linear(8, 3)), normal(300, 6)
    with torch.no_grad():
        net[0].weight[2] = 0
    found = zeros.curvatures(judged(net, x), net, ["0", "2"], 100)
    total = sum(int((one.weight != 0).sum()) for one in found.values())
    for count in (0, 1, 30, total):
        target = zeros.thinnest(found, count)
        assert sum(int((weight != 0).sum()) for weight in target.values()) == total - count
        assert not target["0"][2, :6].any()


def test_entries_that_read_copies_of_other_inputs_become_zero_first():
    latent = normal(400, 5)
    x = torch.cat([latent, latent], 1)
    net = made(lambda: nn.Linear(10, 7), nn.Tanh, lambda: nn.Linear(7, 6))
    judge = judged(net, x)
    found = zeros.curvatures(judge, net, ["0", "2"], 100)
    sizes = {name: (one.weight / one.rows[:, None] / one.columns).abs() for name, one in found.items()}
    small = torch.cat([size.flatten() for size in sizes.values()]).kthvalue(18).values
    magnitude = {name: one.weight * (sizes[name] > small) for name, one in found.items()}
    changes = []
    for target in (zeros.thinnest(found, 18), magnitude):
        with swapped(net, {name: (layer,) for name, layer in zeros._with_zeros(net, found, target).items()}):
            changes.append(judge((net,)))
    assert changes[0] < 0.005
    assert changes[0] < 0.5 * changes[1]


def test_less_changes_than_by_magnitude_at_the_same_number_of_zeros():
    net, mix = Encoder().eval(), normal(16, 16, seed=1) / 4
    x, new = ((normal(n, 5, 16, seed=n) @ mix).float() for n in (300, 200))
    found = compress(net, x, tol=0.05, held_out=new, **QUICK)
    left = found.certificate.nonzero
    assert found.certificate.met
    assert left < 0.9 * found.certificate.nonzero_before == 0.9 * entries(net)
    other = Encoder().eval()
    other.load_state_dict(net.state_dict())
    attention = other.body.layers[0].self_attn
    layers = [part for part in other.modules() if type(part) is nn.Linear]
    chosen = [(layer, kind) for layer in [*layers, attention.out_proj] for kind in ("weight", "bias")]
    chosen += [(attention, "in_proj_weight"), (attention, "in_proj_bias")]
    prune.global_unstructured(
        chosen, pruning_method=prune.L1Unstructured, amount=found.certificate.nonzero_before - left
    )
    assert change(found.network, net, new) < 0.7 * change(other, net, new)


@pytest.mark.parametrize(("make", "shape"), [(Encoder, (160, 5, 16)), (Recurrent, (160, 5, 6))])
def test_the_result_is_saved_read_and_reported(make, shape, tmp_path):
    net, x = make().eval(), normal(*shape)
    found = compress(net, x, tol=0.05, **QUICK)
    assert found.steps[-1].kind == "zero"
    assert entries(found.network) == found.certificate.nonzero < found.certificate.parameters
    assert found.certificate.parameters <= found.certificate.parameters_before
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), make())
    new = normal(30, *shape[1:], seed=7).float()
    with torch.no_grad():
        assert torch.equal(loaded(new), found.network(new))
    assert "not zero" in str(found)
    assert "not zero" in bnrank.report(found, tmp_path / "page.html").read_text()
    bars = view(found).groups[0].charts[0].figure.data[0]
    assert dict(zip(bars.y, bars.x, strict=True))["not zero"] == pytest.approx(
        100 * found.certificate.nonzero / found.certificate.nonzero_before, rel=1e-3
    )


def test_the_bound_is_that_of_the_network_with_zeros():
    net, x = made(lambda: nn.Linear(6, 8), nn.Tanh, lambda: nn.Linear(8, 3)), normal(300, 6)
    found = compress(net, x, tol=0.1, **QUICK)
    product = 1.0
    for part in found.network:
        product *= float(torch.linalg.matrix_norm(part.weight.detach(), 2)) if isinstance(part, nn.Linear) else 1.0
    assert found.steps[-1].kind == "zero"
    assert found.certificate.bound.lipschitz_after == pytest.approx(product)


@pytest.mark.parametrize("kind", ["constant column", "few", "equal rows", "tiny tolerance", "no time"])
def test_what_tells_little_gives_what_it_can(kind):
    net, x = made(lambda: nn.Linear(6, 8), nn.ReLU, lambda: nn.Linear(8, 3)), normal(200, 6)
    settings = {"tol": 0.05} | QUICK
    if kind == "constant column":
        x[:, 0] = 2.0
    elif kind == "few":
        x = x[:10]
    elif kind == "equal rows":
        x = x[:20].repeat(10, 1)
    elif kind == "tiny tolerance":
        settings["tol"] = 1e-12
    else:
        settings["max_minutes"] = 1e-9
    found = compress(net, x, **settings)
    assert entries(found.network) <= entries(net)
    with torch.no_grad():
        assert torch.isfinite(found.network(x)).all()
    assert kind != "tiny tolerance" or not found.changed


def test_another_value_is_refused():
    with pytest.raises(TypeError, match="zeros: got"):
        compress(nn.Linear(3, 2), normal(20, 3), zeros="yes")


class DeadBranch(nn.Module):
    """A layer without bias that reads only zeros, beside two layers that work."""

    def __init__(self):
        super().__init__()
        self.dead, self.unread = nn.Linear(6, 8), nn.Linear(8, 3, bias=False)
        self.first, self.last = nn.Linear(6, 20), nn.Linear(20, 3)
        with torch.no_grad():
            self.dead.bias.fill_(-100.0)

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) + self.unread(torch.relu(self.dead(x)))


def test_layers_without_use_are_left_alone():
    net, x = made(DeadBranch), normal(300, 6)
    found = compress(net, x, tol=0.02, **QUICK)
    assert entries(found.network) < entries(net)
    assert change(found.network, net, normal(300, 6, seed=1)) < 0.03


class WithExtraState(nn.Module):
    """Stores something that is no tensor."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)

    def get_extra_state(self):
        return {"name": "a"}

    def set_extra_state(self, state):
        assert state == {"name": "a"}

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))) + x[:, :3]


def bare():
    return nn.Linear(6, 4)


@pytest.mark.parametrize("kind", [WithExtraState, bare])
def test_modules_with_other_state_and_single_layers_are_thinned(kind, tmp_path):
    net, x = made(kind)[0], normal(200, 6)
    found = compress(net, x, tol=0.1, **QUICK)
    assert found.steps[-1].kind == "zero"
    assert change(found.network, net, normal(200, 6, seed=1)) < 0.12
    assert entries(found.network) < entries(net)
    if kind is bare:
        loaded = bnrank.load(found.save(tmp_path / "thin.safetensors"), made(kind)[0])
        assert torch.equal(loaded(x), found.network(x))


def test_layers_with_too_many_inputs_get_no_zeros_and_are_listed(monkeypatch):
    net = made(lambda: nn.Linear(6, 20), nn.Tanh, lambda: nn.Linear(20, 6), nn.Tanh, lambda: nn.Linear(6, 3))
    monkeypatch.setattr(zeros, "MAX_INPUTS", 10)
    found = compress(net, normal(200, 6), tol=0.1, **QUICK)
    layers = [part for part in found.network.modules() if isinstance(part, nn.Linear)]
    assert "zero" in {step.kind for step in found.steps}
    assert all(bool((layer.weight != 0).all()) for layer in layers if layer.in_features > 10)
    assert any(bool((layer.weight == 0).any()) for layer in layers if layer.in_features <= 10)
    (left,) = (part for part in found.skipped if "no entry was set to zero" in part.reason)
    assert "inputs, the limit is 10" in left.reason
