"""Layers factored together: planted ranks, attention, and never more parameters than activation-aware SVD."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery.compression import Timing, budget, judging, parameters, widths
from bnrank.discovery.compression.fits import fit, gram_fit
from bnrank.discovery.compression.lowrank import Factoring, places, swapped
from bnrank.discovery.compression.wholes import split_up
from helpers import normal
from oracles import activation_aware_svd

from .functions import judge_of

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def change(after, before, x):
    with torch.no_grad():
        a, b = after(x).flatten(1), before(x).flatten(1)
    return float((a - b).norm() / (b - b.mean(0)).norm())


def low(weight, rank, seed=0):
    u, s, v = torch.linalg.svd(weight.detach(), full_matrices=False)
    return u[:, :rank] * s[:rank] @ v[:rank]


class Encoder(nn.Module):
    """A transformer whose matrices all have rank 4."""

    def __init__(self, width=32, heads=4, layers=2, rank=4):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, layers)
            self.head = nn.Linear(width, 3)
            with torch.no_grad():
                for p in self.encoder.parameters():
                    if p.ndim == 2:
                        p.copy_(normal(*p.shape, seed=p.numel()) / p.shape[1] ** 0.5)
                        blocks = p.chunk(3) if p.shape[0] == 3 * width else [p]
                        p.copy_(torch.cat([low(block, rank) for block in blocks]))

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


@pytest.fixture(scope="module")
def encoder():
    net, x = Encoder().eval(), normal(160, 6, 32)
    return net, x, compress(net, x, tol=0.001, **QUICK)


def test_an_encoder_whose_matrices_have_rank_four_is_compressed_to_it(encoder):
    net, _, found = encoder
    ranks = dict(part.split(" to rank ") for part in found.steps[-1].what.split(", "))
    inside = {name: int(rank) for name, rank in ranks.items() if name.startswith("encoder")}
    assert len(inside) == 2 * 6  # q, k, v, out and both linear layers
    assert set(inside.values()) <= {3, 4}
    assert max(inside.values()) == 4
    assert found.certificate.parameters < 0.3 * found.certificate.parameters_before
    assert found.certificate.met
    assert change(found.network, net, normal(300, 6, 32, seed=3).float()) < 0.001


def test_a_compressed_encoder_is_saved_and_runs_masked_and_trained(encoder, tmp_path):
    net, x, found = encoder
    x = x.float()
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Encoder())
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))
        padding = torch.zeros(160, 6, dtype=torch.bool)
        padding[:, 4:] = True
        expected = net.encoder(x, src_key_padding_mask=padding)[:, :4]
        got = found.network.encoder(x, src_key_padding_mask=padding)[:, :4]
    assert (got - expected).norm() < 0.02 * expected.norm()
    loaded.train()(x).sum().backward()
    assert all(p.grad is not None for p in loaded.parameters())


def test_multiply_adds_of_attention_are_those_of_its_projections(encoder):
    _, _, found = encoder
    per_token = 4 * 32 * 32 + 2 * 32 * 64
    assert found.certificate.multiply_adds_before == 2 * 6 * per_token + 3 * 32
    wide = nn.Linear
    by_hand = sum(6 * m.weight.numel() for m in found.network.encoder.modules() if isinstance(m, wide))
    by_hand += sum(m.weight.numel() for m in found.network.head.modules() if isinstance(m, wide))
    assert found.certificate.multiply_adds == by_hand


class Separate(nn.Module):
    """Attention with plain Linear projections, as in Hugging Face's models, and integers as input."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.words = nn.Embedding(20, 24)
            self.query, self.key, self.value, self.output = (nn.Linear(24, 24) for _ in range(4))
            self.head = nn.Linear(24, 3)
            with torch.no_grad():
                for layer in (self.query, self.key, self.value, self.output):
                    layer.weight.copy_(low(layer.weight, 4))

    def forward(self, ids):
        z = self.words(ids)
        q, k, v = (part(z).unflatten(-1, (3, 8)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((z + self.output(mixed)).mean(1))


def test_separate_projections_of_low_rank_are_found():
    net = Separate()
    ids = torch.randint(0, 20, (200, 5), generator=torch.Generator().manual_seed(0))
    found = compress(net, ids, tol=1e-3, **QUICK)
    for layer in (found.network.query, found.network.key, found.network.value, found.network.output):
        assert layer[0].out_features <= 4
    assert [part.type for part in found.skipped] == ["Embedding"]


@pytest.mark.parametrize("metric", [False, True])
def test_gram_matrices_give_the_fit_of_the_singular_values(metric):
    z1 = normal(90, 7)
    z2 = z1 @ normal(7, 5, seed=1) + 0.01 * normal(90, 5, seed=2) + 3
    root = torch.linalg.qr(normal(5, 5, seed=3))[0]
    m = root * torch.tensor([1.0, 0.5, 0.2, 0.1, 0.0]).double() @ root.T if metric else None
    slow, fast = fit(z1, z2, m, 1e-13), gram_fit(z1, z2, m)
    r = min(len(slow.reading), len(fast.reading))
    assert r >= 4
    assert torch.allclose(slow.tails[:r], fast.tails[:r], rtol=1e-6, atol=1e-7)
    for k in range(r):
        (a, b, c), (d, e, f) = slow.at(k), fast.at(k)
        expected, got = c + z1 @ a.T @ b.T, f + z1 @ d.T @ e.T
        assert torch.allclose(got if m is None else got @ m, expected if m is None else expected @ m, atol=1e-6)


def net_of(kind, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "chain":
            parts = [nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)]
            net, x = nn.Sequential(*parts), normal(160, 12, seed=seed)
        elif kind == "convolutions":
            parts = [nn.Conv1d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 16, 3), nn.ReLU(), nn.Flatten()]
            net, x = nn.Sequential(*parts, nn.Linear(64, 4)), normal(160, 3, 6, seed=seed)
        else:
            net, x = Encoder(16, 2, 1, rank=12), normal(160, 4, 16, seed=seed)
        with torch.no_grad():
            for p in net.parameters():
                if p.ndim > 1:  # singular values that decrease
                    u, s, v = torch.linalg.svd(p.flatten(1), full_matrices=False)
                    decay = 0.75 ** torch.arange(len(s))
                    p.copy_((u * s * decay @ v).reshape(p.shape))
    return net.double().eval(), x


@pytest.mark.parametrize("kind", ["chain", "convolutions", "encoder"])
@pytest.mark.parametrize(("seed", "tol"), [(0, 0.05)])
def test_never_more_parameters_than_activation_aware_svd_at_equal_change(kind, seed, tol):
    """At the change that the result reaches on the samples of the search, the oracle keeps at least as many."""
    net, x = net_of(kind, seed)
    found = compress(net, x, tol=tol, held_out=normal(20, *x.shape[1:], seed=99), **QUICK)
    reached = max(change(found.network, net, x), 1e-9)
    assert reached <= tol
    split_up(net, x)
    fewest, _ = activation_aware_svd(net, x, reached)
    assert parameters(found.network) <= fewest


def test_plain_factoring_is_activation_aware_svd_by_the_book():
    net, x = net_of("convolutions", 3)
    flat = lambda value: value.flatten(1)  # noqa: E731
    with torch.no_grad():
        outputs = net(x)
    judge = judge_of((x, flat, outputs), (x[:9], flat, outputs[:9]), outputs)
    names, skipped = places(net, x)
    assert names == ["0", "2", "5"]
    assert not skipped
    factoring = Factoring(judge, net, names, (parameters(net), 1, 3))
    for cut in (0.05, 0.2, 0.5):
        choice, _ = factoring.at(cut, "plain")
        _, oracle = activation_aware_svd(net, x, None, cut)
        for name, expected in oracle.items():
            given = normal(5, *({"0": (3, 6), "2": (12, 6), "5": (64,)}[name]), seed=4)
            if name in choice:
                assert torch.allclose(nn.Sequential(*choice[name])(given), expected(given), atol=1e-6)
        assert set(choice) == set(oracle)


def test_when_time_is_over_what_was_found_is_returned_and_said(monkeypatch):
    net, x = net_of("chain", 0)
    clock = iter(range(10**6))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))  # a second per question
    x = x[:60]
    few, many = (compress(net, x, tol=0.1, max_minutes=minutes, **QUICK) for minutes in (0.1, 1e6))
    assert "max_minutes=0.1 was over" in few.reason
    assert "max_minutes" not in many.reason
    assert parameters(many.network) < parameters(few.network) <= parameters(net)
    assert few.certificate.met
    with pytest.raises(ValueError, match="max_minutes"):
        compress(net, x, max_minutes=0)


class Functional(nn.Module):
    """Convolutions with activations, normalization and pooling in code; seven channels of twelve are not multiples."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.norm = nn.Conv1d(1, 12, 5), nn.BatchNorm1d(12)
            self.second, self.head = nn.Conv1d(12, 8, 3), nn.Linear(48, 3)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)
            with torch.no_grad():
                self.first.weight[7:], self.first.bias[7:] = 2 * self.first.weight[:5], 2 * self.first.bias[:5]

    def forward(self, x):
        z = nn.functional.max_pool1d(self.norm(torch.relu(self.first(x))), 2)
        return self.head(torch.relu(self.second(z)).flatten(1))


def test_channels_go_where_code_calls_the_layers_and_normalization_goes_with_them(tmp_path):
    net, x = Functional().double().eval(), normal(160, 1, 20)
    found = compress(net, x, tol=1e-4, **QUICK)
    assert found.steps[0].kind == "narrow"
    assert "first 12 to 7" in found.steps[0].what
    assert found.network.norm[0].num_features == 7
    assert change(found.network, net, normal(100, 1, 20, seed=5)) < 1e-4
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"), Functional().double())
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))


def test_pairs_are_those_of_which_nothing_else_reads_the_units():
    net, x = Encoder(16, 2, 1).double().eval(), normal(8, 4, 16)
    split_up(net, x)
    names, _ = places(net, x)
    found = widths.pairs(net, names, x)
    ends = [(pair.layer.rsplit(".", 1)[-1], pair.reader.rsplit(".", 1)[-1]) for pair in found]
    assert ends == [("linear1", "linear2")]  # values are read head by head, and outputs also by the sum around

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            z = torch.relu(self.a(x))
            return self.c(torch.relu(self.b(z))) + z[:, :2]

    net, x = Twice().double(), normal(8, 6)
    assert [pair.layer for pair in widths.pairs(net, ["a", "b", "c"], x)] == ["b"]


class Block(nn.Module):
    """A residual block of rank 3."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.a, self.b = nn.Linear(12, 24), nn.Linear(24, 12)
            with torch.no_grad():
                self.a.weight.copy_(torch.randn(24, 3) @ torch.randn(3, 12) / 12)

    def forward(self, x):
        return x + self.b(self.a(x).tanh())


@pytest.mark.parametrize("head", [[], [nn.Linear(12, 3)]])
def test_layers_inside_the_blocks_of_a_sequential_are_compressed_and_not_called_skipped(head, tmp_path):
    net, x = nn.Sequential(Block(0), Block(1), *head).double(), normal(120, 12)
    found = compress(net, x, tol=0.02, **QUICK)
    assert found.certificate.parameters < 0.75 * found.certificate.parameters_before
    assert change(found.network, net, normal(100, 12, seed=5)) < 0.02
    assert found.skipped == ()
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors", tag="blocks"), net)
    with torch.no_grad():
        assert torch.equal(loaded(x), found.network(x))


def test_a_network_that_rounding_takes_beyond_the_tolerance_is_returned_as_it_is():
    net, x = Block(0).bfloat16().double(), normal(120, 12).bfloat16().double()
    net.a.weight.data *= 5
    exact = compress(net, x, tol=1e-3, **QUICK)
    assert exact.changed
    assert exact.certificate.met
    rounded = compress(net.bfloat16(), x, tol=1e-3, **QUICK)
    assert rounded.network is net
    assert not rounded.changed
    assert not rounded.plan
    assert rounded.certificate.met
    assert "in torch.bfloat16 the reduced network changes the output by" in rounded.reason


@pytest.mark.parametrize("blocks", [False, True])
def test_the_time_before_the_search_counts_and_what_was_not_tried_is_not_judged(blocks, monkeypatch):
    net, x = (nn.Sequential(Block(0), Block(1)).double(), normal(60, 12)) if blocks else net_of("chain", 0)
    clock = [0.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    measured = judging.split

    def slow(*arguments):
        clock[0] += 61
        return measured(*arguments)

    monkeypatch.setattr(judging, "split", slow)
    found = compress(net, x, tol=0.1, max_minutes=1, **QUICK)
    assert found.network is net
    assert found.reason == "max_minutes=1 was over before everything was tried"


class Tokens(nn.Module):
    """A layer of rank 2 for every token, and a wide one of full rank, with fewer samples than units."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed, self.each = nn.Embedding(60, 12), nn.Linear(12, 12)
            self.wide, self.head = nn.Linear(48, 160), nn.Linear(160, 3)
            with torch.no_grad():
                self.each.weight.copy_(torch.randn(12, 2) @ torch.randn(2, 12) / 4)

    def forward(self, x):
        return self.head(self.wide(self.each(self.embed(x)).sin().flatten(1)).relu())


def test_a_layer_with_fewer_samples_than_units_does_not_keep_others_from_being_factored():
    net, x = Tokens().double(), torch.randint(0, 60, (60, 4), generator=torch.Generator().manual_seed(0))
    found = compress(net, x, tol=0.02, **QUICK)
    assert [step.what for step in found.steps] == ["each to rank 2"]
    assert found.certificate.met


def test_a_change_is_measured_on_the_choice_that_is_given():
    """Also after another choice, whose output is still known."""
    net, x = net_of("convolutions", 3)
    flat = lambda value: value.flatten(1)  # noqa: E731
    with torch.no_grad():
        outputs = net(x)
    judge = judge_of((x, flat, outputs), (x[:9], flat, outputs[:9]), outputs)
    factoring = Factoring(judge, net, places(net, x)[0], (1, 1, 1))
    plain, _ = factoring.at(0.05, "plain")
    ours, _ = factoring.at(3.0)
    for choice in (ours, plain):
        with swapped(net, choice):
            expected = judge((net,))
        assert factoring.change(choice) == pytest.approx(expected, rel=1e-9)
