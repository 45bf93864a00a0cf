"""Lemma 1: f(x; w) = mu(h(x; w)), with mu a tree of weights +1 and -1 that depends on the signs of w only."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bnrank.theory import NeuronGraph
from theory.neuron_graphs import QUICK, graphs, layered, points, random_graph, read, value

ARCHITECTURES = {
    "fully connected": {"widths": [3, 4, 3, 2]},
    "with biases": {"widths": [3, 4, 3, 2], "bias": True},
    "two skips": {"widths": [2, 3, 3, 3, 1], "skip": 2},
    "DenseNet-like": {"widths": [2, 3, 2, 2, 2], "skip": "all", "bias": True},
    "linear": {"widths": [3, 4, 3, 2], "slope": 1.0},
    "leaky": {"widths": [3, 4, 3, 2], "slope": 0.2, "skip": "all"},
    "absolute value": {"widths": [3, 4, 3, 2], "slope": -1.0, "skip": 2},
}


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_decomposition_is_the_network(name):
    graph = read(layered(**ARCHITECTURES[name]))
    x = 3 * points(graph, 50)
    close(graph.decompose()(graph.enumerate(x)), graph(x))


@QUICK
@given(graphs())
def test_the_decomposition_is_the_network_for_any_dag(g):
    graph = read(g)
    x = points(graph)
    tree, h = graph.decompose(), graph.enumerate(x)
    close(tree(h), graph(x))
    expected = [[value(g, v, sample) for v in graph.outputs] for sample in x.numpy()]
    close(tree(h), torch.tensor(expected, dtype=torch.float64))
    assert set(tree.signs.tolist()) <= {1, -1}


@QUICK
@given(graphs(), st.integers(0, 999), st.floats(-8, 8))
def test_the_tree_depends_on_signs_only(g, seed, exponent):
    graph = read(g)
    size = len(graph.edges)
    scales = np.exp(np.random.default_rng(seed).uniform(-abs(exponent), abs(exponent), size))
    scaled = graph.with_weights(scales * graph.weights)
    tree, x = graph.decompose(), points(graph, 3)
    assert scaled.decompose() == tree
    torch.testing.assert_close(tree(scaled.enumerate(x)), scaled(x), rtol=1e-10, atol=1e-10 * scales.max() ** 6)
    for e, edge in enumerate(graph.edges):
        flipped = graph.with_weights(np.where(np.arange(size) == e, -1, 1) * graph.weights)
        assert (flipped.decompose() == tree) == (graph.through(edge) == 0)


@QUICK
@given(graphs(), st.integers(0, 999))
def test_zero_weights_may_have_either_sign(g, seed):
    graph = read(g)
    rng = np.random.default_rng(seed)
    zero = rng.random(len(graph.edges)) < 0.4
    pruned, x = graph.with_weights(np.where(zero, 0, graph.weights)), points(graph)
    h = pruned.enumerate(x)
    close(pruned.decompose()(h), pruned(x))
    close(graph.decompose()(h), pruned(x))  # as if their signs were those before
    assert graph.with_weights(np.where(zero, -0.0, 1.0)).decompose().signs.min() == 1


@QUICK
@given(graphs())
def test_the_tree_is_a_tree_of_path_ends(g):
    graph = read(g)
    tree = graph.decompose()
    written = tree.to_networkx()
    assert nx.number_weakly_connected_components(written) == len(graph.outputs)
    assert nx.is_forest(written.to_undirected())
    ends = {path[i:] for path in graph.paths() for i in range(len(path))}
    assert len(tree) == len(ends) + graph.count()
    for node, path in zip(tree.leaves, graph.paths(), strict=True):
        walk = [node]
        while tree.parents[walk[-1]] >= 0:
            walk.append(tree.parents[walk[-1]])
        assert tuple(tree.labels[v] for v in walk) == (None, *path)
        slopes = dict(zip(graph.vertices, graph.slopes, strict=True))
        assert [tree.slopes[v] for v in walk] == [1, *map(slopes.get, path)]
        assert np.prod(tree.signs[walk]) == 1  # the leaf's sign undoes the others


@QUICK
@given(graphs())
def test_the_tree_as_a_network_of_its_own(g):
    graph = read(g)
    tree = graph.decompose()
    h = graph.enumerate(points(graph))
    other = NeuronGraph.from_networkx(tree.to_networkx())
    close(other(h), tree(h))
    assert not other.learnable.any()
    assert set(np.abs(other.weights)) <= {1}
    # a tree has its own path enumeration, up to the order of paths
    assert other.count() == graph.count()


def test_one_hidden_layer_by_hand():
    """Figures 1 and 2 of the source: two inputs, two ReLU neurons."""
    g = nx.DiGraph()
    weights = {("a", "u"): 2.0, ("b", "u"): -3.0, ("a", "v"): -1.0, ("b", "v"): 4.0, ("u", "y"): -5.0, ("v", "y"): 0.5}
    g.add_weighted_edges_from([(*edge, w) for edge, w in weights.items()])
    graph = read(g)
    tree = graph.decompose()
    assert graph.paths() == (("a", "u", "y"), ("b", "u", "y"), ("a", "v", "y"), ("b", "v", "y"))
    assert tree.labels == ("y", "u", "v", "a", "b", "a", "b", None, None, None, None)
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6]
    assert tree.signs.tolist() == [1, -1, 1, 1, -1, -1, 1, -1, 1, -1, 1]
    h = torch.tensor([[-10.0, 15.0, -0.5, 2.0]])  # at x = (1, 1)
    assert torch.equal(graph.enumerate(torch.ones(1, 2)), h.double())
    # mu(h) = -relu(-h0 - h1) + relu(h2 + h3)
    assert tree(h).item() == -max(0, 10 - 15) + max(0, -0.5 + 2)


def test_with_stable_signs_the_gradient_goes_through_h_alone():
    """df/dw = sum over paths of dmu/dh_p dh_p/dw, with mu held: what the source uses the decomposition for."""
    graph = read(random_graph(np.random.default_rng(1), 2, 6, 1))
    x, tree = points(graph, 5), graph.decompose()
    gradients = []
    for f in (graph, lambda x, w: tree(graph.enumerate(x, w))):
        w = torch.tensor(graph.weights, requires_grad=True)
        gradients.append(torch.autograd.grad(f(x, w).sum(), w)[0])
    close(*gradients)


def test_drawings_have_the_paths_in_order_on_the_left():
    tree = read(layered([2, 3, 1], skip="all")).decompose()
    ax = tree.draw()
    (dots,) = ax.collections
    places = dots.get_offsets()
    assert len(ax.patches) == len(tree) - 1
    assert (np.diff(places[tree.leaves][:, 1]) < 0).all()
    assert set(places[tree.leaves][:, 0]) == {0}
    parents = tree.parents[1:]
    assert (places[1:, 0] < places[parents, 0]).all()
    texts = [t.get_text() for t in ax.texts]
    assert {"$h_{0}$", "$h_{7}$"} <= set(texts)
    assert texts.count("-1") == (tree.signs == -1).sum()
    with pytest.raises(ValueError, match=r"draw: got .* edges, expected at most 2000"):
        read(layered([6, 6, 6, 6])).decompose().draw()


def test_bad_arguments():
    graph = read(layered([2, 3, 1]))
    tree = graph.decompose()
    with pytest.raises(ValueError, match=r"h: got shape \(4, 5\), expected \(N, 6\)"):
        tree(torch.ones(4, 5))
    with pytest.raises(ValueError, match="max_paths: the graph has 6 paths, more than 5"):
        graph.decompose(max_paths=5)
    with pytest.raises(ValueError, match="max_paths: the graph has 6 paths, more than 5"):
        graph.enumerate(torch.ones(1, 2), max_paths=5)
    assert tree != "tree"
    assert repr(tree) == "SignTree(1 outputs, 6 paths, 16 nodes)"
