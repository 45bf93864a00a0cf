import itertools
import math

import pytest
import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Certificate, Latency, Timing, timing
from bnrank.discovery.compression.certificate import OutputChange, change, lipschitz
from bnrank.discovery.compression.parts import multiply_adds, parameters
from bnrank.discovery.compression.stages import most
from bnrank.discovery.compression.timing import flushing, is_subnormal, latency, subnormals, without_subnormals


def test_multiply_adds_are_those_of_the_dense_matrices():
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    by_hand = 6 * 3 * (2 * 3) + 18 * 4 + 4
    assert multiply_adds(net, torch.ones(5, 2, 8)) == by_hand
    assert parameters(net) == 2 * 3 * 3 + 3 + 18 * 4 + 4 + 4
    grouped = nn.Conv2d(4, 4, 3, groups=4)
    assert multiply_adds(grouped, torch.ones(1, 4, 5, 5)) == 9 * 4 * 9
    twice = nn.Linear(3, 3)
    assert multiply_adds(nn.Sequential(twice, twice), torch.ones(1, 3)) == 18
    assert parameters(nn.Sequential(twice, twice)) == 12
    tokens = nn.Sequential(nn.Flatten(0, 1), nn.Linear(8, 4), nn.Unflatten(0, (1, 5)), nn.Flatten(), nn.Linear(20, 8))
    assert multiply_adds(tokens, torch.ones(3, 5, 8)) == 5 * 8 * 4 + 20 * 8


class Counting(nn.Linear):
    """A layer that counts its passes, in an attribute and in a buffer."""

    def __init__(self):
        super().__init__(3, 3)
        self.passes = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        self.seen += 1
        return super().forward(x)


def test_counting_leaves_no_trace():
    net = nn.Sequential(nn.Dropout(0.5), Counting()).train()
    seen = net[1].seen
    assert multiply_adds(net, torch.ones(1, 3)) == 9
    assert net.training
    assert net[0].training
    assert not net[1]._forward_hooks
    assert net[1].passes == 0
    assert net[1].seen is seen
    assert seen == 0


def test_latency_is_measured_and_said():
    slow = nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500)).double()
    fast = nn.Linear(1500, 10).double()
    found = latency([slow, fast], torch.ones(3, 1500), batch_size=32, repeats=5)
    assert found[0].median > 3 * found[1].median > 0
    assert all(one.low <= one.median <= one.high for one in found)
    assert (found[0].batch_size, found[0].repeats, found[0].dtype, found[0].device) == (32, 5, "float64", "cpu")
    with pytest.raises(ValueError, match="repeats: got 0"):
        Timing(repeats=0)
    with pytest.raises(TypeError, match="batch_size: got '8'"):
        Timing(batch_size="8")
    with pytest.raises(ValueError, match="repeats"):
        latency([fast], torch.ones(3, 1500), repeats=0)


def test_change_by_hand():
    before = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 1.0]])
    after = before + torch.tensor([[0.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    found = change(before, after)
    assert found.relative == pytest.approx(2 / math.sqrt(15))
    assert found.centered == pytest.approx(2 / math.sqrt(15 - 3 * (1 + 16 / 9)))
    assert found.worst == pytest.approx(2 / math.sqrt(5))
    assert found.decisions == pytest.approx(1 / 3)
    assert change(torch.ones(4, 2), torch.ones(4, 2)).centered == 0
    assert change(torch.ones(4, 2), 2 * torch.ones(4, 2)).centered == math.inf


PARTS = [
    (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)), (6,)),
    (nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.LeakyReLU(-1.5), nn.AvgPool1d(2), nn.Flatten()), (2, 8)),
    (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1, padding_mode="circular"), nn.MaxPool2d(2)), (1, 8, 8)),
    (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Tanh()), (1, 5, 5)),
]


@pytest.mark.parametrize(("net", "shape"), PARTS)
def test_no_jacobian_has_a_larger_norm_than_the_lipschitz_constant(net, shape):
    net = net.double()
    x = torch.randn(30, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    constant = lipschitz(tuple(net), x)
    norms = [
        torch.linalg.matrix_norm(
            torch.func.jacrev(lambda v: net(v.reshape(1, *shape)).flatten())(one.flatten()), 2
        ).item()
        for one in x
    ]
    assert max(norms) <= constant * (1 + 1e-9)
    assert constant < 20 * max(norms)


def test_windows_cut_off_at_the_edge_and_hooks_have_no_constant():
    """A mean over what is left of a window is larger than over all of it: here the mean over one entry is itself."""
    cut = nn.AvgPool1d(2, ceil_mode=True)
    assert cut(torch.tensor([[[0.0, 0.0, 1.0]]])).norm() == 1
    assert lipschitz([cut], torch.ones(1, 1, 3)) is None
    assert lipschitz([nn.AvgPool2d(2, divisor_override=1)], torch.ones(1, 1, 4, 4)) is None
    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda _, given, out: 10 * out)
    assert lipschitz([hooked], torch.ones(1, 2)) is None


def test_linear_layers_in_a_row_are_multiplied_before_their_norm_is_taken():
    a, b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        a.weight.copy_(torch.diag(torch.tensor([5.0, 0.1])))
        b.weight.copy_(torch.diag(torch.tensor([0.1, 5.0])))
    assert lipschitz([a, b], torch.ones(1, 2)) == pytest.approx(0.5)


def test_zero_padding_is_not_taken_for_wrapping_around():
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[-1.0, 1.0, 0.0]]]))
    x = torch.ones(1, 1, 1)  # around a circle of one place the taps would cancel
    assert layer(x).item() == 1
    assert lipschitz([layer], x) >= 1


@pytest.mark.parametrize(
    "part",
    [nn.Softmax(1), nn.MaxPool1d(3, 1), nn.Conv1d(2, 2, 3, padding=3, padding_mode="circular"),
     nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect")],
)  # fmt: skip
def test_where_no_constant_is_known_there_is_none(part):
    assert lipschitz([part], torch.ones(1, 2, 8)) is None


def timed(least, low, high):
    return Latency((low + high) / 2, low, high, 8, 5, 1, "cpu", "float32", least)


def certified(before, after):
    same = change(torch.eye(3), torch.eye(3))
    return Certificate(0.1, (OutputChange("", same, same),), None, None, 6, 5, 4, 3, before, after)


@pytest.mark.parametrize(
    ("before", "after", "ratio", "certain"),
    [
        ((4.0, 5.0, 6.0), (1.0, 2.0, 3.0), 4.0, True),
        ((4.0, 5.0, 6.0), (4.0, 5.5, 80.0), 1.0, False),  # a machine that was busy now and then
        ((4.0, 5.0, 6.0), (3.9, 5.5, 80.0), 4 / 3.9, False),
        ((4.0, 5.0, 6.0), (1.0, 2.0, 5.5), 4.0, False),
        ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), 0.25, True),
        ((3.0, 5.0, 6.0), (2.0, 7.0, 8.0), 1.5, False),  # quartiles apart, but the other way round
        ((4.0, 5.0, 6.0), (4.0, 5.0, 6.0), 1.0, True),  # the same measurement
    ],
)
def test_the_speed_up_is_that_of_the_least_times_and_says_where_it_is_uncertain(before, after, ratio, certain):
    found = certified(timed(*before), timed(*after))
    assert found.speedup == ratio
    assert found.speedup_certain is certain
    line = next(line for line in str(found).splitlines() if "latency" in line)
    assert "minimum latency" in line
    assert f"{ratio:.3g}" in line
    assert ("uncertain" in line) is not certain


def test_the_least_time_is_not_that_of_a_disturbed_round(monkeypatch):
    """Nine of ten rounds take a hundred times longer: the quartiles move, the least time stays."""
    count = itertools.count()
    monkeypatch.setattr(timing, "_seconds", lambda *_: 1e-3 if next(count) % 10 == 3 else 0.1)
    (found,) = latency([nn.Linear(2, 2)], torch.ones(4, 2), repeats=20)
    assert (found.minimum, found.low, found.median) == (1e-3, 0.1, 0.1)


def test_what_did_not_change_is_timed_once():
    net = nn.Sequential(nn.Linear(3, 3)).double()
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    found = compress(net, x, tol=1e-6, timing=Timing(repeats=2, batch_size=8))
    assert not found.changed
    assert found.certificate.latency is found.certificate.latency_before
    assert (found.certificate.speedup, found.certificate.speedup_certain) == (1.0, True)


def laden(dtype=torch.float32, value=1e-40):
    """A trained network's shape with subnormal entries in a weight, a bias and a buffer."""
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).to(dtype)
    with torch.no_grad():
        net[0].weight[:2, 1:4], net[3].bias[0] = value, -value
        net[1].running_mean[3] = value
    return net


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 1e-40), (torch.float64, 1e-310), (torch.float16, 1e-6)])
def test_subnormal_weights_are_counted_and_set_to_zero(dtype, value):
    net = laden(dtype, value)
    found = subnormals(net.float() if dtype is torch.float16 else net, torch.ones(4, 6), batch_size=4, repeats=2)
    assert found.entries == 30 + 5 + 5 + 5 + 5 + 5 + 10 + 2
    assert found.count == (0 if dtype is torch.float16 else 8)  # normal in float32
    tensors = [*laden(dtype, value).parameters(), laden(dtype, value).buffers().__next__()]
    by_hand = sum(int(((t != 0) & (t.abs() < torch.finfo(dtype).tiny)).sum()) for t in tensors)
    assert sum(int(is_subnormal(t).sum()) for t in tensors) == by_hand == 8
    clean = without_subnormals(laden(dtype, value))
    assert not any(bool(is_subnormal(t).any()) for t in clean.state_dict().values())
    assert float(clean[3].bias[0].detach()) == 0


def test_the_smallest_normal_number_and_integers_are_not_subnormal():
    for dtype in (torch.float32, torch.float64):
        edge = torch.tensor([torch.finfo(dtype).tiny, -torch.finfo(dtype).tiny, 0.0, torch.inf, torch.nan], dtype=dtype)
        assert not is_subnormal(edge).any()
        assert is_subnormal(edge[:2] / 2).all()
    assert not is_subnormal(torch.ones(3, dtype=torch.long)).any()


def test_both_sides_are_timed_without_subnormal_values_and_the_network_stays(monkeypatch):
    """Without zeroing, the original's latency would be that of subnormal arithmetic and the ratio meaningless."""
    seen = []

    def note(net, x, passes):
        entries = [*net.parameters(), *net.buffers(), x]
        seen.append((sum(int(is_subnormal(t).sum()) for t in entries), flushing()))
        return 1e-3

    monkeypatch.setattr(timing, "_seconds", note)
    net, x = laden(), torch.full((8, 6), 1e-42)
    before = [t.clone() for t in net.state_dict().values()]
    latency([net, nn.Linear(6, 2)], x, repeats=3)
    assert set(seen) == {(0, True)}
    seen.clear()
    subnormals(net, x, batch_size=4, repeats=3)
    assert set(seen) == {(8 + 24, False), (0, True)}  # as it is, and zeroed
    assert all(torch.equal(a, b) for a, b in zip(before, net.state_dict().values(), strict=True))
    assert not flushing()


@pytest.mark.parametrize("flush", [True, False])
def test_the_setting_for_subnormal_values_is_restored(flush, monkeypatch):
    torch.set_flush_denormal(flush)
    try:
        latency([nn.Linear(2, 2)], torch.ones(4, 2), repeats=2)
        assert flushing() is flush
        monkeypatch.setattr(timing, "_seconds", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            latency([nn.Linear(2, 2)], torch.ones(4, 2), repeats=2)
        assert flushing() is flush
    finally:
        torch.set_flush_denormal(False)


def test_subnormal_weights_are_a_finding_of_their_own_and_leave_the_compressed_network():
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
    with torch.no_grad():
        net[0].weight[10:], net[0].bias[10:] = net[0].weight[:10], net[0].bias[:10]
        net[2].weight[1, :5] = 1e-40
    found = compress(
        net, torch.randn(80, 6, generator=torch.Generator().manual_seed(0)), timing=Timing(repeats=2, batch_size=8)
    )
    assert found.changed
    assert found.certificate.subnormals.count == 5
    assert found.certificate.subnormals.share == 5 / parameters(net)
    assert "5 of 182 weights (2.75 %) are subnormal" in str(found)
    assert not any(bool(is_subnormal(t).any()) for t in found.network.state_dict().values())
    assert "subnormal" not in str(certified(timed(1.0, 2.0, 3.0), timed(1.0, 2.0, 3.0)))


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("size", [1e-2, 0.3, 1.0])
def test_the_scale_of_a_change_that_is_a_power_of_it_is_found_in_few_trials(power, size):
    tried = []
    change = lambda made: tried.append(made[0]) or size * made[0] ** power  # noqa: E731
    (_, scale), found = most(change, lambda scale: (scale, scale), 0.01)
    assert found == size * scale**power
    assert 0.95 * 0.01 <= found <= 0.01
    assert len(tried) <= 8


def test_the_scale_of_a_change_with_a_jump_is_the_largest_below_it():
    change = lambda made: 1e-9 if made[0] < 0.0371 else 0.5  # noqa: E731
    (_, scale), found = most(change, lambda scale: (scale, scale), 0.01)
    assert found == 1e-9
    assert 0.03 < scale < 0.0371
    assert most(lambda made: 1.0, lambda scale: (scale, scale), 0.01) is None
