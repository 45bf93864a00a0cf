import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import bnrank
from bnrank.networks.graph import trace
from helpers import normal
from networks.graph_modules import BasicBlock, Branches, DenseNet, Of, ResNet, Skips, TransformerBlock, seeded
from networks.graph_oracle import evaluate

P = nn.Parameter


def ops(graph):
    return [node.op for node in graph]


def assert_graph_computes(module, x, graph=None):
    """A graph without anything outside, read by loops from its fields, has the module's output."""
    graph = trace(module, x) if graph is None else graph
    assert graph.outside == ()
    with torch.no_grad():
        expected = module.eval()(x).numpy()
    found = evaluate(graph, module, x)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-12 * max(1.0, np.abs(expected).max())
    return graph


def test_mlp_node_by_node():
    net = bnrank.MLP([3, 5, 4, 2], slope=0.2, seed=1, dtype=torch.float64)
    graph = assert_graph_computes(net, normal(6, 3))
    assert [node.name for node in graph] == ["input", "layers_0", "leaky_relu", "layers_1", "leaky_relu_1", "layers_2"]
    assert ops(graph) == ["input", "linear", "activation", "linear", "activation", "linear"]
    assert [node.inputs for node in graph] == [(), *((node.name,) for node in graph.nodes[:-1])]
    assert [node.shape for node in graph] == [(3,), (5,), (5,), (4,), (4,), (2,)]
    assert [(n.weight, n.bias) for n in graph if n.op == "linear"] == [
        (f"layers.{i}.weight", f"layers.{i}.bias") for i in range(3)
    ]
    assert [n.slope for n in graph if n.op == "activation"] == [0.2, 0.2]
    assert graph.output == "layers_2"
    assert graph.trained == {name for name, _ in net.named_parameters()}
    assert graph["layers_1"].module == "layers.1"
    assert graph["layers_1"].text == "Linear(5, 4)"
    assert [node.name for node in graph.consumers("layers_0")] == ["leaky_relu"]


def test_linear_network_has_no_activations():
    graph = assert_graph_computes(bnrank.LinearNetwork([3, 4, 2], seed=1, dtype=torch.float64), normal(5, 3))
    assert ops(graph) == ["input", "linear", "linear"]
    assert graph.nodes[1].bias == ""


ACTIVATIONS = {
    "ReLU": (nn.ReLU(), 0.0),
    "leaky": (nn.LeakyReLU(-0.3), -0.3),
    "functional leaky": (Of(lambda m, x: functional.leaky_relu(x, 2.0)), 2.0),
    "abs": (Of(lambda m, x: x.abs()), -1.0),
    "operator abs": (Of(lambda m, x: abs(x)), -1.0),
    "clamp": (Of(lambda m, x: x.clamp(min=0)), 0.0),
    "clamp_min": (Of(lambda m, x: torch.clamp_min(x, 0.0)), 0.0),
    "method": (Of(lambda m, x: x.relu()), 0.0),
    "threshold": (nn.Threshold(0, 0), 0.0),
    "functional": (Of(lambda m, x: functional.relu(x, inplace=True)), 0.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_positively_homogeneous_activations(name):
    activation, slope = ACTIVATIONS[name]
    graph = assert_graph_computes(nn.Sequential(nn.Linear(3, 4).double(), activation), normal(5, 3))
    assert ops(graph) == ["input", "linear", "activation"]
    assert graph.nodes[-1].slope == slope


@pytest.mark.parametrize("count", [1, 4])
def test_learned_slopes(count):
    module = seeded(lambda: nn.Sequential(nn.Conv1d(2, 4, 2), nn.PReLU(count)))
    node = assert_graph_computes(module, normal(3, 2, 5)).nodes[-1]
    assert math.isnan(node.slope)
    assert node.weight == "1.weight"


CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 7)),
    "2d": (lambda: nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 5, 6)),
    "3d": (lambda: nn.Conv3d(2, 2, 2, bias=False), (2, 3, 3, 3)),
    "groups": (lambda: nn.Conv2d(4, 6, 2, groups=2), (4, 4, 3)),
    "depthwise": (lambda: nn.Conv1d(3, 6, 3, groups=3, padding=2), (3, 5)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular", stride=2), (2, 5, 6)),
    "same": (lambda: nn.Conv1d(2, 3, 3, padding="same", dilation=2), (2, 7)),
    "valid": (lambda: nn.Conv1d(2, 3, 3, padding="valid"), (2, 7)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    make, shape = CONVOLUTIONS[name]
    module = seeded(make)
    graph = assert_graph_computes(module, normal(3, *shape))
    assert ops(graph) == ["input", "conv"]
    node = graph.nodes[1]
    assert node.groups == module.groups
    assert node.stride == module.stride
    assert node.kernel == module.kernel_size
    assert node.dilation == module.dilation
    assert node.padding_mode == module.padding_mode
    if name == "same":
        assert node.padding == (2,)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("mode", ["reflect", "replicate", "same", "circular same"])
def test_other_paddings_are_a_reordering_before(mode):
    padding = "same" if "same" in mode else 2
    kind = mode.split()[0] if mode != "same" else "zeros"
    module = seeded(lambda: nn.Conv1d(2, 3, 4, padding=padding, padding_mode=kind))
    graph = assert_graph_computes(module, normal(3, 2, 6))
    assert ops(graph) == ["input", "index", "conv"]
    assert graph.nodes[2].padding == (0,)
    assert (-1 in graph.nodes[1].index) == (kind == "zeros")


def test_functional_convolution_with_a_parameter():
    module = seeded(
        lambda: Of(
            lambda m, x: functional.conv2d(x, m.w, stride=2, padding=1) + m.b[:, None, None],
            w=P(torch.zeros(3, 2, 3, 3)),
            b=P(torch.zeros(3)),
        )
    )
    graph = assert_graph_computes(module, normal(2, 2, 5, 5))
    assert ops(graph) == ["input", "conv"]
    assert (graph.nodes[1].weight, graph.nodes[1].bias) == ("w", "b")


@pytest.mark.parametrize(
    ("function", "transposed"),
    [
        (lambda m, x: x @ m.w.T + m.b, False),
        (lambda m, x: torch.matmul(x, m.w.t()) + m.b, False),
        (lambda m, x: functional.linear(x, m.w, m.b), False),
        (lambda m, x: x @ m.v + m.b, True),
        (lambda m, x: torch.addmm(m.b, x, m.v), True),
        (lambda m, x: functional.linear(x, m.v.mT, bias=m.b), True),
        (lambda m, x: m.b + torch.mm(x, m.v), True),
    ],
)
def test_products_with_parameters(function, transposed):
    module = seeded(lambda: Of(function, w=P(torch.zeros(4, 3)), v=P(torch.zeros(3, 4)), b=P(torch.zeros(4))))
    graph = assert_graph_computes(module, normal(5, 3))
    assert ops(graph) == ["input", "linear"]
    node = graph.nodes[1]
    assert (node.transposed, node.weight, node.bias) == (transposed, "v" if transposed else "w", "b")


def test_an_added_parameter_is_a_bias_only_of_a_layer_used_nowhere_else():
    module = seeded(
        lambda: Of(lambda m, x: (lambda h: (h + m.b) + h)(x @ m.w), w=P(torch.ones(3, 4)), b=P(torch.ones(4)))
    )
    graph = trace(module, normal(5, 3))
    assert ops(graph) == ["input", "linear", "outside", "add"]
    assert graph["matmul"].bias == ""
    assert graph["add"].held == ("b",)
    module = seeded(lambda: Of(lambda m, x: m.l(x + m.b), l=nn.Linear(3, 2), b=P(torch.ones(3))))
    assert "adds b" in trace(module, normal(5, 3)).outside[0].reason


def test_residual_blocks_with_every_skip():
    graph = assert_graph_computes(seeded(Skips), normal(5, 4))
    assert ops(graph).count("linear") == 7
    assert ops(graph).count("add") == 3
    (diagonal,) = (node for node in graph if node.op == "diagonal")
    assert (diagonal.weight, diagonal.weight_shape) == ("diagonal", (4,))
    adds = [node for node in graph if node.op == "add"]
    assert adds[0].inputs == ("input", "outside_0")
    assert adds[1].inputs == (diagonal.name, "outside_1")
    assert adds[2].inputs == ("free", "outside_2")


def test_resnet_node_by_node():
    graph = assert_graph_computes(seeded(lambda: ResNet([4, 6])), normal(2, 2, 8, 8))
    assert ops(graph) == [
        *["input", "conv", "activation", "maximum"],
        *["conv", "activation", "conv", "add", "activation"],
        *["conv", "activation", "conv", "conv", "add", "activation"],
        *["average", "index", "linear"],
    ]
    first, second = (node for node in graph if node.op == "add")
    assert first.inputs == ("layers_0_conv2", "maxpool")
    assert second.inputs == ("layers_1_conv2", "layers_1_downsample_0")
    assert graph["avgpool"].windows.shape == (1, 4)
    assert graph["maxpool"].dims == (1, 2)


def test_batch_norm_is_outside_and_the_rest_is_read():
    module = seeded(lambda: ResNet([4], norm=True))
    graph = trace(module, normal(2, 2, 8, 8))
    assert [(o.name, o.type) for o in graph.outside] == [
        ("layers.0.bn1", "BatchNorm2d"),
        ("layers.0.bn2", "BatchNorm2d"),
    ]
    assert "normalization" in graph.outside[0].reason
    assert ops(graph).count("conv") == 3
    assert graph["layers_0_bn1"].held == ("layers.0.bn1.bias", "layers.0.bn1.weight")


def test_densenet():
    graph = assert_graph_computes(seeded(DenseNet), normal(5, 4))
    assert graph["cat_2"].inputs == ("input", "leaky_relu", "leaky_relu_1", "leaky_relu_2")
    assert np.array_equal(graph["cat_2"].index, np.arange(13))


def test_branches():
    graph = assert_graph_computes(seeded(Branches), normal(5, 4))
    assert [node.factors for node in graph if node.op == "add"] == [(1, 1), (1, 1), (1, -1), (1, 1)]


def test_transformer_block():
    graph = trace(seeded(TransformerBlock), normal(3, 5, 4))
    assert [o.name for o in graph.outside] == ["norm1", "attention", "norm2"]
    assert "attention" in graph.outside[1].reason
    assert (graph["up"].shape, graph["relu"].op, graph["down"].shape) == ((5, 8), "activation", (5, 4))
    assert graph.nodes[-1].inputs == ("add", "down")


@pytest.mark.parametrize("first", [False, True])
def test_torchs_own_transformer_layer_is_followed(first):
    module = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=first).double()
    graph = trace(module, normal(3, 5, 4))
    assert {o.name for o in graph.outside} == {"self_attn", "norm1", "norm2"}
    assert [n.weight for n in graph if n.op == "linear"] == ["linear1.weight", "linear2.weight"]


def _changed_in_place(m, x):
    h = m.a(x)
    kept = h
    part = h[:, :2]
    flat = h.view(-1, 2, 2)
    h += m.b(x)
    return torch.cat([kept, part, flat.flatten(1), functional.relu(h)], 1)


def _relu_of_a_view(m, x):
    h = m.a(x)
    h[:, 1:3].mul_(-2)
    h.view(-1, 2, 2)[:, :, 1].neg_()
    h[:, 0] = 0
    return h


def _activation_seen_elsewhere(m, x):
    h = m.a(x)
    y = functional.relu(h, inplace=True)
    return 2 * h + y


@pytest.mark.parametrize("function", [_changed_in_place, _relu_of_a_view, _activation_seen_elsewhere])
def test_later_users_see_a_change_in_place(function):
    module = seeded(lambda: Of(function, a=nn.Linear(3, 4), b=nn.Linear(3, 4)))
    assert_graph_computes(module, normal(5, 3))


def test_change_in_place_node_by_node():
    module = seeded(lambda: Of(_activation_seen_elsewhere, a=nn.Linear(3, 4)))
    graph = trace(module, normal(5, 3))
    assert graph["mul"].inputs == ("relu",)
    assert graph["add"].inputs == ("mul", "relu")


def test_in_place_activation_of_a_block_reaches_its_skip():
    class Block(nn.Module):  # the skip is taken before, and sees the activation all the same
        def __init__(self):
            super().__init__()
            self.a, self.b, self.relu = nn.Linear(3, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x):
            h = self.a(x)
            return h + self.b(self.relu(h))

    graph = assert_graph_computes(seeded(Block), normal(5, 3))
    assert graph["add"].inputs == ("relu", "b")


def test_two_calls_of_an_activation_are_two_nodes():
    relu = nn.ReLU()
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu))
    assert ops(assert_graph_computes(module, normal(5, 3))) == ["input", "linear", "activation", "linear", "activation"]


def test_dead_ends_are_left_out():
    module = seeded(lambda: Of(lambda m, x: (m.a(x), m.b(x))[1], a=nn.Linear(3, 4), b=nn.Linear(3, 2)))
    assert [node.name for node in trace(module, normal(5, 3))] == ["input", "b"]


def test_frozen_parameters_are_not_trained():
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    module[0].weight.requires_grad_(False)
    assert trace(module, normal(5, 3)).trained == {"0.bias", "1.weight", "1.bias"}


def test_parameters_are_those_of_the_moment_not_copies():
    module = seeded(lambda: nn.Linear(3, 2))
    graph = trace(module, normal(5, 3))
    assert graph.parameters["weight"].data_ptr() == module.weight.data_ptr()
    assert not graph.parameters["weight"].requires_grad


def test_control_flow_on_shapes_is_followed():
    def forward(m, x):
        assert x.ndim == 3
        n, length, width = x.shape
        if width == x.size(-1) and len(x) == n and x.is_floating_point():
            x = x.reshape(n * length, width)
        return m.l(x).view(n, length, -1)

    graph = assert_graph_computes(seeded(lambda: Of(forward, l=nn.Linear(4, 2))), normal(3, 5, 4))
    assert ops(graph) == ["input", "linear"]
    assert graph["l"].shape == (5, 2)


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_one_sample_is_enough(samples):
    net = bnrank.MLP([3, 4, 2], dtype=torch.float64)
    assert trace(net, normal(samples, 3)) == trace(net, normal(2, 3))


def test_numpy_and_float32():
    net = bnrank.MLP([3, 4, 2])
    assert trace(net, np.ones((2, 3), dtype=np.float32)) == trace(net, torch.ones(2, 3))


LAYERS = ["linear", "relu", "leaky", "abs", "flip", "skip", "twice", "diagonal", "cat", "chunk"]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=7), st.integers(0, 1000))
def test_any_sequence_of_layers(names, seed):
    width, modules = 4, []
    for i, name in enumerate(names):
        if name == "linear":
            new = 2 * (1 + (seed + i) % 3)
            modules.append(nn.Linear(width, new, bias=bool((seed + i) % 2)))
            width = new
        elif name == "diagonal":
            modules.append(Of(lambda m, x: x * m.d, d=P(torch.zeros(width))))
        elif name == "skip":
            modules.append(Of(lambda m, x: x - torch.relu(m.l(x)) / 2, l=nn.Linear(width, width)))
        elif name == "cat":
            modules.append(Of(lambda m, x: torch.cat([x, -x[:, :1], x.flip(1)[:, 1:2]], 1)))
            width += 2
        else:
            simple = {"relu": nn.ReLU(), "leaky": nn.LeakyReLU(0.3)}
            functions = {
                "abs": lambda m, x: x.abs(),
                "flip": lambda m, x: x.roll(1, -1).flip(-1),
                "twice": lambda m, x: 2 * x,
                "chunk": lambda m, x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1),
            }
            modules.append(simple.get(name) or Of(functions[name]))
    module = seeded(lambda: nn.Sequential(*modules), seed)
    assert_graph_computes(module, normal(3, 4, seed=seed))


IMAGES = ["conv", "strided", "circular", "grouped", "relu", "in place", "average", "maximum", "block", "pad"]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(IMAGES), min_size=1, max_size=4), st.booleans(), st.integers(0, 1000))
def test_any_convolutional_network(names, flat, seed):
    after = itertools.pairwise(names)  # torch has no gradient for what a ReLU gave and was changed in place
    assume(not any(first in ("relu", "in place", "block") and second == "in place" for first, second in after))
    layers = {
        "conv": lambda: nn.Conv2d(2, 2, 3, padding=1),
        "strided": lambda: nn.Conv2d(2, 2, 2, stride=2, padding=1, bias=False),
        "circular": lambda: nn.Conv2d(2, 2, 2, padding=1, padding_mode="circular"),
        "grouped": lambda: nn.Conv2d(2, 2, 1, groups=2),
        "relu": lambda: nn.ReLU(),
        "in place": lambda: nn.ReLU(inplace=True),
        "average": lambda: nn.AvgPool2d(2, 1, padding=1),
        "maximum": lambda: nn.MaxPool2d(2, 2, padding=1, ceil_mode=True),
        "block": lambda: BasicBlock(2, 2),
        "pad": lambda: nn.ReflectionPad2d((0, 1, 1, 0)),
    }
    head = [nn.Flatten(), nn.LazyLinear(2)] if flat else [nn.AdaptiveAvgPool2d((1, 2))]
    x = normal(2, 2, 4, 4, seed=seed)

    def make():
        first = nn.Conv2d(2, 2, 1)  # what comes next may work in place
        module = nn.Sequential(first, *(layers[name]() for name in names), *head)
        module(x.float())
        return module

    assert_graph_computes(seeded(make, seed), x)
