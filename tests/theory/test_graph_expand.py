"""Layer graphs drawn out into neurons, against the modules they are of."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import bnrank
from bnrank.networks.graph import LayerGraph, Node, trace
from bnrank.theory import NeuronGraph
from helpers import normal
from theory.neuron_graphs import rate, velocity


def filled(module, seed=1):
    """The module in float64 with weights of unit size, drawn without touching the global generator."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(normal(*p.shape, seed=seed + i) / max(1, p[0].numel()) ** 0.5)
    return module


class Function(nn.Module):
    """Layers by name and a forward that is given."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.call = forward

    def forward(self, x):
        return self.call(self, x)


def conv(channels=(2, 3), kernel=3, **options):
    kind = (nn.Conv1d, nn.Conv2d)[options.pop("dims", 2) - 1]
    return nn.Sequential(kind(*channels, kernel, **options), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def diagonal(m, x):
    a = m.first(x)
    return m.last(torch.relu(m.inner(a)) + m.d * a)


CASES = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.LeakyReLU(0.1), nn.Linear(4, 2)),
        (3,),
    ),
    "no biases": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)), (3,)),
    "activation of the input": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), (3,)),
    "activation last": (lambda: nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.5)), (3,)),
    "two activations": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.5), nn.LeakyReLU(-0.3)), (3,)),
    "absolute value": (lambda: Function(lambda m, x: m.b(m.a(x).abs()), a=nn.Linear(3, 4), b=nn.Linear(4, 2)), (3,)),
    "learned slopes": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.PReLU(3), nn.Flatten(), nn.LazyLinear(1)), (2, 4)),
    "rows": (lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Flatten()), (4, 3)),
    "conv": (conv, (2, 4, 4)),
    "conv 1d": (lambda: conv(dims=1, kernel=2), (2, 5)),
    "conv padded": (lambda: conv(padding=1), (2, 4, 3)),
    "conv stride": (lambda: conv(padding=(1, 0), stride=(2, 1)), (2, 5, 4)),
    "conv dilated": (lambda: conv(dilation=2, padding=1, kernel=2), (2, 4, 4)),
    "conv grouped": (lambda: conv((4, 6), groups=2, padding=1), (4, 3, 3)),
    "conv circular": (lambda: conv(padding=1, padding_mode="circular"), (2, 4, 4)),
    "conv circular over itself": (lambda: conv(padding=2, kernel=3, padding_mode="circular"), (2, 2, 2)),
    "conv same": (lambda: conv(padding="same", kernel=(3, 1)), (2, 4, 4)),
    "conv reflected": (lambda: conv(padding=1, padding_mode="reflect"), (2, 4, 4)),
    "average": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.AvgPool2d(2, 1, 1), nn.Flatten(), nn.Linear(32, 2)),
        (1, 4, 4),
    ),
    "mean over tokens": (
        lambda: Function(lambda m, x: m.b(m.a(x).mean(1)), a=nn.Linear(3, 4), b=nn.Linear(4, 2)),
        (3, 3),
    ),
    "mean over channels": (lambda: Function(lambda m, x: m.a(x.mean(1)), a=nn.Linear(3, 4)), (2, 3)),
    "skip": (
        lambda: Function(
            lambda m, x: m.c(x + m.b(torch.relu(m.a(x)))), a=nn.Linear(3, 4), b=nn.Linear(4, 3), c=nn.Linear(3, 2)
        ),
        (3,),
    ),
    "difference": (
        lambda: Function(lambda m, x: m.a(x) - 2 * torch.relu(m.b(x)), a=nn.Linear(3, 2), b=nn.Linear(3, 2)),
        (3,),
    ),
    "twice the same": (lambda: Function(lambda m, x: torch.add(a := m.a(x), a), a=nn.Linear(3, 2)), (3,)),
    "diagonal": (
        lambda: Function(
            diagonal,
            first=nn.Linear(3, 4),
            inner=nn.Linear(4, 4),
            d=nn.Parameter(torch.ones(4)),
            last=nn.Linear(4, 2),
        ),
        (3,),
    ),
    "densely connected": (
        lambda: Function(lambda m, x: m.b(torch.cat([x, torch.relu(m.a(x))], 1)), a=nn.Linear(3, 4), b=nn.Linear(7, 2)),
        (3,),
    ),
    "padded with zeros": (lambda: Function(lambda m, x: functional.pad(m.a(x), (1, 2)), a=nn.Linear(3, 2)), (3,)),
    "half of it": (
        lambda: Function(lambda m, x: m.b(torch.relu(m.a(x)[:, :2])), a=nn.Linear(3, 4), b=nn.Linear(2, 1)),
        (3,),
    ),
    "before and after": (lambda: Function(lambda m, x: torch.relu(a := m.a(x)) + 3 * a, a=nn.Linear(3, 2)), (3,)),
    "two readings": (
        lambda: Function(
            lambda m, x: m.b(torch.cat([torch.relu(a := m.a(x)), a.abs()], 1)), a=nn.Linear(3, 2), b=nn.Linear(4, 1)
        ),
        (3,),
    ),
    "the same output twice": (
        lambda: Function(lambda m, x: torch.cat([a := torch.relu(m.a(x)), a, x], 1), a=nn.Linear(3, 2)),
        (3,),
    ),
    "the input": (lambda: nn.Flatten(), (2, 2)),
}


def case(name, seed=1):
    make, shape = CASES[name]
    module, x = make().double(), normal(6, *shape)
    module(x)  # lazy layers
    return filled(module, seed), x


def expanded(name):
    module, x = case(name)
    return module, x, NeuronGraph.from_operations(trace(module, x))


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_module(name):
    module, x, graph = expanded(name)
    expected = module(x).detach().flatten(1)
    torch.testing.assert_close(graph(x), expected, rtol=1e-12, atol=1e-12)
    if graph.count() < 20_000:
        torch.testing.assert_close(graph.decompose()(graph.enumerate(x)), expected, rtol=1e-10, atol=1e-10)
    # every weight knows what it is an entry of
    held = {n: p.detach().flatten() for n, p in module.named_parameters()}
    for weight, learnable, origin in zip(graph.weights, graph.learnable, graph.origins, strict=True):
        assert learnable == (origin is not None)
        assert origin is None or held[origin[0]][origin[1]] == weight
    other, _ = case(name, seed=50)
    if not any(isinstance(m, nn.PReLU) for m in module.modules()):
        moved = graph.with_weights(dict(other.named_parameters())) if held else graph
        torch.testing.assert_close(moved(x), other(x).detach().flatten(1), rtol=1e-12, atol=1e-12)


def test_an_mlp_has_a_vertex_per_neuron():
    _, _, graph = expanded("mlp")
    assert len(graph) == 3 + 1 + 4 + 4 + 2
    assert len(graph.edges) == graph.learnable.sum() == 12 + 4 + 16 + 4 + 8 + 2
    assert sorted(set(graph.slopes)) == [0, 0.1, 1]
    assert graph.count() == 3 * 4 * 4 * 2 + 4 * 4 * 2 + 4 * 2 + 2
    assert graph.vertices[4] == ("0", 0)
    assert len(graph.vertex_invariants()) == 8
    assert [len(cut) for cut in graph.cuts()] == [12 + 4 + 4 + 2, 16 + 4 + 2, 8 + 2]


def test_fixed_edges_are_drawn_dashed():
    _, _, graph = expanded("skip")
    ax = graph.draw()
    dashed = [p for p in ax.patches if p.get_linestyle() not in ("solid", "-")]
    assert len(dashed) == 6


def test_gradients_of_the_graph_are_those_of_the_module():
    module, x, graph = expanded("conv padded")
    y = module(x)
    expected = torch.autograd.grad((y**3).sum(), list(module.parameters()))
    w = torch.tensor(graph.weights, requires_grad=True)
    (gradient,) = torch.autograd.grad((graph(x, w) ** 3).sum(), w)
    found = {n: torch.zeros(p.numel(), dtype=torch.float64) for n, p in module.named_parameters()}
    for (name, i), g in zip(graph.origins, gradient, strict=True):
        found[name][i] += g
    for name, g in zip(found, expected, strict=True):
        torch.testing.assert_close(found[name], g.flatten(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_gradient_flow_conserves_what_the_graph_says(name):
    _, x, graph = expanded(name)
    speed = velocity(graph, x)
    for v in graph.vertex_invariants():
        into, out = ([e for e in graph.edges if e[i] == v] for i in (1, 0))
        assert abs(rate(graph, into, speed) - rate(graph, out, speed)) < 1e-12
    once = []
    for cut in graph.cuts():
        first = {graph.origins[graph.edges.index(e)]: e for e in cut}
        assert graph.layer_invariant(cut, cut) == 0  # no weight is both in it and outside
        once.append(rate(graph, first.values(), speed))
    assert max(once, default=0) - min(once, default=0) < 1e-12


def test_parallel_edges_are_kept_apart():
    _, _, graph = expanded("conv circular over itself")
    assert max(len(v) for v in graph.vertices if v != "constant") == 3
    _, _, graph = expanded("twice the same")
    assert [v for v in graph.vertices if len(v) == 3] == [("add", 0, 0), ("add", 1, 0)]
    assert graph.count() == 2 * 2 * (3 + 1)


def test_frozen_parameters_are_fixed_edges():
    module, x = case("mlp")
    module[2].weight.requires_grad_(False)
    graph = NeuronGraph.from_operations(trace(module, x))
    fixed = {origin[0] for origin, free in zip(graph.origins, graph.learnable, strict=True) if not free}
    assert fixed == {"2.weight"}
    assert [len(cut) for cut in graph.cuts()] == [12 + 4 + 4 + 2, 8 + 2]


def test_weights_used_twice_are_shared():
    w, x = normal(3, 3), normal(5, 3, seed=1)
    nodes = (
        Node("input", "input", (), (3,)),
        Node("first", "linear", ("input",), (3,), weight="w"),
        Node("relu", "activation", ("first",), (3,), slope=0.0),
        Node("second", "linear", ("relu",), (3,), weight="w"),
    )
    graph = NeuronGraph.from_operations(LayerGraph(nodes, "second", frozenset({"w"}), parameters={"w": w}))
    torch.testing.assert_close(graph(x), torch.relu(x @ w.T) @ w.T, rtol=1e-12, atol=1e-12)
    assert graph.shared.all()
    assert graph.vertex_invariants() == {}
    with pytest.raises(ValueError, match=r"is not in it, but shares \('w', 0\)"):
        graph.layer_invariant(*graph.cuts())


def by_hand(parameters, **changes):
    options = {"weight": "w", **changes}
    nodes = (Node("input", "input", (), (3,)), Node("last", "linear", ("input",), (2,), **options))
    return LayerGraph(nodes, "last", frozenset({"w"}), parameters=parameters)


def test_a_layer_graph_by_hand():
    w = normal(2, 3)
    graph = NeuronGraph.from_operations(by_hand({"w": w}))
    x = normal(5, 3, seed=1)
    torch.testing.assert_close(graph(x), x @ w.T)
    assert graph.edges == tuple((("input", i), ("last", o)) for o, i in itertools.product(range(2), range(3)))
    assert graph.origins == tuple(("w", k) for k in range(6))
    turned = NeuronGraph.from_operations(by_hand({"w": w.T}, transposed=True))
    torch.testing.assert_close(turned(x), x @ w.T)
    assert turned.origins == tuple(("w", k) for k in (0, 2, 4, 1, 3, 5))


def test_refusals():
    nodes = by_hand({}).nodes[:1]
    outside = Node("soft", "outside", ("input",), (3,), reason="softmax is not homogeneous")
    with pytest.raises(ValueError, match="graph: got soft, which is outside the theory: softmax is not homogeneous"):
        NeuronGraph.from_operations(LayerGraph((*nodes, outside), "soft", frozenset()))
    pool = Node("pool", "maximum", ("input",), (1,), text="MaxPool1d(3)")
    with pytest.raises(ValueError, match=r"graph: got pool \(MaxPool1d\(3\)\), which takes maxima"):
        NeuronGraph.from_operations(LayerGraph((*nodes, pool), "pool", frozenset()))
    with pytest.raises(ValueError, match="parameters: got no 'w', expected that of last; did you mean 'W'"):
        NeuronGraph.from_operations(by_hand({"W": normal(2, 3)}))
    with pytest.raises(ValueError, match="max_edges: got a graph of up to 6 edges, expected at most 5"):
        NeuronGraph.from_operations(by_hand({"w": normal(2, 3)}), max_edges=5)
    with pytest.raises(TypeError, match=r"graph: got .*, expected a bnrank\.graph\.LayerGraph"):
        NeuronGraph.from_operations(nn.Linear(3, 2))
    with pytest.raises(ValueError, match="weights: got nan"):
        NeuronGraph.from_operations(by_hand({"w": normal(2, 3) * np.nan}))


def test_large_graphs_are_refused_before_they_are_built():
    module = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 32 * 32, 10))
    x = torch.zeros(1, 3, 32, 32)
    edges = 64 * 1024 * (3 * 9 + 1)  # of the convolution alone
    with pytest.raises(ValueError, match=f"max_edges: got a graph of up to {edges} edges, expected at most 20000"):
        NeuronGraph.from_operations(trace(module, x))


def test_neuron_by_neuron():
    net = bnrank.MLP([2, 3, 2], bias=False, seed=1, dtype=torch.float64)
    operations, x = trace(net, normal(4, 2)), normal(5, 2)
    neurons = NeuronGraph.from_operations(operations)
    assert neurons.count() == 2 * 3 * 2
    mu = neurons.decompose()
    with torch.no_grad():
        np.testing.assert_allclose(np.asarray(mu(neurons.enumerate(x))), net(x).numpy(), atol=1e-10)
        net.layers[0].weight.mul_(2)
        np.testing.assert_allclose(np.asarray(NeuronGraph.from_operations(operations)(x)), net(x).numpy(), atol=1e-10)
