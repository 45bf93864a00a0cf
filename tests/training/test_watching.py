"""Watching a training: what is measured, that nothing changes, and what stops it."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.measures.usage import centered_dimension
from bnrank.networks.reading import blocks
from bnrank.reporting.charts.watched import watched_view
from bnrank.training import Collapse, CollapseError
from bnrank.training.watching import quantities
from bnrank.training.watching.collapse import Detector
from bnrank.training.watching.live import FEW, UNSEEN
from bnrank.training.watching.records import shortened


class Images(nn.Module):
    """Convolutions with batch normalization and dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.first(x)).relu_()).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


def images():
    return Images(), torch.randn(24, 2, 5, 5)


def recurrent():
    return Recurrent(), torch.randn(24, 7, 4)


def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(40, 3)), torch.randn(24, 5, 8)


def plain():
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))
    return net, torch.randn(40, 6)


class Noise(nn.Module):
    """A parametrization that draws random numbers."""

    def forward(self, weight):
        return weight + 0.1 * torch.randn_like(weight)


class Averaging(nn.Module):
    """A parametrization that keeps a moving average and a count, in eval mode, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.zeros(()))
        self.calls = 0

    def forward(self, weight):
        self.calls += 1
        self.size.mul_(0.9).add_(weight.detach().abs().max(), alpha=0.1)
        return weight.clamp(-self.size, self.size) / self.calls + weight


def averaged():
    net, x = plain()
    for place in (0, 4):
        nn.utils.parametrize.register_parametrization(net[place], "weight", Averaging())
    return net, x


def computed():
    net, x = plain()
    nn.utils.parametrizations.spectral_norm(net[0])
    nn.utils.parametrizations.weight_norm(net[2])
    nn.utils.parametrize.register_parametrization(net[4], "weight", Noise())
    return net, x


KINDS = {
    **{"plain": plain, "images": images, "recurrent": recurrent, "attention": attention},
    **{"computed": computed, "averaged": averaged},
}
OPTIMIZERS = {"plain": torch.optim.SGD, "images": torch.optim.AdamW, "recurrent": torch.optim.RMSprop}


def trained(kind, steps, watching=None, **options):
    """Return the network after steps in a plain loop, its gradients, the random state, and the watch."""
    torch.manual_seed(0)
    net, x = KINDS[kind]()
    y = torch.randint(3, (len(x),))
    optimizer = OPTIMIZERS.get(kind, torch.optim.Adam)(net.parameters(), lr=0.02)
    found = None if watching is None else bnrank.watch(net, **watching(x), **options)
    for _ in range(steps):
        rows = torch.randperm(len(x))[:16]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        if found is not None:
            found.step()
    if found is not None:
        found.close()
    return net, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fixed", [False, True])
def test_training_is_the_same_bit_by_bit(kind, fixed):
    alone, _ = trained(kind, 6)
    state = torch.get_rng_state()
    watched, found = trained(kind, 6, lambda x: {"x": x[:9]} if fixed else {}, every=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert found.history.step.values.tolist() == [1, 2, 4, 6]
    assert np.isfinite(found.history["dimension_95"].sel(layer="output").values).all()
    for (name, a), (_, b) in zip(alone.state_dict().items(), watched.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(alone.modules(), watched.modules(), strict=True):
        assert a.training == b.training
        assert vars(a).keys() == vars(b).keys()
        assert not b._forward_hooks
        assert not b._forward_pre_hooks


def test_hooks_are_there_only_before_a_measured_step():
    net, x = plain()
    with bnrank.watch(net, every=3) as found:
        there = []
        for _ in range(7):
            there.append(any(m._forward_pre_hooks for m in net.modules()))
            net(x)
            found.step()
    assert there == [True, False, True, False, False, True, False]


def test_rows_are_what_the_definitions_give():
    torch.manual_seed(1)
    net, x = images()
    found = bnrank.watch(net, every=1, max_rows=24 * 25)
    net.eval()
    net(x)  # as a validation: replaced by the pass in training mode
    net.train()
    torch.manual_seed(2)
    net(x)
    found.step()
    row = found.history.isel(step=0)
    torch.manual_seed(2)
    inside = net.norm(net.first(x)).relu()
    entering = net.drop(inside).mean((2, 3))
    assert row["units"].values.tolist() == [2, 6, 3]
    expected = [x.movedim(1, -1).reshape(-1, 2), entering, net.head(entering)]
    for layer, values in zip(("first", "head", "output"), expected, strict=True):
        measured = [row[f"dimension_{q}"].sel(layer=layer).item() for q in (95, 99)]
        assert measured == list(centered_dimension(values))
    for layer, weight in (("first", net.first.weight.flatten(1)), ("head", net.head.weight)):
        s = np.linalg.svd(weight.detach().double().numpy(), compute_uv=False)
        own = row.sel(layer=layer)
        assert own["stable_rank"].item() == pytest.approx((s**2).sum() / s[0] ** 2)
        assert own["effective_rank"].item() == pytest.approx(s.sum() ** 2 / (s**2).sum())
        assert own["tail"].item() == pytest.approx((s[max(1, round(len(s) / 10)) :] ** 2).sum() / (s**2).sum())
        assert own["operator_norm"].item() == pytest.approx(s[0])
        assert own["norm"].item() == pytest.approx(np.linalg.norm(s))
        assert own["singular_values"].values[: len(s)] == pytest.approx(s)
        counts = [int((np.cumsum(s**2) < q * (s**2).sum() * (1 - 1e-12)).sum()) + 1 for q in (0.95, 0.99)]
        assert [own[f"weight_dimension_{q}"].item() for q in (95, 99)] == counts


def test_planted_dead_units_ranks_and_subnormals_are_seen():
    torch.manual_seed(0)
    net, x = plain()
    with torch.no_grad():
        net[0].bias[[1, 4, 5]] = -100.0
        net[2].weight.copy_(torch.randn(9, 2) @ torch.randn(2, 12))
        net[4].weight[0, :4] = 1e-41
    found = bnrank.watch(net, x=x)
    found.step()
    row = found.history.isel(step=0)
    assert row["dead_units"].sel(layer="2").item() == 3
    assert row["weight_dimension_99"].sel(layer="2").item() <= 2
    assert row["stable_rank"].sel(layer="2").item() <= 2
    assert row["dimension_99"].sel(layer="2").item() <= 9
    assert row["subnormals"].values[:3].tolist() == [0, 0, 4]


def kernels():
    torch.manual_seed(0)
    layers = [nn.ConvTranspose2d(5, 4, 3), nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 1, 2)]
    return nn.Sequential(
        *layers, nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3, groups=6), nn.ConvTranspose2d(6, 4, 2, groups=2)
    )


def dense(conv):
    """Return the matrix of a convolution on a single patch, by its definition: one block for each group."""
    weight = conv.weight.detach().double()
    parts = weight.chunk(conv.groups)
    parts = [part.transpose(0, 1) if conv.transposed else part for part in parts]
    return torch.block_diag(*(part.flatten(1) for part in parts))


def test_transposed_and_grouped_kernels_are_measured_as_profile_and_compare_measure_them():
    net = kernels()
    watch = bnrank.watch(net, what=["weights"])
    watch.step()
    values = [torch.linalg.svdvals(dense(conv)) for conv in net]
    expected = [float(s.square().sum() / s[0] ** 2) for s in values]
    moved = copy.deepcopy(net)
    with torch.no_grad():
        for conv in moved:
            conv.weight += torch.randn_like(conv.weight)
    pair = bnrank.compare(net, moved)
    along = bnrank.compare([net, moved]).history
    whole = [bnrank.profile(net).stable_rank, watch.history.stable_rank.sel(step=1), along.stable_rank.sel(step=0)]
    for found in (*whole, pair.data.stable_rank.sel(network="a")):
        assert found.values == pytest.approx(expected, rel=1e-9)
    assert along.update_stable_rank.sel(step=1).values == pytest.approx(pair.data.update_stable_rank.values, rel=1e-9)
    assert along.update_share.sel(step=1).values == pytest.approx(pair.data.update_share.values, rel=1e-9)
    top = watch.history.singular_values.sel(step=1, layer="4").values
    assert top[:6] == pytest.approx(values[4][:6], rel=1e-6)
    assert np.isnan(top[6:]).all()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "hook",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
def test_weights_that_hooks_compute_are_measured_as_the_layer_uses_them(hook):
    torch.manual_seed(0)
    net, x = plain()
    hook(net[2])
    with torch.no_grad():
        for name, p in net[2].named_parameters():
            if name in ("parametrizations.weight.original0", "weight_g"):
                p[2:] = 1e-6  # norms of rows: the weight has rank 2, and v not
    with bnrank.watch(net, every=1, x=x) as found:
        found.step()
    assert found.layers == ["0", "2", "4", "output"]
    assert found.notes == []
    row = found.history.isel(step=0)
    net.eval()(x)
    s = np.linalg.svd(net[2].weight.detach().double().numpy(), compute_uv=False)
    assert row["stable_rank"].values[1] == pytest.approx((s**2).sum() / s[0] ** 2, rel=1e-5)
    assert row["stable_rank"].values[:3] == pytest.approx(bnrank.profile(net)["stable_rank"].values, rel=1e-5)
    assert row["units"].values.tolist() == [6, 12, 9, 3]
    assert any("parametrization" in part.reason for part in found.skipped)


def test_a_weight_in_a_cache_of_parametrizations_is_read_as_it_is_and_left_there():
    net, x = computed()
    found = bnrank.watch(net, every=1, what=["weights"])
    with nn.utils.parametrize.cached():
        found.step()
        net(x).square().sum().backward()
        with torch.no_grad():
            net[2].parametrizations.weight.original0.mul_(2)
        found.step()
    assert all(p.grad is not None for p in net.parameters())
    norms = found.history["norm"].sel(layer="2").values
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)


def test_large_kernels_of_groups_have_the_norm_of_the_largest_group(monkeypatch):
    weight = blocks(kernels()[1].weight.detach(), groups=2)
    exact, _ = quantities.of_weight(weight)
    monkeypatch.setattr(quantities, "MAX_SIDE", 3)
    monkeypatch.setattr(quantities, "ITERATIONS", 300)
    assert quantities.of_weight(weight)[0]["operator_norm"] == pytest.approx(exact["operator_norm"], rel=1e-9)
    assert quantities.of_weight(torch.stack([torch.zeros(4, 5), torch.eye(4, 5)]))[0]["operator_norm"] == 1


@pytest.mark.parametrize("side", [4, 1024])
def test_complex_weights_are_measured_as_they_are(monkeypatch, side):
    torch.manual_seed(0)
    monkeypatch.setattr(quantities, "MAX_SIDE", side)
    monkeypatch.setattr(quantities, "ITERATIONS", 300)
    net = nn.Linear(5, 6, dtype=torch.complex64)
    with bnrank.watch(net, what=["weights"]) as found:
        found.step()
    top = np.linalg.svd(net.weight.detach().numpy().astype(complex), compute_uv=False)[0]
    assert found.history["operator_norm"].item() == pytest.approx(top, rel=1e-9)


def test_a_large_matrix_has_norms_alone(monkeypatch):
    weight = torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5]))
    exact, _ = quantities.of_weight(weight)
    monkeypatch.setattr(quantities, "MAX_SIDE", 3)
    found, values = quantities.of_weight(weight)
    assert found["stable_rank"] == pytest.approx(exact["stable_rank"], rel=1e-6)
    assert found["operator_norm"] == pytest.approx(3) == values[0]
    assert "effective_rank" not in found


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
def test_a_training_that_diverged_is_recorded_as_nan(entry):
    net, x = plain()
    found = bnrank.watch(net, every=1, x=x)
    found.step()
    with torch.no_grad():
        net[0].weight[0, 0] = entry
    found.step()
    history = found.history
    assert np.isnan(history["stable_rank"].sel(step=2, layer="0"))
    assert np.isnan(history["dimension_95"].sel(step=2, layer="2"))
    assert np.isfinite(history["stable_rank"].sel(step=2, layer="4"))
    assert "measuring stopped" not in "\n".join(found.notes)
    said = "NaN or infinite since step 2: weights of 0, activations at 2, 4, output"
    assert found.notes == [said]
    lines = str(found).splitlines()
    assert lines[1] == said
    assert [line.split("to ")[1].split()[0] for line in lines[3:6]] == ["6", "–", "–"]
    assert lines[3].count("to –") == 1  # the stable rank of the weights
    assert history["nonfinite"].values[1, :3].tolist() == [1, 0, 0]
    with torch.no_grad():
        entering = [net[:k](x).numpy() for k in (0, 2, 4, 5)]
    counts = [int((~np.isfinite(values)).any(0).sum()) for values in entering]
    assert history["nonfinite_units"].values[1].tolist() == counts
    assert counts[:2] == [0, 1]


def test_values_that_are_finite_again_and_rows_that_are_not_copied_are_remarked_on():
    net, x = plain()
    found = bnrank.watch(net, every=1, max_rows=12)
    for number in range(1, 5):
        with torch.no_grad():
            given = x.clone()
            given[number, 2:4] = torch.inf if number in (2, 3) else 0.0  # most rows are not copied
            net(given)
        found.step()
    history = found.history
    assert history["nonfinite_units"].sel(layer="0").values.tolist() == [0, 2, 2, 0]
    assert np.isnan(history["dimension_95"].values[1:3]).all()
    assert np.isfinite(history["dimension_95"].values[[0, 3]]).all()
    said = "NaN or infinite last at step 3, finite later: activations at 0, 2, 4, output"
    assert found.notes == [said]


def test_few_rows_have_no_dimension_and_are_remarked_on():
    net, x = plain()
    found = bnrank.watch(net, x=x[:6])
    found.step()
    assert np.isnan(found.history["dimension_95"].sel(layer="2")).all()
    assert found.notes == [f"dimensions at 0, 2, 4: {FEW}"]  # the output varies in 2 dimensions, which are seen


@pytest.mark.parametrize("times", [1, 2])
def test_a_network_that_is_not_finite_stops_and_is_not_called_collapsed(times):
    net, x = plain()
    found = bnrank.watch(net, every=1, x=x, collapse=Collapse(below=2, times=times))
    found.step()
    with torch.no_grad():
        net[0].weight.fill_(torch.nan)
    for _ in range(times - 1):
        found.step()
    names = r"0 \(since step 2\), 2 \(since step 2\), 4 \(since step 2\), output \(since step 2\)$"
    with pytest.raises(CollapseError, match=f"^not finite at step {times + 1}: .* NaN or infinite .*{names}") as error:
        found.step()
    assert error.value.layers == dict.fromkeys(("0", "2", "4", "output"), 2)
    assert not found.collapsed
    assert "collapsed" not in str(error.value) + str(found)


def test_a_batch_that_is_not_finite_does_not_stop_and_starts_the_count_anew():
    net, x = plain()
    found = bnrank.watch(net, every=1, x=x, collapse=Collapse(below=3.5, times=2, layers=["output"]))
    for factor in (1.0, torch.nan, 1.0, torch.nan):  # 3 outputs: fewer than 3.5, every other time not finite
        found.x = factor * x
        found.step()
    found = bnrank.watch(net, every=1, x=torch.nan * x, collapse=Collapse(times=1, layers=["2"], stop=False))
    with pytest.warns(RuntimeWarning, match=r"not finite at step 1: .* at 2 \(since step 1\)$"):
        found.step()


def test_zeros_one_sample_and_networks_of_one_unit():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    for p in net.parameters():
        nn.init.zeros_(p)
    found = bnrank.watch(net, every=1, x=torch.randn(5, 3))
    found.step()
    row = found.history.isel(step=0)
    assert row["dimension_95"].values.tolist()[1:] == [0, 0]
    assert row["dead_units"].values.tolist() == [0, 4, 1]
    assert np.isnan(row["stable_rank"].values).all()
    assert row["effective_rank"].values[:2].tolist() == [0, 0]
    found.x = torch.randn(1, 3)
    found.step()
    assert np.isnan(found.history["dimension_95"].values[1]).all()


def test_units_of_one_sample_are_not_called_dead():
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    with bnrank.watch(net, every=1) as watch:
        net(torch.ones(1, 6))
        watch.step()
        net(torch.tensor([[1.0, 2, 3, 4, 5, 6], [1, 0, 0, 0, 0, 0]]))
        watch.step()
    assert np.isnan(watch.history["dead_units"].values[0]).all()
    assert watch.history["dead_units"].values[1, 0] == 0
    assert watch.history["constant_units"].values[1, 0] == 1  # 1 on both rows
    assert np.isnan(watch.history["constant_units"].values[0]).all()


def test_a_name_has_one_definition_in_a_watch_and_in_a_profile():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 25), nn.Tanh(), nn.Linear(25, 4)).double()
    with torch.no_grad():
        net[0].bias[:10] = -100.0  # 0 on all samples
        net[2].bias[:5] = 100.0  # 1 on all samples
    x = torch.randn(200, 20).double()
    watch = bnrank.watch(net, every=1, x=x)
    watch.step()
    watch.step()
    row, profile = watch.history.isel(step=-1), bnrank.profile(net, x)
    for name in ("stable_rank", "subnormals"):
        assert row[name].values[:3] == pytest.approx(profile[name].values, rel=1e-9), name
    for name in ("units", "dimension_95", "dimension_99", "dead_units"):
        assert row[name].values[1:].tolist() == profile[name].values.tolist(), name
    assert row["dead_units"].values.tolist() == [0, 10, 0, 0]
    assert row["constant_units"].values.tolist() == [0, 10, 5, 0]
    assert [r["constant"] for r in watch.summary()] == [0, 10, 5, 0]
    assert "Constant inputs" in [chart.title for chart in watched_view(watch).groups[0].charts]
    s = np.linalg.svd(net[0].weight.detach().numpy(), compute_uv=False)
    shares = s / s.sum()
    assert row["effective_rank"].values[0] == pytest.approx(s.sum() ** 2 / (s**2).sum())
    assert profile["entropy_rank"].values[0] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert "effective_rank" not in profile
    assert "entropy rank of W" in bnrank.layer_table(profile)._repr_html_()
    assert "effective rank" not in bnrank.layer_table(profile)._repr_html_()
    assert {"entropy rank a", "update entropy rank"} < bnrank.compare(net, net).layers()[0].keys()


def test_units_of_the_output_of_a_line_are_channels():
    lines = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 5, 3))
    recurrent = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))
    adapted = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 5, 3))
    adapted[2].a = nn.Parameter(torch.zeros(2, 8))  # the last matrix is no kernel
    for net, x in (
        (lines, torch.randn(8, 3, 20)),
        (recurrent, torch.randn(8, 16, 3)),
        (adapted, torch.randn(8, 3, 20)),
    ):
        watch = bnrank.watch(net, every=1, x=x)
        watch.step()
        assert watch.history["units"].sel(layer="output").item() == 5
        assert watch.history["rows"].sel(layer="output").item() == 8 * 16


def test_the_dimension_of_a_bottleneck_is_seen_while_it_forms():
    torch.manual_seed(0)
    x = torch.randn(200, 10)
    y = torch.tanh(x[:, :2] @ torch.randn(2, 10))
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(10, 10), nn.ReLU())), nn.Linear(10, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=3e-3)
    with bnrank.watch(net, every=400, x=x) as found:
        for _ in range(800):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            optimizer.step()
            found.step()
    first, *_, last = found.history["dimension_95"].sel(layer="6").values
    assert last <= 3
    assert first >= last


def test_a_collapse_stops_a_plain_loop_and_only_there():
    net, x = plain()
    rule = Collapse(below=2, times=3)
    found = bnrank.watch(net, every=1, x=x, collapse=rule)
    for _ in range(4):
        found.step()
    with torch.no_grad():
        net[2].weight.zero_()
    found.step()
    found.step()
    with pytest.raises(CollapseError, match=r"4 \(since step 5\), output \(since step 5\)") as error:
        found.step()
    assert error.value.layers == {"4": 5, "output": 5}
    assert found.collapsed == error.value.layers
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert "collapsed since step 5: output" in str(found)


def test_a_collapse_that_recovers_or_is_not_watched_does_not_stop():
    net, x = plain()
    kept = net[2].weight.detach().clone()
    found = bnrank.watch(net, every=1, x=x, collapse=Collapse(below=2, times=2, layers=["4"]))
    for number in range(6):
        with torch.no_grad():
            net[2].weight.copy_(kept if number % 2 else 0 * kept)
        found.step()
    assert not found.collapsed
    found = bnrank.watch(net, every=1, x=0 * x, collapse=Collapse(times=1, layers=["0"], stop=False))
    with pytest.warns(RuntimeWarning, match="collapsed at step 1"):
        found.step()
    assert found.collapsed == {"0": 1}


def test_the_table_of_a_collapsed_layer_is_that_of_the_last_measurement():
    net, x = plain()
    with bnrank.watch(net, every=1, x=x) as found:
        found.step()
        with torch.no_grad():
            net[2].weight.zero_()
        found.step()
    row = found.summary()[1]
    assert row["stable rank of W"].endswith(" to –")
    assert (row["effective rank"], row["tail"]) == (0, None)
    assert [len(row) for row in bnrank.watch(net).summary()] == [1] * 4  # nothing measured yet


def test_a_collapse_to_one_dimension_and_little_noise_is_seen_in_small_batches():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 30))
    found = bnrank.watch(net, every=1, collapse=Collapse(below=2, times=3, layers=["0"]))
    for number in range(3):
        net(torch.randn(20, 1) @ torch.randn(1, 30) + 1e-3 * torch.randn(20, 30))
        if number < 2:
            found.step()
    with pytest.raises(CollapseError, match=r"collapsed at step 3: .* at 0"):
        found.step()


def test_a_collapse_that_cannot_be_seen_is_said():
    net, _ = plain()
    found = bnrank.watch(net, every=1, collapse=Collapse(below=2, times=3, layers=["2", "4"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (4, 4, 40, 4, 4):
            net(torch.randn(size, 6))
            found.step()
    net(torch.randn(4, 6))
    with pytest.warns(RuntimeWarning, match="no collapse can be seen: in 3 measurements up to step 6"):
        found.step()
    assert not found.collapsed


def test_one_output_is_no_collapse():
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    found = bnrank.watch(net, every=1, x=torch.randn(40, 6), collapse=Collapse(times=1))
    found.step()
    assert not found.collapsed


def test_an_error_in_a_measurement_does_not_end_the_training(monkeypatch):
    net, x = plain()
    found = bnrank.watch(net, every=1)

    def broken(rows):
        raise ArithmeticError("no")

    monkeypatch.setattr(quantities, "of_weight", broken)
    net(x)
    with pytest.warns(RuntimeWarning, match="measuring stopped at step 1: ArithmeticError: no; training continues"):
        found.step()
    assert found.step() is False
    assert not any(m._forward_pre_hooks for m in net.modules())
    assert "measuring stopped" in str(found)


def test_a_fixed_batch_on_which_the_network_fails_is_warned_of_once_and_weights_are_measured():
    net, x = plain()
    found = bnrank.watch(net, every=1, x=torch.randn(40, 7))
    said = "activations not measured, as the network fails on x: RuntimeError: .*40x7 and 6x12"
    with pytest.warns(RuntimeWarning, match=said) as warned:
        measured = [found.step() for _ in range(3)]
    assert measured == [True] * 3
    assert [warning.filename for warning in warned] == [__file__]
    assert len(found.notes) == 1
    assert np.isnan(found.history["units"].values).all()
    assert np.isfinite(found.history["stable_rank"].values[:, :3]).all()
    found.x = x
    assert found.step()
    assert np.isfinite(found.history["dimension_95"].values[-1]).all()
    named = bnrank.watch(net, every=1, x={"given": x}, what=["activations"])
    with pytest.warns(RuntimeWarning, match="as the network fails on x: TypeError"):
        assert named.step()


def test_numbers_of_a_loop_that_counts_itself():
    net, x = plain()
    found = bnrank.watch(net, every=10)
    for number in range(5002, 5050, 2):
        net(x)
        found.step(number)
    assert found.history.step.values.tolist() == [5002, 5010, 5020, 5030, 5040]
    assert np.isfinite(found.history["dimension_95"].values).all()
    with pytest.raises(ValueError, match="number: got 5048, expected an integer of at least 5049"):
        found.step(5048)


def test_a_network_that_is_not_called_is_remarked_on():
    net, _ = plain()
    found = bnrank.watch(net, every=1)
    found.step()
    assert "no forward pass was seen" in str(found)
    assert np.isfinite(found.history["stable_rank"].values[:, :3]).all()


def test_half_precision_and_autocast():
    torch.manual_seed(0)
    net, x = plain()
    found = bnrank.watch(net, every=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x)
        found.step()
    s = np.linalg.svd(net[0].weight.detach().double().numpy(), compute_uv=False)
    assert found.history["operator_norm"].values[0, 0] == pytest.approx(s[0], rel=1e-9)
    low = net.to(torch.bfloat16)
    again = bnrank.watch(low, every=1, x=x.bfloat16())
    again.step()
    assert np.isfinite(again.history["dimension_95"].values).all()


def test_mappings_tuples_and_outputs_of_several_tensors():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, left, right):
            return {"hidden": self.a(left), "sum": self.a(left) + self.b(right)}

    net, left, right = Both(), torch.randn(30, 3), torch.randn(30, 2)
    rows = []
    for batch in ((left, right), {"left": left, "right": right}):
        found = bnrank.watch(net, x=batch)
        found.step()
        rows.append(found.history["dimension_95"].values[0].tolist())
    assert rows[0] == rows[1]
    assert rows[0][:2] == [*centered_dimension(left)[:1], *centered_dimension(right)[:1]]


def test_the_drift_of_conserved_quantities_comes_from_a_monitor():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double(), torch.randn(20, 3).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = bnrank.invariants.Monitor(net, x[:2], every=1).attach(optimizer)
    assert monitor.drift() == {}
    found = bnrank.watch(net, every=2, x=x, monitor=monitor)
    for _ in range(4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        found.step()
    history = found.history["drift"]
    assert history.sizes["quantity"] == len(monitor.quantities)
    recorded = monitor.history.isel(member=0).sel(quantity=history.quantity.values)["relative"].values
    assert history.values[-1] == pytest.approx(recorded[-2])  # the watch came before the row of the last state
    assert "conserved quantities: largest relative drift" in str(found)


@pytest.mark.parametrize("fixed", [False, True])
def test_weights_without_activations_are_named_with_the_reason(fixed):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 4)
            self.cells = nn.LSTM(4, 5, bidirectional=True, batch_first=True)
            self.attention = nn.MultiheadAttention(10, 2, kdim=4, vdim=4, batch_first=True)
            self.own = nn.Parameter(torch.randn(10, 10))
            self.unused = nn.Linear(2, 3)
            self.cell = nn.GRUCell(10, 3)

        def forward(self, x):
            words = self.words(x)
            hidden = self.cells(words)[0] @ self.own
            return self.cell(self.attention(hidden, words, words, need_weights=False)[0][:, -1])

    net, x = Mixed(), torch.randint(9, (60, 7))
    found = bnrank.watch(net, every=1, x=x if fixed else None)
    net(x)
    found.step()
    row = found.history.isel(step=0)
    unseen = {name for name in found.layers if np.isnan(row["units"].sel(layer=name))}
    gates = [f"cells.{place}.hh.{g}" for place in ("l0", "l0_reverse") for g in ("input", "forget", "cell", "output")]
    gates += [f"cell.hh.{g}" for g in ("reset", "update", "new")]
    assert unseen == {"words", *gates, "own", "attention.out_proj", "unused"}
    assert found.notes == [
        f"activations not measured at {shortened([n for n in found.layers if n in unseen])}: {UNSEEN}"
    ]
    words = net.words(x).detach().reshape(-1, 4)  # 420 rows, of which none is left out
    assert row["dimension_95"].sel(layer="cells.l0_reverse.ih.forget") == centered_dimension(words)[0]
    assert row["units"].sel(layer=["attention.q", "attention.k", "cell.ih.new"]).values.tolist() == [10, 4, 10]
    assert not any("activations not measured" in note for note in trained("plain", 2, lambda x: {})[1].notes)


def test_weights_are_named_once_and_the_rest_has_reasons():
    net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.LayerNorm(7))
    net[1].weight = net[0].weight
    found = bnrank.watch(net)
    assert found.layers == ["0", "output"]
    assert {"2.weight", "2.bias"} <= {part.name for part in found.skipped}
    with pytest.raises(
        ValueError, match=r"^net: got LayerNorm without a matrix \(weight: .*, expected one with a matrix"
    ):
        bnrank.watch(nn.LayerNorm(3))


@pytest.mark.parametrize("fixed", [False, True])
def test_layers_that_are_replaced_added_and_removed_are_followed_by_their_names(fixed):
    torch.manual_seed(0)
    net, x = plain()
    with bnrank.watch(net, every=2, x=x if fixed else None) as found:
        for number in range(1, 7):
            if number == 3:  # before the hooks of step 4
                net[2], net[4] = nn.Linear(12, 5), nn.Linear(5, 3)
                net.append(nn.Linear(3, 2))
                nn.utils.prune.l1_unstructured(net[0], "weight", 0.5)  # the same layer
            if number == 5:
                net[2], net[4] = nn.LayerNorm(12), nn.Linear(12, 3)
            net(x)
            found.step()
            for layer in ("0", "4"):
                norm = float(net[int(layer)].weight.detach().double().norm())
                measured = found.history["norm"].sel(layer=layer).values[-1]
                assert number in (3, 5) or measured == pytest.approx(norm)
    assert found.layers == ["0", "2", "4", "output", "5"]
    history = found.history
    assert history["units"].sel(layer="4").values.tolist() == [9, 9, 5, 12]
    assert np.isnan(history["norm"].sel(layer="2").values).tolist() == [False, False, False, True]
    assert np.isnan(history["dimension_95"].sel(layer="5").values).tolist() == [True, True, False, False]
    assert "no longer in the network: 2" in found.notes


class Counting(nn.Module):
    """A parametrization that counts how often it is computed."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, weight):
        self.calls.append(weight)
        return 1.0 * weight


@pytest.mark.parametrize("what", [["weights"], ["activations"], ["weights", "activations"]])
def test_a_measurement_computes_no_weight_in_the_network_itself(what):
    net, x = plain()
    calls = []
    nn.utils.parametrize.register_parametrization(net[2], "weight", Counting(calls))
    with bnrank.watch(net, every=1, what=what) as found:
        for _ in range(3):
            net(x)
            before = len(calls)
            found.step()
            assert len(calls) == before


def test_scripted_layers_are_measured_as_they_are():
    net, x = plain()
    net[4] = torch.jit.script(nn.Linear(9, 3))
    with bnrank.watch(net, every=1) as found:
        for _ in range(2):
            net(x)
            found.step()
    assert np.isfinite(found.history["norm"].sel(layer=["0", "2", "4"]).values).all()
    assert found.notes == [f"activations not measured at 4: {UNSEEN}"]


def test_results_print_themselves_and_become_frames_and_plots():
    _, found = trained("plain", 6, lambda x: {}, every=2)
    assert str(found).splitlines()[0] == "watch of Sequential: 4 measurements, steps 1 to 6"
    frame = found.to_frame()
    assert len(frame) == 4 * 4
    assert frame["stable_rank"].notna().sum() == 12
    axes = found.plot()
    assert len(axes) == 3
    lines = axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["0", "2", "4", "output"]
    assert lines[1].get_ydata().tolist() == found.history["dimension_95"].sel(layer="2").values.tolist()
    assert "nothing measured yet" in str(bnrank.watch(plain()[0]))
    with pytest.raises(ValueError, match="no measurements"):
        bnrank.watch(plain()[0]).plot()


def test_layers_with_long_names_are_told_apart_in_the_charts():
    body = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)))
    net = nn.ModuleDict({"a_body_with_a_long_name": nn.ModuleDict({"and_layers": body})})
    with bnrank.watch(net, every=1) as found:
        for _ in range(2):
            body(torch.randn(40, 6))
            found.step()
    (group,) = watched_view(found).groups
    labels = [label for _, label in group.charts[0].key]
    assert labels == [f"…and_layers.{i}.0" for i in range(3)]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"every": 0}, ValueError, "every"),
        ({"what": "weights"}, TypeError, "what"),
        ({"what": ("ranks",)}, ValueError, "what"),
        ({"what": ()}, ValueError, "what"),
        ({"monitor": 3}, TypeError, "monitor"),
        ({"writers": [3]}, TypeError, "writers"),
        ({"collapse": 3}, TypeError, "collapse"),
        ({"collapse": Collapse(layers=["9"])}, ValueError, "collapse"),
        ({"collapse": Collapse(), "what": ("weights",)}, ValueError, "collapse"),
        ({"x": 3}, TypeError, "x"),
        ({"writers": "no/such/folder/a.csv"}, ValueError, "writers"),
    ],
)
def test_bad_arguments_are_named(options, error, text):
    net, _ = plain()
    with pytest.raises(error, match=f"^{text}: got"):
        bnrank.watch(net, **options)
    assert not any(part._forward_pre_hooks for part in net.modules())


# on disk and in loggers ----------------------------------------------------------------------------------------------


def test_measurements_that_are_not_finite_are_consecutive_also_without_a_dimension():
    """A recurrent weight that is NaN, restored and NaN again has not been NaN twice in a row."""
    detector = Detector(Collapse(below=2, times=2))
    found = [bool(detector.update(step, {"h": {"nonfinite": bad}})) for step, bad in enumerate((1.0, 0.0, 1.0, 1.0))]
    assert found == [False, False, False, True]
    assert detector.since("not finite") == {"h": 2}
    assert detector.update(4, {"h": {"nonfinite": 0.0}}) == ""
    assert detector.since("not finite") == {}
    low, unknown = ({"nonfinite": 0.0, "dimension_95": d, "units": 8.0} for d in (1.0, float("nan")))
    assert [bool(detector.update(step, {"a": row})) for step, row in enumerate((low, unknown, low))] == [0, 0, 1]
    assert detector.since("collapsed") == {"a": 0}


def test_attention_that_is_the_network_itself_has_the_activations_of_its_input():
    x = torch.randn(60, 3, 4, generator=torch.Generator().manual_seed(0))
    watch = bnrank.watch(nn.MultiheadAttention(4, 2, batch_first=True), every=1, x=(x, x, x))
    watch.step()
    assert watch.history["units"].sel(layer=["q", "k", "v", "output"]).values.tolist() == [[4, 4, 4, 4]]


def measure_often(watch):
    for _ in range(5):
        watch.step()


def test_a_failure_whose_message_changes_is_warned_of_once():
    class Fails(nn.Linear):
        calls = 0

        def forward(self, x):
            Fails.calls += 1
            raise RuntimeError(f"tried to allocate {Fails.calls} bytes")

    watch = bnrank.watch(Fails(3, 2), every=1, x=torch.ones(4, 3))
    with pytest.warns(RuntimeWarning, match="fails on x") as warned:
        measure_often(watch)
    assert len(warned) == 1
    assert sum("tried to allocate" in note for note in watch.notes) == 1


class Experts(nn.Module):
    """Stacked experts, and a parameter of that shape with another name."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Module()
        self.experts.up = nn.Parameter(torch.randn(3, 6, 5))
        self.mixed = nn.Parameter(torch.randn(2, 5, 4))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.einsum("noi,bi->bo", self.experts.up, x))


class Attending(nn.Module):
    """Attention with keys and values of other widths, fused projections, and an embedding tied to the last layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.attn = nn.MultiheadAttention(6, 2, kdim=5, vdim=4, batch_first=True)
        self.qkv = nn.Linear(6, 18)
        self.last = nn.Linear(6, 11, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x):
        words = self.words(x)
        q, k, _ = self.qkv(words).chunk(3, -1)
        return self.last(self.attn(q, k[..., :5], words[..., :4])[0])


LISTED = {
    "lstm": lambda: nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3),
    "gru cell": lambda: nn.GRUCell(4, 3),
    "attention": Attending,
    "experts": Experts,
    "convolutions": kernels,
    "line": lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv3d(1, 2, 2), nn.Bilinear(3, 4, 5)),
    "computed": lambda: computed()[0][:4],
    "half": lambda: nn.Sequential(nn.Linear(6, 5, dtype=torch.bfloat16), nn.Linear(5, 4).half()),
    "masked": lambda: nn.utils.prune.l1_unstructured(nn.Linear(6, 5), "weight", 0.5),
}


@pytest.mark.parametrize("kind", LISTED)
def test_a_watch_lists_and_measures_what_a_profile_and_a_comparison_do(kind, tmp_path):
    torch.manual_seed(0)
    net = LISTED[kind]()
    with bnrank.watch(net, what=["weights", "subnormals"]) as found:
        found.step()
    profile, row = bnrank.profile(net), found.history.isel(step=0)
    names = profile.layer_name.values.tolist()
    assert row.layer.values.tolist() == names
    torch.save(net.state_dict(), tmp_path / "step-1.pt")
    module, state = bnrank.compare([net, net]).history, bnrank.training.read_checkpoints(tmp_path).history
    for other in (module.isel(step=0), *([state.isel(step=0)] if kind not in ("convolutions", "computed") else [])):
        assert other.layer.values.tolist() == names
        assert other["stable_rank"].values == pytest.approx(row["stable_rank"].values, rel=1e-12)
    for name in ("stable_rank", "subnormals"):
        assert row[name].values == pytest.approx(profile[name].values, rel=1e-9)
    top = row["singular_values"].values[:, 0]
    assert top == pytest.approx(profile.weight_singular_values.values[:, 0], rel=1e-7)


@pytest.mark.parametrize("scales", [(6, 1), (), (1, 1)])
def test_checkpoints_of_quantized_weights_are_measured_as_their_numbers(tmp_path, scales):
    torch.manual_seed(0)
    scale = torch.rand(scales) + 0.5
    for step in (1, 2):
        codes = torch.randn(6, 8).to(torch.float8_e4m3fn)
        state = {"a.weight": codes, "a.weight_scale": scale, "b.qweight": torch.ones(4, 4, dtype=torch.int32)}
        torch.save(state | {"b.scales": torch.ones(2, 4)}, tmp_path / f"step-{step}.pt")
    history = bnrank.compare(tmp_path).history
    s = torch.linalg.svdvals(codes.double() * scale.double())
    assert history.layer.values.tolist() == ["a"]
    assert history["stable_rank"].values[-1] == pytest.approx([float(s.square().sum() / s[0] ** 2)], rel=1e-6)
    assert float(history["change"][-1, 0]) < 3
