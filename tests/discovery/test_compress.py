import copy

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery.compression import Timing, parameters, stages
from bnrank.discovery.compression.lowrank import swapped
from bnrank.discovery.compression.parts import cost, counts, run, segments
from bnrank.discovery.storage import rebuild
from helpers import normal

from .functions import judge_of

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def bottlenecked(width=30, depth=7, k=2, d_in=8, d_out=5, seed=0):
    """x -> |u.x| for k directions u, then layers that pass on k non-negative numbers, then a nonlinear read-out."""
    u = normal(k, d_in, seed=seed)
    first = torch.zeros(width, d_in, dtype=torch.float64)
    first[:k], first[k : 2 * k] = u, -u
    second = torch.zeros(width, width, dtype=torch.float64)
    mix = torch.linalg.qr(normal(width, k, seed=seed + 1))[0].abs()
    second[:, :k] = second[:, k : 2 * k] = mix
    inner = mix @ torch.linalg.pinv(mix)
    out = normal(width, width, seed=seed + 2) @ inner
    biases = [torch.zeros(width, dtype=torch.float64) for _ in range(depth - 1)] + [torch.zeros(d_out).double()]
    biases[-2] = normal(width, seed=seed + 3)
    last = normal(d_out, width, seed=seed + 4)
    return bnrank.networks.from_layers([first, second, *[inner] * (depth - 4), out, last], biases)


def relative(a, b, centered=False):
    a, b = a.detach(), b.detach()
    return float((a - b).norm() / (b - (b.mean(0) if centered else 0)).norm())


@pytest.fixture(scope="module")
def planted():
    net, x = bottlenecked(), normal(600, 8, seed=9)
    return net, x, compress(net, x, tol=0.01, **QUICK)


def test_a_planted_bottleneck_is_compressed_to_its_rank(planted):
    net, _, found = planted
    assert found.certificate.rank == 2
    assert min(m.out_features for m in found.network if isinstance(m, nn.Linear)) == 2
    assert found.certificate.parameters < parameters(net) / 5
    assert parameters(found.network) <= 161  # of the network with one linear map of rank 2 across the bottleneck


def test_a_planted_bottleneck_is_collapsed_to_its_rank(planted):
    net, x, _ = planted
    parts = tuple(m for m in [p for layer in net.layers for p in (layer, nn.ReLU())][:-1])
    with torch.no_grad():
        outputs = net(x)
    judge = judge_of((x[:400], torch.clone, outputs[:400]), (x[400:], torch.clone, outputs[400:]), outputs)
    whole = counts(parts, x)
    best = stages.Collapsing(judge, stages.Cut(parts, (), cost(parts, x, whole), 0.0), "", whole).best(0.01)
    assert best.steps[-1].rank == 2
    assert best.change <= 0.01
    assert len([m for m in best.parts if isinstance(m, nn.Linear)]) < 7


def test_the_function_stays_on_samples_that_nobody_saw(planted):
    net, _, found = planted
    fresh = normal(3000, 8, seed=77)
    assert relative(found.network(fresh), net(fresh), centered=True) <= 0.01


def test_the_certificate_says_what_an_oracle_measures(planted):
    net, x, found = planted
    with torch.no_grad():
        before, after = net(x), found.network(x)
    assert found.certificate.on_x.relative == pytest.approx(relative(after, before), rel=1e-9)
    assert found.certificate.on_x.centered == pytest.approx(relative(after, before, centered=True), rel=1e-9)
    kept = x[torch.randperm(600, generator=torch.Generator().manual_seed(0))[:120]]
    with torch.no_grad():
        held = relative(found.network(kept), net(kept), centered=True)
    assert found.certificate.held_out.centered == pytest.approx(held, rel=1e-9)
    assert found.certificate.held_out.samples == 120
    assert found.certificate.parameters == sum(p.numel() for p in found.network.parameters())
    assert found.certificate.met
    assert found.certificate.share_beyond == pytest.approx(1 - 0.05 ** (1 / 120))


def test_held_out_samples_decide_nothing():
    net, x = bottlenecked(width=16, depth=5), normal(60, 8)
    a = compress(net, x, tol=0.01, held_out=normal(8, 8, seed=1), **QUICK)
    b = compress(net, x, tol=0.01, held_out=100 * normal(9, 8, seed=2), **QUICK)
    assert all(torch.equal(p, q) for p, q in zip(a.network.parameters(), b.network.parameters(), strict=True))
    assert (a.certificate.held_out.samples, b.certificate.held_out.samples) == (8, 9)


def test_the_bound_holds_near_the_samples(planted):
    net, x, found = planted
    bound = found.certificate.bound
    direction = normal(600, 8, seed=5)
    for distance in (0.0, 0.1, 3.0):
        moved = x + distance * direction / direction.norm(dim=1, keepdim=True)
        with torch.no_grad():
            change = (found.network(moved) - net(moved)).norm(dim=1).max()
        assert change <= bound.within(distance) * bound.size * (1 + 1e-9)
    for network, constant in ((net, bound.lipschitz_before), (found.network, bound.lipschitz_after)):
        with torch.no_grad():
            assert (network(moved) - network(x)).norm(dim=1).max() <= 3 * constant
    assert bound.per_distance == pytest.approx((bound.lipschitz_before + bound.lipschitz_after) / bound.size)


def test_the_result_is_plain_and_loads_through_state_dict(planted, tmp_path):
    _, x, found = planted
    assert type(found.network) is nn.Sequential
    assert {type(part) for part in found.network} <= {nn.Linear, nn.ReLU}
    again = rebuild(found.plan[""], found.network.state_dict()).double()
    again.load_state_dict(found.network.state_dict())
    assert torch.equal(again(x), found.network(x))
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"))
    assert torch.equal(loaded(x), found.network(x))


def test_multiplied_out_it_is_a_chain_that_the_theory_reads(planted):
    _, x, found = planted
    chain = bnrank.networks.as_mlp(found.network, multiply_out=True)
    assert torch.allclose(chain(x), found.network(x), atol=1e-9)
    assert bnrank.rank(chain, x, domain="everywhere").upper == 2


def test_the_same_seed_gives_the_same_bits_and_the_module_stays_as_it_was():
    net = bottlenecked(width=16, depth=5).train()
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    first = compress(net, normal(60, 8), tol=0.01, **QUICK)
    with torch.no_grad():
        second = compress(net, normal(60, 8), tol=0.01, **QUICK)
    assert all(torch.equal(a, b) for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), before.values(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in [*net.parameters(), *first.network.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(dtype):
    found = compress(bottlenecked(width=16, depth=5).to(dtype), normal(60, 8).float(), tol=0.01, **QUICK)
    assert {p.dtype for p in found.network.parameters()} == {dtype}
    assert found.certificate.met


def test_a_network_without_bottleneck_is_returned_as_it_is_with_the_reason():
    net = bnrank.MLP([8, 8, 8, 8], seed=3).double()
    found = compress(net, normal(300, 8), tol=1e-4, **QUICK)
    assert found.network is net
    assert not found.changed
    assert "no bottleneck" in found.reason
    assert found.certificate.on_x.relative == 0
    assert "returned as it is" in str(found)
    with pytest.raises(ValueError, match="nothing was compressed"):
        found.save("nothing.safetensors")


def test_a_linear_network_becomes_one_map_of_its_rank():
    product = normal(6, 2) @ normal(2, 10, seed=1)
    u, s, v = torch.linalg.svd(product, full_matrices=False)
    net = nn.Sequential(
        nn.Linear(10, 30, bias=False), nn.Linear(30, 30, bias=False), nn.Linear(30, 6, bias=False)
    ).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.linalg.qr(normal(30, 6, seed=2))[0] @ v)
        net[1].weight.copy_(torch.eye(30))
        net[2].weight.copy_(u * s @ torch.linalg.qr(normal(30, 6, seed=2))[0].T)
    found = compress(net, normal(100, 10), tol=1e-3, **QUICK)
    assert [tuple(p.weight.shape) for p in found.network] == [(2, 10), (6, 2)]
    fresh = normal(50, 10, seed=8)
    assert relative(found.network(fresh), net(fresh)) < 1e-6


def test_batch_normalization_without_a_scale_is_folded(tmp_path):
    first, _, last = bottlenecked_parts()[-3:]
    norm = nn.BatchNorm1d(first.out_features, affine=False)
    norm.running_mean, norm.running_var = normal(len(norm.running_mean)), normal(len(norm.running_var)).square() + 1
    net = nn.Sequential(first, norm, nn.ReLU(), last).to(first.weight.dtype).eval()
    (segment,), _ = segments(net, normal(9, first.in_features).to(first.weight))
    assert [type(part) for part in segment.parts] == [nn.Linear, nn.ReLU, nn.Linear]
    x = normal(9, first.in_features).to(first.weight)
    assert relative(run(segment.parts, x), net(x)) < 1e-6


class Larger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*bottlenecked_parts(), nn.BatchNorm1d(5))
        self.recurrent = nn.GRUCell(5, 5)
        self.twice = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        z = self.body(x)
        return self.scale * self.twice(self.twice(z)) + self.recurrent(z)


def bottlenecked_parts():
    net = bottlenecked()
    parts = []
    for i, layer in enumerate(net.layers):
        parts += [layer] + ([nn.ReLU(inplace=True)] if i < len(net.layers) - 1 else [])
    return parts


def test_stretches_of_a_larger_module_are_replaced_and_the_rest_listed(tmp_path):
    torch.manual_seed(0)
    net, x = Larger().double().eval(), normal(150, 8)
    found = compress(net, x, tol=0.01, **QUICK)
    assert list(found.plan) == ["body", "recurrent"]
    assert found.certificate.met
    assert parameters(found.network.body) < parameters(net.body) / 5
    assert [u.name for u in found.skipped] == [""]  # the others were tried
    assert found.certificate.rank is None
    fresh = normal(100, 8, seed=5)
    with torch.no_grad():
        assert relative(found.network(fresh), net(fresh), centered=True) < 0.02
        assert torch.equal(net.body[1](torch.tensor([-1.0])), torch.tensor([0.0]))
    loaded = bnrank.load(found.save(tmp_path / "part.safetensors"), Larger().double())
    assert torch.equal(loaded(fresh), found.network(fresh))


class TwoNames(nn.Module):
    """Registers every layer a second time, some inside another module, and runs each once, by either name."""

    def __init__(self, kind):
        super().__init__()
        layers = [nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)]
        self.kind, self.net = kind, nn.Sequential(*layers)
        if kind == "whole":
            self.again = nn.ModuleList([self.net])
        else:
            self.again, self.first = nn.ModuleList([layers[2]]), layers[0]

    def forward(self, x):
        if self.kind == "whole":
            return self.again[0](x)
        z = self.net[1](self.net[0](x) if self.kind == "layers" else self.first(x))
        return self.net[4](self.net[3](self.net[2](z) if self.kind == "layers" else self.again[0](z)))


@pytest.mark.parametrize("kind", ["whole", "layers", "layers, by the second name"])
def test_a_layer_with_several_names_is_replaced_under_all_of_them(kind, tmp_path):
    torch.manual_seed(0)
    net, x, kept = TwoNames(kind).double(), normal(300, 8), normal(80, 8, seed=5)
    with torch.no_grad():
        net.net[0].weight.copy_(normal(20, 2) @ normal(2, 8, seed=1))
        net.net[2].weight.copy_(normal(20, 2, seed=2) @ normal(2, 20, seed=3))
    found = compress(net, x, tol=0.02, held_out=kept, **QUICK)
    assert [name for name, _ in found.widths_before] == ["net.0", "net.2", "net.4"]
    assert found.skipped == ()
    small = found.network
    if kind == "whole":
        assert small.net is small.again[0]
        assert list(found.plan) == ["net"]
    else:
        assert small.net[0] is small.first
        assert small.net[2] is small.again[0]
        assert set(found.plan) <= {"net.0", "net.2", "net.4"}
    assert parameters(small) == found.certificate.parameters < parameters(net) / 2
    with torch.no_grad():
        change = relative(small(kept), net(kept), centered=True)
    assert found.certificate.held_out.centered == pytest.approx(change, rel=1e-6)
    loaded = bnrank.load(found.save(tmp_path / "named.safetensors"), TwoNames(kind).double())
    assert torch.equal(loaded(kept), small(kept))
    assert parameters(loaded) == parameters(small)


def test_a_trial_replaces_a_layer_under_all_of_its_names():
    net, x, other = TwoNames("layers, by the second name").double(), normal(5, 8), nn.Linear(20, 20).double()
    with swapped(net, {"net.2": (other,)}):
        assert net.net[2] is net.again[0] is other
        found = net(x)
    assert torch.equal(found, net.net[4](other(net.first(x).relu()).relu()))
    assert net.net[2] is net.again[0] is not other


class TwoAttentions(nn.Module):
    """Attention of low rank that is registered twice."""

    def __init__(self, runs):
        super().__init__()
        self.attention, self.last, self.runs = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 2), runs
        self.again = nn.ModuleList([self.attention])

    def forward(self, x):
        for attention in (self.attention, self.again[0])[-self.runs :]:
            x = attention(x, x, x, need_weights=False)[0]
        return self.last(x.mean(1))


@pytest.mark.parametrize("runs", [1, 2])
def test_attention_with_two_names_stays_one_module(runs, tmp_path):
    torch.manual_seed(0)
    net, x = TwoAttentions(runs).double().eval(), normal(200, 4, 8)
    with torch.no_grad():
        net.attention.in_proj_weight.copy_(normal(24, 1) @ normal(1, 8, seed=1))
    found = compress(net, x, tol=0.2, **QUICK)
    assert found.network.attention is found.network.again[0]
    assert (found.network.attention is net.attention, "attention" in found.plan) == (False, runs == 1)
    loaded = bnrank.load(found.save(tmp_path / "two.safetensors"), TwoAttentions(runs).double())
    assert loaded.attention is loaded.again[0]
    assert torch.equal(loaded(x), found.network(x))


def test_shared_parameters_stay():
    layer = nn.Linear(8, 8)
    net = nn.Sequential(layer, nn.ReLU(), layer).double()
    found = compress(net, normal(40, 8), tol=0.5, **QUICK)
    assert found.network is net
    assert "more than one place" in found.skipped[0].reason


def test_tuning_lowers_the_change_and_needs_no_more_parameters():
    task = bnrank.tasks.low_rank_map(n=150, d_in=8, d_out=8, latent=4, rank=2, width=20)
    run = bnrank.train(bnrank.MLP([8, 20, 20, 20, 20, 8]), task, ridge=3e-3, steps=300, seed=0, progress=False)
    plain = compress(run.network(0), task.x, tol=0.03, **QUICK)
    found = compress(run.network(0), task.x, tol=0.03, tune=60, **QUICK)
    assert any(step.kind == "tune" for step in found.steps)
    assert found.certificate.on_x.centered <= 0.03
    assert found.certificate.parameters <= plain.certificate.parameters
    fewer = found.certificate.parameters < plain.certificate.parameters
    assert fewer or found.certificate.on_x.centered < plain.certificate.on_x.centered


def test_one_output_and_a_constant_network():
    one = compress(bottlenecked(d_out=1), normal(100, 8), tol=0.01, **QUICK)
    assert np.isnan(one.certificate.on_x.decisions)
    assert one.certificate.met
    constant = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        constant[0].weight.zero_()
    found = compress(constant, normal(30, 3), tol=0.01, **QUICK)
    assert torch.allclose(found.network(normal(5, 3)), constant(normal(5, 3)))
    assert found.certificate.on_x.relative < 1e-12


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"x": normal(7, 8)}, ValueError, "x: got 7 sample"),
        ({"x": [[1.0]]}, TypeError, "x: got"),
        ({"x": torch.full((20, 8), torch.nan)}, ValueError, "x: got NaN"),
        ({"x": normal(20, 3)}, ValueError, "expected"),
        ({"tol": 0.0}, ValueError, "tol"),
        ({"tol": "1%"}, TypeError, "tol"),
        ({"held_out": 1.0}, ValueError, "held_out"),
        ({"held_out": normal(5, 3)}, ValueError, "expected"),
        ({"tune": -1}, ValueError, "tune"),
        ({"y": torch.zeros(19, dtype=torch.long)}, ValueError, r"y: got shape \(19,\)"),
        ({"y": torch.zeros(20)}, TypeError, "y: got Tensor .* dtype torch.float32"),
        ({"y": [0] * 20}, TypeError, "y: got"),
        ({"y": torch.full((20,), -1)}, ValueError, "y: got class indices from -1 to -1"),
        ({"y": torch.full((20,), 5)}, ValueError, "y: got class indices from 5 to 5"),
        ({"held_out": (normal(5, 8), torch.zeros(5).long())}, ValueError, "held_out: got a tuple"),
        ({"net": "net"}, TypeError, "net"),
        ({"timing": (16, 2)}, TypeError, "timing: got"),
    ],
)
def test_bad_input_is_refused_by_name(arguments, error, match):
    given = {"net": bottlenecked(width=16, depth=5), "x": normal(20, 8), **arguments}
    with pytest.raises(error, match=match):
        compress(**given)


def test_parameters_that_are_not_finite_are_refused():
    net = bottlenecked(width=16, depth=5)
    with torch.no_grad():
        net.weights[1][0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"layers\.1\.weight"):
        compress(net, normal(20, 8))


def test_damaged_files_are_refused(planted, tmp_path):
    *_, found = planted
    path = found.save(tmp_path / "small.safetensors")
    with pytest.raises(ValueError, match=r"ending in \.safetensors"):
        found.save(tmp_path / "small.pt")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged"):
        bnrank.load(path)
    with pytest.raises(ValueError, match="exists"):
        bnrank.load(tmp_path / "none.safetensors")


def test_the_ranks_on_the_certificate_are_those_of_the_networks(planted):
    net, x, found = planted
    certificate = found.certificate
    bracket = bnrank.rank(as_chain(found.network), x, domain="everywhere")
    assert (certificate.jacobian_rank, certificate.rank) == (bracket.lower, bracket.upper) == (2, 2)
    assert certificate.rank_before == min(net.widths)
    assert certificate.jacobian_rank_before == bnrank.Jacobian(net, x[:64]).rank(1e-6).rank
    assert "bottleneck rank after: at most 2, on all inputs, Jacobians of rank 2" in str(certificate)


def as_chain(network):
    return bnrank.networks.as_mlp(network, multiply_out=True)


def test_the_rank_counts_what_a_sample_passes_through_wherever_it_is_narrow():
    """Not the rank of the collapse: without one, and with a layer that is narrower than it."""
    narrow = bnrank.MLP([8, 6, 3, 6, 5], seed=1).double()
    found = compress(narrow, normal(200, 8), tol=1e-6, **QUICK)
    assert (found.certificate.rank_before, found.certificate.rank) == (3, 3)
    assert found.certificate.jacobian_rank == bnrank.Jacobian(narrow, normal(200, 8)[:64]).rank(1e-6).rank


def test_classes_give_accuracies_and_decide_nothing(planted):
    net, x, _ = planted
    y = torch.randint(0, 5, (600,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        y[:300] = net(x).argmax(1)[:300]
    found, other = compress(net, x, tol=0.5, y=y, **QUICK), compress(net, x, tol=0.5, **QUICK)
    assert all(torch.equal(p, q) for p, q in zip(found.network.parameters(), other.network.parameters(), strict=True))
    kept = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:120]
    with torch.no_grad():
        right = [(m(x).argmax(1) == y).double() for m in (net, found.network)]
    certificate = found.certificate
    assert certificate.accuracy.samples == 600
    assert (certificate.accuracy.before, certificate.accuracy.after) == tuple(float(r.mean()) for r in right)
    assert certificate.held_out_accuracy.before == pytest.approx(float(right[0][kept].mean()))
    assert certificate.held_out_accuracy.after == pytest.approx(float(right[1][kept].mean()))
    assert certificate.accuracy.before != certificate.accuracy.after
    assert "accuracy held out" in str(certificate)
    fresh = compress(
        net, x, tol=0.5, y=y, held_out=(x[:8], net(x[:8]).argmax(1)), **QUICK
    ).certificate.held_out_accuracy
    assert (fresh.before, fresh.samples) == (1.0, 8)
    assert other.certificate.accuracy is None
