"""Linear tails of any module, and T48 for them: what is found, the bound as linear algebra and along the flow."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.graph.tracing import trace
from bnrank.theory.invariants import tail
from bnrank.theory.invariants.finding import find
from bnrank.training import Limits, Solver

DOUBLE = torch.float64


def generator(seed):
    return torch.Generator().manual_seed(seed)


class Free(nn.Module):
    """x -> Z sigma(Y x) + D x; without an activation a linear free block."""

    def __init__(self, n, hidden, out, bias=False, activation=None):
        super().__init__()
        self.Y, self.Z, self.D = nn.Linear(n, hidden, bias), nn.Linear(hidden, out, bias), nn.Linear(n, out, bias)
        self.activation = activation or nn.Identity()

    def forward(self, x):
        return self.Z(self.activation(self.Y(x))) + self.D(x)


class FreeConv(nn.Module):
    """A free block of convolutions."""

    def __init__(self, n, hidden, out, bias=False):
        super().__init__()
        self.Y = nn.Conv1d(n, hidden, 3, padding=1, bias=bias)
        self.Z = nn.Conv1d(hidden, out, 2, padding=1, bias=bias)
        self.D = nn.Conv1d(n, out, 2, padding=1, bias=bias)

    def forward(self, x):
        return self.Z(self.Y(x)) + self.D(x)


class Identity(nn.Module):
    """x -> x + Z Y x."""

    def __init__(self, n, hidden):
        super().__init__()
        self.Y, self.Z = nn.Linear(n, hidden, False), nn.Linear(hidden, n, False)

    def forward(self, x):
        return x + self.Z(self.Y(x))


class Diagonal(Identity):
    """x -> d x + Z Y x."""

    def __init__(self, n, hidden):
        super().__init__(n, hidden)
        self.d = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return self.d * x + self.Z(self.Y(x))


def redrawn(module, seed):
    """Draw the parameters anew, some of them sparse or of a low rank, at scales from 0.1 to 10."""
    g = generator(seed)
    with torch.no_grad():
        for p in module.parameters():
            scale = 10 ** (2 * torch.rand(1, generator=g) - 1)
            p.copy_(scale * torch.randn(p.shape, generator=g))
            kind = int(torch.randint(4, (1,), generator=g))
            if kind == 0:
                p.mul_((torch.rand(p.shape, generator=g) < 0.3).to(p.dtype))
            elif kind == 1 and p.ndim > 1:
                p.copy_(scale * torch.outer(p.flatten(1)[:, 0], p[0].flatten()).reshape(p.shape))
    return module.double()


def random_tail(rng):
    """Return a module that is a linear tail behind something else, and an example."""
    biases = bool(rng.integers(2))
    layers, channels, length, convolutional = (
        [],
        int(rng.integers(1, 4)),
        int(rng.integers(5, 9)),
        bool(rng.integers(2)),
    )
    shape = (channels, length)
    if convolutional:
        layers.append(nn.Conv1d(channels, 3, 1))
        layers.append(nn.ReLU())
        channels = 3
        for _ in range(rng.integers(1, 3)):
            out, kernel, kind = int(rng.integers(1, 5)), int(rng.integers(1, 4)), rng.integers(4)
            if kind == 0:
                layers.append(nn.Conv1d(channels, out, kernel, padding=1, stride=2, bias=biases))
            elif kind == 1:
                layers.append(
                    nn.Conv1d(channels, out, kernel, padding=kernel - 1, padding_mode="circular", bias=biases)
                )
            elif kind == 2:
                layers += [nn.Conv1d(channels, out, kernel, padding=2, dilation=2, bias=biases), nn.AvgPool1d(2)]
            else:
                layers.append(FreeConv(channels, int(rng.integers(1, 4)), out, biases))
            channels = out
        layers += [nn.AdaptiveAvgPool1d(int(rng.integers(1, 4))), nn.Flatten()]
        width = channels * layers[-2].output_size
    else:
        layers += [nn.Flatten(), nn.Linear(channels * length, 4), nn.LeakyReLU(0.3)]
        width = 4
    for _ in range(rng.integers(0, 3)):
        out = int(rng.integers(1, 5))
        if rng.integers(2):
            layers.append(Free(width, int(rng.integers(1, 5)), out, biases))
        else:
            layers.append(nn.Linear(width, out, biases))
        width = out
    layers.append(nn.Linear(width, int(rng.choice([1, 1, 1, 2, 3])), biases))
    return nn.Sequential(*layers), torch.randn(2, *shape, generator=generator(0))


# What is found -------------------------------------------------------------------------------------------------------


def names_and_why(*layers, x=None):
    found = tail(nn.Sequential(*layers), torch.ones(2, 3) if x is None else x)
    return found.names, found.why


def test_the_tail_begins_after_what_ends_the_argument():
    assert names_and_why(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1)) == (
        ("2", "3"),
        "before it: ReLU (1)",
    )
    assert names_and_why(nn.Linear(3, 4), nn.Linear(4, 1)) == (("0", "1"), "before it: the input")
    assert names_and_why(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))[0] == ("2", "3")
    assert names_and_why(nn.Linear(3, 4), Diagonal(4, 2), nn.Linear(4, 4), nn.Linear(4, 1))[0] == ("2", "3")
    names, why = names_and_why(nn.Linear(3, 4), Identity(4, 2), nn.Linear(4, 4), nn.Linear(4, 1))
    assert names == ("2", "3")
    assert "reads as well" in why
    block = Free(4, 3, 4, activation=nn.ReLU())
    assert names_and_why(nn.Linear(3, 4), block, nn.Linear(4, 4), nn.Linear(4, 1)) == (
        ("1", "2", "3"),
        "before it: ReLU (1.activation)",
    )
    assert names_and_why(nn.Linear(3, 4), nn.Linear(4, 2), nn.Softmax(1)) == ((), "the output comes out of Softmax (2)")
    frozen = nn.Linear(4, 4)
    frozen.weight.requires_grad_(False)
    names, why = names_and_why(nn.Linear(3, 4), frozen, nn.Linear(4, 4), nn.Linear(4, 1))
    assert names == ("2", "3")
    assert "frozen" in why
    x = torch.ones(2, 4, 5)
    names, why = names_and_why(
        nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 2, 1), nn.Flatten(), nn.Linear(10, 1), x=x
    )
    assert names == ("2", "4")
    assert "groups" in why
    names, why = names_and_why(
        nn.Conv1d(4, 4, 1), nn.MaxPool1d(2), nn.Conv1d(4, 2, 1), nn.Flatten(), nn.Linear(4, 1), x=x
    )
    assert (names, why) == (("2", "4"), "before it: MaxPool1d (1)")


def test_n_and_m_by_hand():
    x = torch.ones(2, 2, 12)
    module = nn.Sequential(
        nn.Conv1d(2, 3, 1),
        nn.ReLU(),
        nn.Conv1d(3, 4, 5),  # first: its factor does not count
        nn.Conv1d(4, 5, 2, stride=2),  # min(4, 2) = 2
        nn.AvgPool1d(2, 1),  # three positions
        nn.Conv1d(5, 6, 1),  # min(5, 1) = 1
        nn.Flatten(),
        Free(18, 3, 4),  # 2, and min(6, 3) = 3
        nn.Linear(4, 7),
        Free(7, 2, 3),  # 2
        nn.Linear(3, 2),
    )
    found = tail(module, x)
    assert [layer.kind for layer in found.layers] == [
        "conv",
        "conv",
        "conv",
        "free block",
        "linear",
        "free block",
        "linear",
    ]
    assert found.blocks == (2, 2, 2, 1, 1, 0, 0)
    assert found.multiplicities == (6, 3, 3, 1, 1, 1, 1)
    assert found.factors(module) == (48, 24, 24, 4, 4, 2, 2)  # two outputs
    assert found.names == ("2", "3", "5", "7", "8", "9", "10")


def slow_factor(layer, parameters):
    """Return min(channels in, entries per channel in and out) from the shapes that the forms have, over the chains."""
    total = 0
    for chain in layer.branches:
        product = 1
        for one in chain:
            out, wide = one.written_form(parameters).shape
            tall, channels = one.read_form(parameters).shape
            assert out * wide == tall * channels
            product *= min(channels, wide // channels)
        total += product
    return total


def test_the_conserved_matrices_are_those_that_find_finds():
    rng = np.random.default_rng(0)
    for seed in range(15):
        module, x = random_tail(rng)
        redrawn(module, seed)
        found = tail(module, x)
        assert len(found) >= 1
        parameters = dict(module.named_parameters())
        matrices = [q.value(module) for q in find(module, x.double(), verify=False) if q.kind in ("matrix", "vertex")]
        for matrix in found.between(module):
            assert any(m.shape == matrix.shape and torch.allclose(m, matrix) for m in matrices if m.ndim == 2) or any(
                m.ndim == 1 and matrix.numel() == 1 and torch.allclose(m, matrix[0]) for m in matrices
            )
        for j, layer in enumerate(found.layers):
            following = found.layers[j + 1 :]
            d = min(found.layers[-1].written(parameters).shape)
            slow = d * int(np.prod([slow_factor(one, parameters) for one in following]))
            assert found.factors(module)[j] == slow
            assert found.blocks[j] == sum(len(one.branches) > 1 for one in following)
            assert d * 2 ** found.blocks[j] * found.multiplicities[j] == slow
            if layer.kind == "conv":
                weight = parameters[layer.branches[0][0].weight].detach()
                torch.testing.assert_close(layer.written(parameters), weight.flatten(1))
                torch.testing.assert_close(layer.read(parameters), weight.movedim(1, -1).reshape(-1, weight.shape[1]))


# The bound -----------------------------------------------------------------------------------------------------------


def test_the_bound_is_linear_algebra():
    """40 random tails, 30 draws of weights each: the constants of now bound the squares of now."""
    rng = np.random.default_rng(1)
    looked_at = biting = 0
    for number in range(40):
        module, x = random_tail(rng)
        found = tail(module, x)
        for seed in range(30):
            redrawn(module, 1000 * number + seed)
            size = sum(float(p.detach().square().sum()) for p in module.parameters())
            for bound, layer in zip(found.bounds(module), found.layers, strict=True):
                assert bound.beyond <= bound.constant + 1e-11 * size
                assert bound.left >= bound.right - 1e-11 * size
                values = torch.linalg.svdvals(layer.written(dict(module.named_parameters()))).square()
                assert bound.left == pytest.approx(float(values[0]), abs=1e-10 * size)
                assert bound.beyond == pytest.approx(float(values[bound.factor :].sum()), abs=1e-10 * size)
                looked_at += 1
                biting += bound.right > bound.frobenius / len(values)
            if seed % 5:
                continue
            for one, ratio in zip(found.alignments(module), found.ratios(module), strict=False):
                assert one.value >= one.minimum - 1e-4  # of a small angle the cosine is known to this only
                assert 0 <= ratio <= 1 + 1e-12 or np.isnan(ratio)
    assert looked_at > 2500
    assert biting > 40


def moving(weights, start=0.0):
    """Return a network, behind ReLU, and data on which its tail aligns: separable, with the logistic loss."""
    g = generator(5)
    x = torch.randn(12, 4, generator=g, dtype=DOUBLE)
    y = torch.sign(x[:, :1] + 0.3 * x[:, 1:2]) + (x[:, :1] == 0)
    return weights.double(), x, y


def logistic(out, y):
    return nn.functional.softplus(-y * out).mean()


@pytest.mark.parametrize("biases", [False, True])
def test_constants_are_constant_and_the_bound_of_the_start_holds_along_the_flow(biases):
    torch.manual_seed(0)  # of the layers' own initialization
    module = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5, biases), Free(5, 3, 4, biases), nn.Linear(4, 1, biases)
    )
    module, x, y = moving(module)
    found = tail(module, x)
    start = found.constants(module)
    result = bnrank.flow(
        module, (x, y, logistic), 20.0, solver=Solver("dop853", rtol=1e-11), limits=Limits(max_networks=8)
    )
    grown = 0.0
    for network in result.networks:
        now = found.constants(network)
        for a, b in zip(
            (*start.between, *itertools.chain(*itertools.chain(*start.inside))),
            (*now.between, *itertools.chain(*itertools.chain(*now.inside))),
            strict=True,
        ):
            torch.testing.assert_close(a, b, atol=1e-8, rtol=0)
        for bound, of_now in zip(found.bounds(network, start), found.bounds(network), strict=True):
            assert bound.left >= bound.right - 1e-8
            assert bound.right == pytest.approx(of_now.right, abs=1e-7)
        for one in found.alignments(network, module):
            assert one.value >= one.minimum - 1e-6
        grown = found.bounds(network)[0].frobenius
    assert grown > found.bounds(module)[0].frobenius
    changed = {name: p + 0.1 * torch.ones_like(p) for name, p in network.named_parameters()}  # not by the flow
    assert not all(
        torch.allclose(a, b, atol=1e-3) for a, b in zip(start.between, found.constants(changed).between, strict=True)
    )


def test_the_start_can_be_a_network_its_parameters_or_its_constants():
    module, other = (bnrank.networks.LinearNetwork([3, 4, 4, 1], seed=seed) for seed in (0, 1))
    found = tail(module, torch.ones(2, 3))
    parameters = dict(other.named_parameters())
    assert found.bounds(module, other) == found.bounds(module, parameters)
    assert found.bounds(module, other) == found.bounds(module, found.constants(other))
    assert found.bounds(module, other) != found.bounds(module)
    assert found.ratios(other) == found.ratios(parameters)


def test_training_that_is_no_gradient_flow_can_break_the_bound_of_the_start():
    w = torch.eye(3, dtype=DOUBLE)
    module = bnrank.networks.from_layers([w, torch.tensor([[1.0, 0.0, 0.0]], dtype=DOUBLE)], slope=1.0)
    found = tail(module, torch.ones(2, 3))
    assert all(b.left >= b.right for b in found.bounds(module, module))
    larger = {name: 3 * p for name, p in module.named_parameters()}
    assert not all(b.left >= b.right for b in found.bounds(larger, module))
    assert all(b.left >= b.right for b in found.bounds(larger))


def test_bad_input_is_named():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    found = tail(module, torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"net: got 3 \(int\), expected a torch.nn.Module or a mapping"):
        found.ratios(3)
    with pytest.raises(ValueError, match=r"net: got no parameter 0\.weight, which is in the tail"):
        found.bounds({})
    with pytest.raises(ValueError, match=r"start: got 0\.weight as Tensor of shape \(2, 2\).*, expected 12 entries"):
        found.bounds(module, {**dict(module.named_parameters()), "0.weight": torch.ones(2, 2)})
    with pytest.raises(TypeError, match="net: got"):
        tail(3, torch.ones(2, 3))
    empty = tail(nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), torch.ones(2, 3))
    assert (empty.bounds({}), empty.ratios({}), empty.alignments({}), len(empty)) == ((), (), (), 0)


def test_the_module_is_left_as_it_was():
    module, x = random_tail(np.random.default_rng(5))
    before = {name: p.clone() for name, p in module.state_dict().items()}
    state = torch.get_rng_state()
    found = tail(module.train(), x)
    found.bounds(module)
    found.alignments(module)
    assert module.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, before[name]) for name, p in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert trace(module, x).trained  # still can be traced
