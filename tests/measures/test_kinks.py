import warnings

import pytest
import torch
from torch import nn

import bnrank
from bnrank import Jacobian
from bnrank.measures import describe, profile
from bnrank.measures.jacobian import KinkWarning
from bnrank.tasks import circle
from helpers import normal


def one_neuron(slope=0.0, bias=0.0):
    """f(x) = sigma(x_1 + x_2 + bias), 2 inputs."""
    net = bnrank.MLP([2, 1, 1], slope=slope, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0].fill_(1.0)
        net.weights[1].fill_(1.0)
        net.biases[0].fill_(bias)
    return net


def as_modules(net):
    """The same function for which no closed form is taken."""
    return nn.Sequential(net)


POINTS = torch.tensor([[1.0, 2.0], [1.0, -1.0], [0.3, -0.3], [-1.0, 0.5]], dtype=torch.float64)
WRAPS = [lambda net: net, as_modules]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5])
def test_samples_on_a_kink_are_found_and_counted_once_per_call(wrap, slope):
    net = wrap(one_neuron(slope))
    assert Jacobian(net, POINTS).near_kinks().tolist() == [False, True, True, False]
    calls = [
        lambda: list(Jacobian(net, POINTS, chunk_size=1).chunks()),
        lambda: Jacobian(net, POINTS, chunk_size=2).singular_values,
        lambda: Jacobian(net, POINTS).rank(),
        lambda: Jacobian(net, POINTS).log_pseudo_determinant(),
        lambda: Jacobian(net, POINTS).schatten(2),
        lambda: Jacobian(net, POINTS).ntk_trace,
    ]
    for call in calls:
        with pytest.warns(KinkWarning, match="x: 2 of 4 samples lie within 1e-12 .* first is row 1") as caught:
            call()
        assert len(caught) == 1
        assert caught[0].filename == __file__


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_tolerance_is_relative_to_the_terms(wrap):
    scale = 1e6
    x = torch.tensor([[scale, -scale * (1 + 1e-9)]], dtype=torch.float64)
    net = wrap(one_neuron())
    # Of a module the preactivation itself is the largest argument: only 0 is near.
    assert Jacobian(net, x).near_kinks(rtol=1e-8).item() == (wrap is WRAPS[0])
    assert not Jacobian(net, x).near_kinks(rtol=1e-10).item()
    assert not Jacobian(net, x).near_kinks(rtol=0.0).item()
    assert Jacobian(net, torch.tensor([[1.0, -1.0]])).near_kinks(rtol=0.0).item()
    shifted = wrap(one_neuron(bias=-scale))
    assert Jacobian(shifted, torch.tensor([[scale, 0.0]])).near_kinks(rtol=0.0).item()


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_preactivation_that_is_0_around_x_is_no_kink(wrap):
    nets = {"constant": bnrank.MLP([3, 4, 4, 2], init=0.0)}
    nets["a neuron without weights"] = bnrank.MLP([3, 4, 4, 2], seed=0)
    nets["a dead layer"] = bnrank.MLP([3, 4, 4, 2], seed=0)
    nets["duplicates that cancel"] = bnrank.MLP([3, 4, 4, 2], seed=0)
    with torch.no_grad():
        nets["a neuron without weights"].weights[0][1] = 0.0
        nets["a dead layer"].biases[0].fill_(-100.0)
        first, second = nets["duplicates that cancel"].weights[:2]
        first[1] = first[0]
        second[2] = torch.tensor([1.0, -1.0, 0.0, 0.0])
    for net in nets.values():
        assert not Jacobian(wrap(net), normal(5, 3)).near_kinks().any()
        assert not Jacobian(wrap(net), normal(5, 3), dtype=torch.float32).near_kinks().any()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Jacobian(wrap(net), normal(5, 3)).rank()


@pytest.mark.parametrize("wrap", WRAPS)
def test_no_bias_at_the_origin_and_no_activation_at_all(wrap):
    x = torch.zeros(2, 3)
    assert Jacobian(wrap(bnrank.MLP([3, 5, 2], bias=False)), x).near_kinks().all()
    assert not Jacobian(wrap(bnrank.networks.LinearNetwork([3, 5, 2])), x).near_kinks().any()
    assert not Jacobian(wrap(bnrank.MLP([3, 2])), x).near_kinks().any()


def test_nothing_is_looked_for_without_a_tolerance():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Jacobian(one_neuron(), POINTS, kink_rtol=None).rank()
        assert Jacobian(one_neuron(), POINTS, kink_rtol=None).ntk_trace.any()
    with pytest.raises(ValueError, match="kink_rtol: got -1"):
        Jacobian(one_neuron(), POINTS, kink_rtol=-1.0).rank()
    with pytest.raises(TypeError, match="rtol: got 'a'"):
        Jacobian(one_neuron(), POINTS).near_kinks(rtol="a")


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


FUNCTIONS = {
    "relu in place": (lambda x: torch.relu_(x * 1.0), 0.0),
    "leaky": (lambda x: nn.functional.leaky_relu(x, 0.2), 0.0),
    "leaky of slope 1": (lambda x: nn.functional.leaky_relu(x, 1.0), 0.0),
    "prelu": (lambda x: nn.functional.prelu(x, torch.tensor([0.2], dtype=x.dtype)), 0.0),
    "threshold": (lambda x: nn.functional.threshold(x, 2.0, 1.0), 2.0),
    "relu6": (nn.functional.relu6, 6.0),
    "hardtanh": (lambda x: nn.functional.hardtanh(x, -3.0, 4.0), -3.0),
    "hardswish": (nn.functional.hardswish, 3.0),
    "hardsigmoid": (nn.functional.hardsigmoid, -3.0),
    "clamp": (lambda x: x.clamp(max=1.5), 1.5),
    "clamp min": (lambda x: x.clamp_min(1.5), 1.5),
    "abs": (torch.abs, 0.0),
    "maximum": (lambda x: torch.maximum(x, 2 * x - 1), 1.0),
    "minimum": (lambda x: torch.minimum(x, 2 * x - 1), 1.0),
    "tanh": (torch.tanh, 0.0),
    "rows mixed": (lambda x: torch.relu(x.reshape(-1)).reshape(x.shape), 0.0),
    "another order": (lambda x: torch.relu(x.T[:, :, None].expand(-1, -1, 7)).mean(2).T, 0.0),
}


SMOOTH = ("leaky of slope 1", "tanh")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operations_with_a_kink(name, dtype):
    function, kink = FUNCTIONS[name]
    x = 0.1 + normal(6, 2).abs() / 10 + 8
    x[3, 1] = kink
    found = Jacobian(Function(function), x, dtype=dtype).near_kinks()
    assert found.tolist() == [name not in SMOOTH and i == 3 for i in range(6)]


def test_a_kink_of_parameters_alone_is_none():
    net = Function(lambda x: x * torch.relu(torch.zeros(4, dtype=x.dtype)).sum())
    assert not Jacobian(net, normal(6, 2)).near_kinks().any()


def test_convolutions_and_attention():
    net = nn.Sequential(nn.Conv1d(1, 2, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)).double()
    x = normal(3, 1, 4)
    with torch.no_grad():
        x[1, 0, 1] = 0.0
        net[0].weight[0, 0] = torch.tensor([0.0, 1.0])
    assert Jacobian(net, x).near_kinks().tolist() == [False, True, False]
    attention = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), nn.Flatten())
    assert not Jacobian(attention, normal(3, 2, 4)).near_kinks().any()


def test_a_profile_has_a_note_instead_of_a_warning():
    x = circle().x  # T40: every other point is on an axis, and the neurons' kinks are the axes
    net = bnrank.MLP([2, 4, 1], bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0].copy_(0.5 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
        net.weights[1].copy_(0.5 * torch.tensor([[1.0, -1.0, 1.0, -1.0]]))
    assert Jacobian(net, x).near_kinks().tolist() == [True, False] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = profile(net, x.roll(-1, 0), max_jacobian_samples=4)  # rows 0, 2, 5, 7
    note = "jacobian_singular_values: 2 of 4 samples lie within 1e-12 (relative) of a kink, the first is row 5;"
    assert any(line.startswith(note) for line in describe(dataset))
