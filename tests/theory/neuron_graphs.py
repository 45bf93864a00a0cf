"""Weighted DAGs to try, as networkx graphs, and the obvious ways to compute what is claimed of them."""

import itertools

import hypothesis.strategies as st
import networkx as nx
import numpy as np
import torch
from hypothesis import settings
from torch import nn

from bnrank.theory import NeuronGraph

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
SLOPES = (0.0, 1.0, 0.3, -1.0, -0.5)


@st.composite
def graphs(draw, shared=False, constant=None, hidden=6):
    """Random DAGs with mixed activations; some vertices reach no output, some outputs have out-edges."""
    n_in, n_hidden, n_out = draw(st.integers(1, 3)), draw(st.integers(0, hidden)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    biased = draw(st.booleans()) if constant is None else constant
    return random_graph(rng, n_in, n_hidden, n_out, biased, fixed=draw(st.sampled_from([0.0, 0.3])), shared=shared)


def random_graph(rng, n_in, n_hidden, n_out, biased=True, density=0.5, fixed=0.0, shared=False):
    """x0, x1, ..., constant, v0, v1, ...: edges forward; the outputs are the last vertices."""
    sources = [f"x{i}" for i in range(n_in)] + ["constant"] * biased
    rest = [f"v{i}" for i in range(n_hidden + n_out)]
    graph = nx.DiGraph()
    for i, name in enumerate(sources):
        graph.add_node(name, input="constant" if name == "constant" else i)
    for i, name in enumerate(rest):
        graph.add_node(name, slope=float(rng.choice(SLOPES)))
        if i >= n_hidden:
            graph.nodes[name]["output"] = i - n_hidden
        earlier = sources + rest[:i]
        chosen = [v for v in earlier if rng.random() < density] or [earlier[rng.integers(len(earlier))]]
        for v in chosen:
            edge = {"weight": float(rng.normal()), "learnable": bool(rng.random() >= fixed)}
            graph.add_edge(v, name, **edge)
    if shared:  # some weights in common
        edges = list(graph.edges)
        for k in range(len(edges) // 3):
            pair = rng.choice(len(edges), size=2)
            weight = float(rng.normal())
            for e in pair:
                if "origin" not in graph.edges[edges[e]]:
                    graph.edges[edges[e]].update(weight=weight, origin=("kernel", k), learnable=True)
    order = list(graph.nodes)
    mixed = nx.DiGraph()  # vertices in no particular order
    for i in rng.permutation(len(order)):
        mixed.add_node(order[i], **graph.nodes[order[i]])
    mixed.add_edges_from(graph.edges(data=True))
    return mixed


def layered(widths, *, seed=0, slope=0.0, bias=False, skip=None):
    """Fully connected; with skip "all" DenseNet-like, each layer reading all before; with skip 2 reading two before."""
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph()
    layers = [[f"{level}.{i}" for i in range(width)] for level, width in enumerate(widths)]
    for level, layer in enumerate(layers):
        for i, v in enumerate(layer):
            graph.add_node(v, slope=1.0 if level in (0, len(widths) - 1) else slope)
            if level == 0:
                graph.nodes[v]["input"] = i
    if bias:
        graph.add_node("constant", input="constant")
    for level, layer in enumerate(layers[1:], 1):
        reach = {None: 1, "all": level, 2: 2}[skip]
        for v in layer:
            for u in itertools.chain(*layers[max(0, level - reach) : level], ["constant"] * bias):
                graph.add_edge(u, v, weight=float(rng.normal()))
    return graph


def value(graph, vertex, x):
    """The value of a vertex by its definition, for one sample."""
    attributes = graph.nodes[vertex]
    if attributes.get("input") is not None:
        z = 1.0 if attributes["input"] == "constant" else float(x[attributes["input"]])
    else:
        z = sum(graph.edges[u, vertex]["weight"] * value(graph, u, x) for u in graph.predecessors(vertex))
    return z if z > 0 else attributes.get("slope", 1.0) * z


def brute_paths(graph):
    """All paths, as lists of vertices, in no particular order."""
    inputs = [v for v, a in graph.nodes(data=True) if a.get("input") is not None]
    outputs = [v for v, a in graph.nodes(data=True) if "output" in a]
    paths = []
    for u, v in itertools.product(inputs, outputs):
        paths += [[u]] if u == v else nx.all_simple_paths(graph, u, v)
    return paths


def points(graph, n=7, seed=0):
    """Samples for a graph, float64."""
    return torch.randn(n, graph.wiring.features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def velocity(graph, x, seed=0):
    """d w / dt along the gradient flow of the logistic loss; weights of one origin are one, fixed ones stay."""
    signs = torch.from_numpy(np.random.default_rng(seed).choice([-1.0, 1.0], size=(len(x), len(graph.outputs))))
    names = [origin or e for e, origin in enumerate(graph.origins)]
    distinct = list(dict.fromkeys(names))
    index = torch.tensor([distinct.index(name) for name in names], dtype=torch.long)
    parameters = torch.tensor([graph.weights[names.index(name)] for name in distinct], requires_grad=True)
    loss = nn.functional.softplus(-signs * graph(x, parameters[index])).mean()
    (gradient,) = torch.autograd.grad(loss, parameters)
    return -gradient[index].numpy() * graph.learnable


def rate(graph, edges, speed):
    """d/dt of the sum of squares of some edges' weights."""
    numbers = [graph.edges.index(edge) for edge in edges]
    return float(2 * graph.weights[numbers] @ speed[numbers])


def read(graph):
    """Shorthand."""
    return NeuronGraph.from_networkx(graph)
