import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory.facts import Facts
from bnrank.theory.statements import ranks, structure
from bnrank.theory.structure import segment_kernels
from bnrank.theory.verdicts import statements_in
from helpers import network, normal
from oracles import circular_convolution_matrix

STATEMENTS = [s for topic in (ranks, structure) for s in statements_in(topic)]
SLOPES = [0.0, 0.3, -0.5, 0.95, 1.0]
BY_NAME = {f"{s.id} {s.name}": s for s in STATEMENTS}
T5, T6, T18 = ranks._bracket, ranks._chain, ranks._regions
T11, T21, LINEAR, T22, T23 = (
    structure._volumes,
    structure._isometries,
    structure._linearity,
    structure._activations,
    structure._preactivations,
)
T24, T25, SEGMENT = structure._trace, structure._mixed, structure._segment
ENERGY, FREQUENCIES = ranks._energy, ranks._frequencies


def verdicts(facts):
    return {name: statement(facts) for name, statement in BY_NAME.items()}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=7),
    slope=st.sampled_from(SLOPES),
    bias=st.booleans(),
    scale=st.floats(0.2, 2.5),
    rtol=st.sampled_from([0.0, 1e-12, 1e-6, 0.05]),
    seed=st.integers(0, 10**6),
)
def test_nothing_is_violated_by_random_networks(widths, slope, bias, scale, rtol, seed):
    facts = Facts(network(widths, slope, bias, scale, seed), normal(10, widths[0], seed=seed + 1), rtol=rtol)
    found = verdicts(facts)
    assert {v.status for v in found.values()} <= {"holds", "not applicable"}, found
    for name in ("T24 trace of the kernel, layer by layer", "T5 Jacobian rank below bottleneck rank"):
        assert found[name].status == "holds"
    if len(widths) > 2 and facts.rank:
        for statement in (T6, T21, LINEAR, T25):
            assert found[f"{statement.id} {statement.name}"].status == "holds"


@pytest.fixture(scope="module")
def trained():
    task = bnrank.tasks.low_rank_map(n=120, d_in=4, d_out=6, latent=4, rank=2, width=20, seed=0)
    net = bnrank.MLP([4, *[20] * 7, 6], seed=0)
    run = bnrank.train(net, task, ridge=3e-3, steps=1500, progress=False, seed=0)
    return Facts(run.network(0), task.x, task.y, 3e-3)


def test_a_trained_network_holds_all_that_applies(trained):
    found = verdicts(trained)
    for name, verdict in found.items():
        expected = "not applicable" if name.startswith(("T28 ", "T18 ")) else "holds"
        assert verdict.status == expected, verdict
        assert verdict.reason if expected == "not applicable" else verdict.note
    assert "convolution" in found[f"T28 {ENERGY.name}"].reason
    assert "16 of 120 samples checked" in found[f"T21 {T21.name}"].note
    assert "4 of 120 samples checked" in found[f"T24 {T24.name}"].note


PLANTED = {
    "T5": (T5, lambda f: {"jacobian_values": torch.ones_like(f.jacobian_values)}),
    "T6": (T6, lambda f: {"jacobian_values": torch.ones_like(f.jacobian_values)}),
    "T11": (T11, lambda f: {"jacobian_values": 1.01 * f.jacobian_values}),
    "T21": (T21, lambda f: {"parameter_norm": 0.5 * f.parameter_norm}),
    "T21 linear": (LINEAR, lambda f: {"slopes": [3 * d for d in f.slopes]}),
    "T22": (T22, lambda f: {"ntk_trace": 1e-12 * f.ntk_trace}),
    "T22 inputs": (T22, lambda f: {"inputs": [1e6 * a for a in f.inputs]}),
    "T23": (T23, lambda f: {"ntk_trace": 1e-20 * f.ntk_trace}),
    "T24": (T24, lambda f: {"inputs": [1.001 * a for a in f.inputs]}),
    "T24 weights": (T24, lambda f: {"weights": [1.001 * w for w in f.weights]}),
    "T25": (T25, lambda f: {"jacobian_values": 3 * f.jacobian_values}),
    "T25 segment": (SEGMENT, lambda f: {"jacobian_values": 1e4 * f.jacobian_values}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_violations_are_seen(trained, name):
    statement, alter = PLANTED[name]
    through_two = Facts(network([5, 8, 2, 8, 5], seed=1), normal(20, 5))  # its Jacobian cannot have rank 5
    facts = through_two if name in ("T5", "T6") else trained
    assert statement(facts).status == "holds"
    verdict = statement(facts.altered(**alter(facts)))
    assert verdict.status == "violated", verdict
    assert verdict.slack < 0


def test_t18_enumerates_the_regions(monkeypatch):
    net, x = network([2, 6, 6, 3], seed=2), normal(40, 2)
    verdict = T18(Facts(net, x))
    assert (verdict.status, verdict.left, verdict.right) == ("holds", 1.0, 2.0)  # no sample is in a region of rank 2
    sides = [torch.linspace(float(low), float(high), 80) for low, high in zip(x.min(0)[0], x.max(0)[0], strict=True)]
    assert bnrank.Jacobian(net, torch.cartesian_prod(*sides)).rank().rank == 2
    assert "regions in the box around the data, 40 samples off the kinks" in verdict.note
    monkeypatch.setattr(ranks, "MAX_REGIONS", 5)
    assert "at most 5 regions" in T18(Facts(net, x)).reason
    monkeypatch.undo()
    narrow = Facts(network([2, 6, 1, 6, 3], seed=2), normal(40, 2))
    assert T18(narrow).right == 1.0
    planted = narrow.altered(jacobian_values=torch.ones_like(narrow.jacobian_values))
    assert T18(planted).status == "violated"
    assert "5 inputs and 3 hidden neurons" in T18(Facts(network([5, 3, 2]), normal(9, 5))).reason


def test_what_does_not_apply_says_why():
    one = Facts(network([3, 2]), normal(9, 3))
    for statement in (T6, T11, LINEAR):
        assert statement(one).status == "not applicable"
        assert "hidden layer" in statement(one).reason
    dead = network([3, 4, 2])
    with torch.no_grad():
        dead.biases[0].fill_(-100.0)
    for statement in (T11, T22, T23):
        assert "rank Jf(x) is at least 1" in statement(Facts(dead, normal(9, 3))).reason
    for statement in (T5, T21, T24, T25):
        assert statement(Facts(dead, normal(9, 3))).status == "holds"
    front = from_layers([torch.tensor([[2.0]]), *[torch.tensor([[0.7]])] * 9])  # most of the norm in front
    for statement in (T22, T23):
        verdict = statement(Facts(front, torch.ones(4, 1)))
        assert verdict.status == "not applicable"
        assert "balanced (T14)" in verdict.reason
        assert "residual" in verdict.reason
    kinks = Facts(network([3, 4, 2], bias=False), torch.zeros(2, 3))
    assert "kinks" in SEGMENT(kinks).reason


def test_modules_that_are_no_chain():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    facts = Facts(net, normal(9, 3))
    for name, verdict in verdicts(facts).items():
        if name.startswith("T5 "):
            assert (verdict.status, verdict.left, verdict.right) == ("holds", 2.0, 2.0)
        elif not name.startswith("T28 "):
            assert verdict.status == "not applicable"
            assert "Tanh" in verdict.reason
    table = Facts(
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), torch.zeros(4, 2, dtype=torch.int64)
    )
    assert "dtype torch.int64" in T5(table).reason


def test_sequentials_of_which_some_layers_have_biases():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    facts = Facts(net, normal(9, 3))
    assert T24(facts).status == T22(facts).status == "holds"


def test_noise_is_no_rank():
    """W2 W1 = 0 by cancellation: the rounding errors have full rank, the weights rank 3."""
    q = torch.linalg.qr(normal(8, 8))[0]
    net = from_layers([q[:, :3] @ normal(3, 5, seed=1), normal(5, 3, seed=2) @ q[:, 3:6].T], slope=1.0)
    facts = Facts(net, normal(9, 5), rtol=0.0)
    assert facts.rank == 5
    assert T5(facts).status == T6(facts).status == "holds"
    assert (T5(facts).left, T5(facts).right, T6(facts).left) == (0.0, 3.0, 0.0)


def test_ranks_of_factors_are_counted_so_that_they_compose():
    """1e-7 I = diag(1, 1e-7) diag(1e-7, 1): with the same relative tolerance each factor would have rank 1."""
    first = torch.diag(torch.tensor([1e-7, 1.0], dtype=torch.float64))
    verdict = T6(Facts(from_layers([first, first.flip(0, 1)], slope=1.0), normal(3, 2)))
    assert (verdict.status, verdict.left, verdict.right) == ("holds", 2.0, 2.0)


def test_t22_and_t24_count_biases():
    net, x = network([2, 3, 2], 0.3, seed=1), normal(1, 2)
    z = x @ net.weights[0].detach().T + net.biases[0].detach()
    squares = float((x**2).sum()), float((torch.where(z > 0, z, 0.3 * z) ** 2).sum())
    assert T22(Facts(net, x)).left == pytest.approx(sum(squares) + 2)
    outer = net.weights[1].detach() * torch.where(z > 0, torch.ones_like(z), 0.3)
    assert T24(Facts(net, x)).left == pytest.approx((squares[0] + 1) * float((outer**2).sum()) + (squares[1] + 1) * 2)


def test_t5_is_about_all_inputs_where_the_data_lie_on_a_line():
    line = torch.linspace(1, 2, 9, dtype=torch.float64)[:, None] * normal(1, 5)
    verdict = T5(Facts(network([5, 8, 5], 0.3), line))
    assert (verdict.status, verdict.left, verdict.right) == ("holds", 5.0, 5.0)


class Circular(nn.Module):
    """Convolutions in series on images of 5 x 4 (4 x 4 with a stride), circular as far as said."""

    def __init__(self, mode="circular", stride=1, groups=1, kernel=3):
        super().__init__()
        torch.manual_seed(0)
        options = {"padding": kernel // 2, "padding_mode": mode}
        self.first = nn.Conv2d(2, 4, kernel, groups=groups, **options)
        self.second = nn.Conv2d(4, 3, kernel, stride=stride, **options)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def test_t28_on_circular_convolutions():
    net, x = Circular(), normal(3, 2, 5, 4)
    energy, frequencies = ENERGY(Facts(net, x)), FREQUENCIES(Facts(net, x))
    assert energy.status == frequencies.status == "holds"
    layer = net.first if "first" in energy.note else net.second
    matrix = circular_convolution_matrix(layer.weight.detach(), (5, 4))
    assert energy.left == pytest.approx(float((matrix**2).sum()))
    assert energy.right == pytest.approx(20 * float((layer.weight.detach().double() ** 2).sum()))


def test_t28_with_stride_and_groups():
    for options in ({"stride": 2}, {"groups": 2}):
        facts = Facts(Circular(**options), normal(3, 2, 4, 4))
        assert ENERGY(facts).status == FREQUENCIES(facts).status == "holds"
    facts = Facts(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", stride=2), normal(3, 2, 4, 4))
    assert ENERGY(facts).status == "holds"
    assert FREQUENCIES(facts).status == "not applicable"


def test_t28_is_not_applicable_without_circular_padding():
    zeros = ENERGY(Facts(Circular("zeros"), normal(3, 2, 5, 4)))
    assert zeros.status == "not applicable"
    assert "circular" in zeros.reason
    large = ENERGY(Facts(Circular(kernel=3), normal(3, 2, 2, 2)))
    assert "kernel larger than its images" in large.reason


def test_t28_sees_a_wrong_spectrum(monkeypatch):
    facts = Facts(Circular(), normal(3, 2, 5, 4))
    right = ranks.conv_singular_values
    monkeypatch.setattr(ranks, "conv_singular_values", lambda *a, **k: right(*a, **k).roll(1, 0))
    assert FREQUENCIES(facts).status == "violated"
    true = ranks.circular_singular_values
    monkeypatch.setattr(ranks, "circular_singular_values", lambda layer: (1.001 * true(layer)[0], true(layer)[1]))
    assert ENERGY(facts).status == "violated"


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5, 1.0])
def test_the_segment_stays_on_one_pattern(slope):
    net, x = network([3, 6, 6, 2], slope, seed=3), normal(8, 3)
    facts = Facts(net, x)
    u = facts.paths[0].decomposition[2][:, 0]
    length, _ = segment_kernels(facts, 0)
    assert length > 0
    patterns = []
    for t in torch.linspace(0, length, 7, dtype=torch.float64):
        a, signs = x[0] + t * u, []
        for weight, b in itertools.islice(zip(net.weights, net.biases, strict=True), 2):
            z = weight @ a + b
            signs += (z > 0).tolist()
            a = torch.where(z > 0, z, slope * z)
        patterns.append(signs)
    assert slope == 1.0 or all(p == patterns[0] for p in patterns)
