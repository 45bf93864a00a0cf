"""Kinds of modules: convolutions, normalization, layers called one by one, and networks that were trained."""

import copy

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery.compression import Timing, stages
from bnrank.discovery.compression.parts import cost, counts, segments
from helpers import normal

from .functions import judge_of

QUICK = {"timing": Timing(repeats=2, batch_size=16)}


def change(after, before, x):
    with torch.no_grad():
        a, b = after(x).flatten(1), before(x).flatten(1)
    return float((a - b).norm() / (b - b.mean(0)).norm())


def flat(value):
    return value.flatten(1)


def low_pass(n, taps):
    """Kernel of the circular convolution that keeps frequencies 0 and +-1 of n pixels."""
    wave = torch.zeros(n, dtype=torch.complex128)
    wave[0], wave[1], wave[-1] = 1, 1, 1
    kernel = torch.fft.ifft(wave).real
    return torch.stack([kernel[(t - (taps - 1) // 2) % n] for t in range(taps)])


def circular(n=9, channels=6, depth=6):
    """Circular convolutions; those in the middle mix 2 directions of channels at 3 frequencies, far from any kink."""
    net = bnrank.networks.CircularConvolutional((2, n), [channels] * (depth - 1) + [3], kernel=n, seed=1).double()
    mix = torch.linalg.qr(normal(channels, 2, seed=2))[0]
    with torch.no_grad():
        for i in range(2, depth):
            net.get_submodule(f"conv{i}").weight.copy_((mix @ mix.T)[:, :, None] * low_pass(n, n))
            net.get_submodule(f"conv{i}").bias.fill_(30.0)
        net.get_submodule(f"conv{depth}").weight.mul_(0.1)
    return net


def test_convolutions_on_a_circle_collapse_to_their_frequencies(tmp_path):
    net, x = circular(), normal(60, 2, 9)
    parts = tuple(segments(net, x)[0][0].parts)
    with torch.no_grad():
        outputs = flat(net(x))
    judge = judge_of((x[:40], flat, outputs[:40]), (x[40:], flat, outputs[40:]), outputs)
    whole = counts(parts, x)
    best = stages.Collapsing(judge, stages.Cut(parts, (), cost(parts, x, whole), 0.0), "", whole).best(0.01)
    step = best.steps[-1]
    assert "frequency by frequency" in step.what
    assert step.rank == 6  # 2 channels times 1 + 2 dimensions
    found = compress(net, x, tol=0.01, **QUICK)
    assert found.certificate.parameters <= sum(p.numel() for part in best.parts for p in part.parameters())
    assert found.certificate.met
    assert found.certificate.multiply_adds < found.certificate.multiply_adds_before / 3
    assert change(found.network, net, normal(500, 2, 9, seed=5)) < 0.01
    assert found.certificate.bound is not None
    loaded = bnrank.load(found.save(tmp_path / "small.safetensors"))
    assert torch.equal(loaded(x), found.network(x))


def test_batch_normalization_is_folded_and_channels_go():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    ).double()
    x = normal(200, 1, 8, 8)
    with torch.no_grad():
        net[0].weight[4:] = 0.5 * net[0].weight[:4]
        net(x)  # running statistics
        net[1].running_var[4:] = net[1].running_var[:4] / 4
        net[1].running_mean[4:] = net[1].running_mean[:4] / 2
    net.eval()
    found = compress(net, x, tol=0.01, **QUICK)
    assert [step.kind for step in found.steps][:2] == ["fold", "prune"]
    assert "4 parallel" in found.steps[1].what
    assert found.network[0].out_channels == 4
    assert not any(isinstance(part, nn.BatchNorm2d | nn.Dropout) for part in found.network)
    assert found.certificate.met
    assert change(found.network, net, normal(300, 1, 8, 8, seed=3)) < 0.02


def test_a_convolution_of_low_rank_becomes_two():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 6, 2)).double()
    with torch.no_grad():
        net[0].weight.copy_((normal(24, 3) @ normal(3, 36, seed=1)).reshape(24, 12, 3))
    state = torch.get_rng_state()
    found = compress(net, normal(400, 12, 6), tol=1e-3, **QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    convolutions = [part for part in found.network if isinstance(part, nn.Conv1d)]
    assert [(c.out_channels, c.kernel_size) for c in convolutions] == [(3, (3,)), (24, (1,))]
    assert change(found.network, net, normal(400, 12, 6, seed=2)) < 1e-3


class OneByOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 60), nn.Linear(60, 30)

    def forward(self, x):
        return torch.sin(self.second(torch.tanh(self.first(x))))


def test_layers_that_code_calls_one_by_one_are_factored():
    torch.manual_seed(0)
    net = OneByOne().double()
    with torch.no_grad():
        net.first.weight.copy_(normal(60, 2) @ normal(2, 20, seed=1) / 10)
        net.second.weight.mul_(0.3)
    found = compress(net, normal(300, 20), tol=0.01, **QUICK)
    assert isinstance(found.network, OneByOne)
    assert found.network.first[0].out_features == 2
    assert found.certificate.met
    assert change(found.network, net, normal(500, 20, seed=4)) < 0.01


class ReadsAWeight(OneByOne):
    def forward(self, x):
        return super().forward(x) + self.second.weight[0].mean()


def test_a_layer_whose_weight_is_read_elsewhere_stays():
    torch.manual_seed(0)
    net = ReadsAWeight().double()
    with torch.no_grad():
        net.first.weight.copy_(normal(60, 2) @ normal(2, 20, seed=1) / 10)
    found = compress(net, normal(100, 20), tol=0.01, **QUICK)
    assert list(found.plan) == ["first"]
    assert [(u.name, "cannot be run" in u.reason) for u in found.skipped] == [("second", True)]


def test_a_part_that_cannot_be_read_stays_within_its_stretch():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 20), nn.LayerNorm(20), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)).double()
    with torch.no_grad():
        net[2].weight[8:], net[2].bias[8:] = 0.0, 1.0
    found = compress(net, normal(200, 6), tol=0.01, **QUICK)
    assert [(u.name, u.type) for u in found.skipped] == [("1", "LayerNorm")]
    assert found.network[2].out_features <= 8
    assert found.certificate.bound is None
    assert found.certificate.met


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.full((20,), 0.1))

    def forward(self, x):
        return x.relu_() + self.shift


def test_parts_that_work_in_place_do_no_harm():
    torch.manual_seed(0)
    net = nn.Sequential(
        InPlace(), nn.Linear(20, 20), InPlace(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)
    ).double()
    with torch.no_grad():
        net[3].weight[8:], net[3].bias[8:] = 0.0, 1.0
    x = normal(200, 20)
    before = x.clone()
    found = compress(net, x, tol=0.01, **QUICK)
    assert torch.equal(x, before)
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before
    with torch.no_grad():
        wanted, fresh = net(normal(50, 20, seed=2)), found.network(normal(50, 20, seed=2))
    assert float((fresh - wanted).norm() / (wanted - wanted.mean(0)).norm()) < 0.02


def test_sequences_keep_their_shape():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    with torch.no_grad():
        net[0].weight[10:], net[0].bias[10:] = net[0].weight[:10], net[0].bias[:10]
    x = normal(50, 5, 6)
    found = compress(net, x, tol=0.01, **QUICK)
    assert found.certificate.parameters < found.certificate.parameters_before
    assert found.network(x).shape == (50, 5, 4)
    assert change(found.network, net, normal(80, 5, 6, seed=3)) < 0.01


def test_embedded_integers_are_taken():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 30), nn.ReLU(), nn.Linear(30, 2))
    with torch.no_grad():
        net[2].weight[5:] = 0.0
    x = torch.randint(0, 7, (120, 3), generator=torch.Generator().manual_seed(0))
    found = compress(net, x, tol=0.01, **QUICK)
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before
    assert [u.type for u in found.skipped] == ["Embedding"]


@pytest.fixture(scope="module")
def trained():
    task = bnrank.tasks.low_rank_map(rank=2, width=30, seed=0)
    run = bnrank.train(bnrank.MLP([20] + [50] * 8 + [20]), task, ridge=2e-3, steps=500, seed=0, progress=False)
    return run.network(0), task


def test_a_trained_network_is_five_times_smaller_within_a_percent_on_new_samples(trained):
    net, task = trained
    found = compress(net, task.x, tol=0.01, **QUICK)
    certificate = found.certificate
    assert certificate.met
    assert certificate.parameters_before >= 5 * certificate.parameters
    assert certificate.multiply_adds_before >= 5 * certificate.multiply_adds
    assert change(found.network, net, task.x_test) <= 0.013


def test_the_bottleneck_of_a_trained_network_is_its_tasks_rank(trained):
    net, task = trained
    layers = copy.deepcopy(net).double().layers
    parts = tuple(part for layer in layers for part in (layer, nn.ReLU()))[:-1]
    x = task.x.double()
    with torch.no_grad():
        outputs = nn.Sequential(*parts)(x)
    half = len(x) // 2
    judge = judge_of((x[:half], flat, outputs[:half]), (x[half:], flat, outputs[half:]), outputs)
    whole = counts(parts, x)
    best = stages.Collapsing(judge, stages.Cut(parts, (), cost(parts, x, whole), 0.0), "", whole).best(0.06)
    assert best.steps[-1].rank == 2
    assert len(best.parts) < 17 - 4
    found = compress(net, x, tol=0.1, **QUICK)
    assert found.certificate.parameters <= sum(p.numel() for part in best.parts for p in part.parameters())


def test_a_classifier_of_digits_decides_as_before():
    task = bnrank.tasks.digits()
    run = bnrank.train(bnrank.MLP([64, 40, 40, 40, 40, 10]), task, ridge=2e-3, steps=250, seed=0, progress=False)
    net = run.network(0)
    found = compress(net, task.x, tol=0.02, **QUICK)
    with torch.no_grad():
        before, after = (m(task.x_test).argmax(1).eq(task.y_test).double().mean() for m in (net, found.network))
    assert after >= before - 0.007  # two of 297
    assert found.certificate.held_out.decisions <= 0.01
    assert found.certificate.parameters < found.certificate.parameters_before / 1.8


class Bent(OneByOne):
    def forward(self, x):
        return torch.cos(self.second(torch.tanh(self.first(x))))


def test_a_partly_compressed_network_opens_in_its_own_module_only(tmp_path):
    torch.manual_seed(0)
    net = OneByOne().double()
    with torch.no_grad():
        net.first.weight.copy_(normal(60, 2) @ normal(2, 20, seed=1) / 10)
        net.second.weight.mul_(0.3)
    found = compress(net, normal(300, 20), tol=0.01, **QUICK)
    path = bnrank.save(found, tmp_path / "part.safetensors")
    x = normal(5, 20)
    assert torch.equal(bnrank.load(path, OneByOne())(x), found.network(x))  # whatever its parameters are
    with pytest.raises(ValueError, match=r"net: got another network \(net: stored OneByOne, now Bent\)"):
        bnrank.load(path, Bent())
    net.source = iter([1])
    found = compress(net, normal(300, 20), tol=0.01, **QUICK)
    with pytest.raises(
        TypeError, match=r'net: got net.source = .*tag="\.\.\.", as in small.save\(path, tag="v1"\), and'
    ):
        bnrank.save(found, path)
    assert bnrank.save(found, path, tag="v1") == found.save(path, tag="v1") == path
    assert torch.equal(bnrank.load(path, net)(x), found.network(x))


class Shy(tuple):
    """A tuple whose length is no number."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError


def test_a_network_with_values_whose_methods_raise_is_compressed_and_saved(tmp_path):
    def made(*sizes):
        torch.manual_seed(0)
        net = OneByOne().double()
        net.sizes = Shy(sizes)
        return net

    found = compress(made(1, 2), normal(300, 20), tol=0.3, **QUICK)
    path, x = found.save(tmp_path / "shy.safetensors"), normal(5, 20)
    assert torch.equal(bnrank.load(path, made(1, 2))(x), found.network(x))
    with pytest.raises(ValueError, match=r"another network \(net.sizes\[1\]: stored 2, now 3\)"):
        bnrank.load(path, made(1, 3))


class Counting(OneByOne):
    """Counts its runs."""

    runs = 0

    def forward(self, x):
        self.runs += 1
        return super().forward(x)


def test_a_network_that_changes_an_attribute_when_it_runs_opens_in_a_new_one(tmp_path):
    torch.manual_seed(0)
    found = compress(Counting().double(), normal(300, 20), tol=0.3, **QUICK)
    path, x = found.save(tmp_path / "counting.safetensors"), normal(5, 20)
    assert torch.equal(bnrank.load(path, Counting().double())(x), found.network(x))


class Noisy(OneByOne):
    def forward(self, x):
        return super().forward(x + 0.01 * torch.randn_like(x))


def test_the_random_state_stays_where_a_network_is_random_in_eval_mode(monkeypatch):
    torch.manual_seed(0)
    for name in ("set_rng_state", "manual_seed"):  # not even for a while: other threads draw from it
        monkeypatch.setattr(torch.random, name, lambda *_: pytest.fail("the generator of the process was set"))
    net, x = Noisy().double(), normal(100, 20)
    before = torch.get_rng_state()
    found = compress(net, x, tol=0.5, **QUICK)
    assert "random in eval mode" in found.reason
    assert torch.equal(torch.get_rng_state(), before)
