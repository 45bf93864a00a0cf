"""Weighted DAGs: evaluation, paths, cuts and what gradient flow conserves."""

import itertools
import random

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bnrank._core.axes import OKABE_ITO
from bnrank.theory import NeuronGraph
from theory.neuron_graphs import (
    QUICK,
    brute_paths,
    graphs,
    layered,
    points,
    random_graph,
    rate,
    read,
    value,
    velocity,
)


def edges_of(path):
    return list(itertools.pairwise(path))


@QUICK
@given(graphs())
def test_values_are_those_of_the_definition(g):
    graph = read(g)
    x = points(graph)
    expected = [[value(g, v, sample) for v in graph.outputs] for sample in x.numpy()]
    np.testing.assert_allclose(graph(x), expected, rtol=1e-12, atol=1e-12)


@QUICK
@given(graphs(shared=True))
def test_networkx_and_back_changes_nothing(g):
    graph = read(g)
    written = graph.to_networkx()
    assert list(written.nodes) == list(g.nodes)
    assert list(written.edges) == list(g.edges)
    assert all(written.edges[e] | g.edges[e] == written.edges[e] for e in g.edges)
    assert all(written.nodes[v] | g.nodes[v] == written.nodes[v] for v in g)
    again = NeuronGraph.from_networkx(written)
    assert again == graph
    assert nx.utils.graphs_equal(again.to_networkx(), written)


def test_defaults_of_networkx_graphs():
    g = nx.DiGraph([("x10", "h"), ("x2", "h"), ("h", "b"), ("h", "a")])
    graph = read(g)
    assert dict(graph.inputs) == {"x2": 0, "x10": 1}
    assert graph.outputs == ("a", "b")
    assert dict(zip(graph.vertices, graph.slopes, strict=True)) == {"x10": 1, "h": 0, "x2": 1, "b": 1, "a": 1}
    assert graph.weights.tolist() == [1, 1, 1, 1]
    assert graph.learnable.all()
    assert graph.origins == (None,) * 4
    # numbers and mixtures of names are taken too
    assert read(nx.DiGraph([(10, 20), (9, 20)])).inputs == {9: 0, 10: 1}
    assert read(nx.DiGraph([("a", (0, 1)), (3, (0, 1))])).inputs.keys() == {"a", 3}


@QUICK
@given(graphs())
def test_paths_counted_and_enumerated(g):
    graph, expected = read(g), brute_paths(g)
    paths = graph.paths()
    assert sorted(map(list, paths)) == sorted(expected)
    assert graph.count() == len(paths) == sum(graph.count(v) for v in graph.outputs)
    for edge in graph.edges:
        assert graph.through(edge) == sum(edge in edges_of(path) for path in paths)
    with pytest.raises(ValueError, match=f"has {len(paths)} paths, more than {len(paths) - 1}"):
        graph.paths(max_paths=len(paths) - 1)


@QUICK
@given(graphs())
def test_the_path_enumeration_has_an_entry_per_path(g):
    graph = read(g)
    x = points(graph, 3)
    h = graph.enumerate(x)
    assert h.shape == (3, graph.count())
    for column, path in zip(h.T, graph.paths(), strict=True):
        start = g.nodes[path[0]]["input"]
        first = torch.ones(3, dtype=torch.float64) if start == "constant" else x[:, start]
        product = np.prod([g.edges[e]["weight"] for e in edges_of(path)])
        torch.testing.assert_close(column, first * product, rtol=1e-12, atol=0)


@QUICK
@given(graphs())
def test_the_path_enumeration_is_multilinear(g):
    graph = read(g)
    x, w = points(graph, 3), torch.tensor(graph.weights)
    for e, edge in enumerate(graph.edges):
        step = torch.zeros_like(w)
        step[e] = 0.7
        h, once, twice = (graph.enumerate(x, w + k * step) for k in range(3))
        torch.testing.assert_close(twice - once, once - h, rtol=1e-9, atol=1e-12)
        on = torch.tensor([edge in edges_of(path) for path in graph.paths()])
        assert torch.equal((once != h).any(0), on)
        assert torch.equal(graph.enumerate(x, w * (1 - torch.eye(len(w))[e])), h * ~on)


def test_astronomic_numbers_of_paths_are_exact():
    g = layered([3, *[10] * 60, 2])
    graph = read(g)
    assert graph.count() == 3 * 10**60 * 2
    assert graph.count("61.0") == 3 * 10**60
    assert graph.through(("5.3", "6.4")) == 3 * 10**58 * 2
    with pytest.raises(ValueError, match=r"about 10\^60 paths"):
        graph.decompose()
    assert len(graph.cuts()) == 61


@QUICK
@given(graphs())
def test_a_cut_is_what_every_path_crosses_once(g):
    graph = read(g)
    paths = [set(edges_of(path)) for path in graph.paths()]
    draw = random.Random(0)
    candidates = [set(cut) for cut in graph.cuts()]
    candidates += [set(draw.sample(graph.edges, draw.randint(0, len(graph.edges)))) for _ in range(30)]
    candidates += [cut ^ {draw.choice(graph.edges)} for cut in candidates[:5]]
    for chosen in candidates:
        assert graph.is_cut(chosen) == all(len(path & chosen) == 1 for path in paths)


def potentials(graph):
    """All cuts of learnable edges on paths, by trying every phi."""
    live = [e for e in graph.edges if graph.through(e)]
    inner = sorted({v for e in live for v in e} - set(graph.inputs) - set(graph.outputs))
    found = set()
    for values in itertools.product((0, 1), repeat=len(inner)):
        phi = dict.fromkeys(graph.inputs, 0) | dict.fromkeys(graph.outputs, 1) | dict(zip(inner, values, strict=True))
        jumps = {e: phi[e[1]] - phi[e[0]] for e in live}
        learnable = dict(zip(graph.edges, graph.learnable, strict=True))
        if all(jump == 0 or (jump == 1 and learnable[e]) for e, jump in jumps.items()):
            found.add(frozenset(e for e, jump in jumps.items() if jump))
    return found


@QUICK
@given(graphs(hidden=5))
def test_level_cuts_are_nested_and_there_wherever_a_cut_is(g):
    graph = read(g)
    cuts, possible = graph.cuts(), potentials(graph)
    assert set(cuts) <= possible
    assert bool(cuts) == bool(possible)
    assert len(set(cuts)) == len(cuts)
    if not set(graph.inputs) & set(graph.outputs):
        behind = [{v for v in graph.vertices if any(passed(path, v, cut) for path in graph.paths())} for cut in cuts]
        assert all(later < earlier for earlier, later in itertools.pairwise(behind))


def passed(path, vertex, cut):
    """Whether a path has crossed the cut when it comes to the vertex."""
    return vertex in path and any(edge in cut for edge in edges_of(path[: path.index(vertex) + 1]))


def test_cuts_of_fully_connected_networks_have_all_later_biases():
    graph = read(layered([2, 3, 3, 1], bias=True))
    cuts = graph.cuts()
    assert len(cuts) == 3
    for level, cut in enumerate(cuts, 1):
        weights = {e for e in graph.edges if e[1].startswith(f"{level}.") and e[0] != "constant"}
        biases = {e for e in graph.edges if e[0] == "constant" and int(e[1][0]) >= level}
        assert cut == weights | biases


def test_cuts_merge_what_fixed_edges_join():
    g = nx.DiGraph()
    g.add_weighted_edges_from([("x", "a", 1.0), ("a", "h", 2.0), ("h", "b", 3.0), ("b", "y", 4.0)])
    g.add_edge("a", "b", weight=1.0, learnable=False)  # an identity skip: no cut through the block
    assert read(g).cuts() == ({("x", "a")}, {("b", "y")})
    assert read(g).layer_invariant([("x", "a")], [("b", "y")]) == 1 - 16
    g.add_edge("x", "y", weight=1.0, learnable=False)
    assert read(g).cuts() == ()


@QUICK
@given(graphs())
def test_gradient_flow_conserves_differences_of_cuts(g):
    graph = read(g)
    speed = velocity(graph, points(graph, 9))
    rates = [rate(graph, cut, speed) for cut in graph.cuts()]
    scale = max(1.0, max((np.abs(graph.weights * speed).sum() for _ in rates), default=1.0))
    for a, b in itertools.combinations(range(len(rates)), 2):
        assert abs(rates[a] - rates[b]) < 1e-12 * scale
        cut_a, cut_b = graph.cuts()[a], graph.cuts()[b]
        squares = [sum(graph.weights[graph.edges.index(e)] ** 2 for e in cut) for cut in (cut_a, cut_b)]
        assert graph.layer_invariant(cut_a, cut_b) == pytest.approx(squares[0] - squares[1], abs=1e-12)


def test_gradient_flow_does_not_conserve_what_is_no_cut():
    rng = np.random.default_rng(3)
    graph = read(random_graph(rng, 3, 6, 1))
    speed = velocity(graph, points(graph, 9))
    first, *_ = graph.cuts()
    for edge in first:
        if abs(speed[graph.edges.index(edge)]) > 1e-3:
            less = first - {edge}
            assert not graph.is_cut(less)
            assert abs(rate(graph, less, speed) - rate(graph, first, speed)) > 1e-6
            with pytest.raises(ValueError, match=r"cut_b: got .* not every path crosses exactly once"):
                graph.layer_invariant(first, less)


@QUICK
@given(graphs())
def test_gradient_flow_conserves_vertex_invariants(g):
    graph = read(g)
    speed = velocity(graph, points(graph, 9))
    invariants = graph.vertex_invariants()
    scale = max(1.0, np.abs(graph.weights * speed).sum())
    for v in graph.vertices:
        into, out = ([e for e in graph.edges if e[i] == v] for i in (1, 0))
        learned = all(g.edges[e]["learnable"] for e in into + out)
        assert (v in invariants) == (learned and v not in graph.inputs and v not in graph.outputs)
        if v in invariants:
            assert abs(rate(graph, into, speed) - rate(graph, out, speed)) < 1e-12 * scale
            squares = [sum(g.edges[e]["weight"] ** 2 for e in edges) for edges in (into, out)]
            assert invariants[v] == pytest.approx(squares[0] - squares[1], abs=1e-12)


def test_shared_weights_take_part_in_cuts_that_have_all_of_them_once_and_in_no_vertex():
    # a convolution of width 2 over three entries, ReLU, then a sum with weights
    g = nx.DiGraph()
    for position, k in itertools.product(range(2), range(2)):
        g.add_edge(f"x{position + k}", f"h{position}", weight=(0.7, -1.2)[k], origin=("kernel", k))
    g.add_weighted_edges_from([("h0", "y", 1.5), ("h1", "y", -0.4)])
    graph = read(g)
    x = points(graph, 20)
    assert graph.vertex_invariants() == {}
    assert graph.shared.sum() == 4
    first, last = graph.cuts()
    assert graph.layer_invariant(first, last) == pytest.approx(0.49 + 1.44 - 2.25 - 0.16, abs=1e-12)
    speed = velocity(graph, x)
    kernel = [("x0", "h0"), ("x1", "h0")]
    assert abs(rate(graph, kernel, speed) - rate(graph, last, speed)) < 1e-14
    assert abs(rate(graph, kernel, speed)) > 1e-3
    assert abs(rate(graph, first, speed) - rate(graph, last, speed)) > 1e-3  # edges instead of weights
    mixed = [("x0", "h0"), ("x1", "h0"), ("h1", "y")]
    assert graph.is_cut(mixed)
    with pytest.raises(ValueError, match=r"shares \('kernel', 0\)"):
        graph.layer_invariant(mixed, last)


def test_the_first_set_of_definition_7_that_fails_is_no_cut():
    graph = read(layered([2, 2, 1]))  # E20: x1's edges alone disconnect the graph
    assert not graph.is_cut([("0.0", "1.0"), ("0.0", "1.1")])
    assert graph.is_cut([("0.0", "1.0"), ("0.1", "1.0"), ("1.1", "2.0")])


def test_weights_put_in():
    g = layered([2, 2, 1])
    graph = read(g)
    x = points(graph)
    other = graph.with_weights({("0.0", "1.0"): 5, ("1.0", "2.0"): torch.tensor(-1.0)})
    g.edges["0.0", "1.0"]["weight"], g.edges["1.0", "2.0"]["weight"] = 5.0, -1.0
    assert other == read(g)
    assert graph.with_weights(other.weights) == other
    assert other.with_weights(torch.tensor(graph.weights)) == graph
    torch.testing.assert_close(graph(x, torch.tensor(other.weights)), other(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"\('2.0', '1.0'\).*expected an edge"):
        graph.with_weights({("2.0", "1.0"): 1.0})
    with pytest.raises(ValueError, match=r"shape \(3,\), expected one per edge \(6\)"):
        graph.with_weights([1, 2, 3])
    with pytest.raises(ValueError, match="weights: got nan"):
        graph.with_weights({("0.0", "1.0"): np.nan})
    with pytest.raises(ValueError, match="read-only"):
        graph.weights[0] = 1


def test_weights_put_in_by_the_name_of_their_parameter():
    g = nx.DiGraph()
    g.add_edge("x", "a", weight=2.0, origin=("w", 1))
    g.add_edge("x", "b", weight=2.0, origin=("w", 1))
    g.add_edge("a", "y", weight=3.0, origin=("v", 0))
    g.add_edge("b", "y")
    graph = read(g)
    other = graph.with_weights({"w": torch.tensor([[7.0], [8.0]])})
    assert other.weights.tolist() == [8, 8, 3, 1]
    with pytest.raises(ValueError, match=r"'ww', expected a parameter of this graph; did you mean 'w'\?"):
        graph.with_weights({"ww": torch.ones(2)})
    with pytest.raises(ValueError, match=r"weights\['w'\]: got 1 entries, the graph uses entry 1"):
        graph.with_weights({"w": torch.ones(1)})
    with pytest.raises(ValueError, match=r"share \('w', 1\), but have the weights 5 and 2"):
        graph.with_weights({("x", "a"): 5.0})


def test_vertices_on_no_path_are_kept_and_change_nothing():
    g = nx.DiGraph()
    g.add_weighted_edges_from([("x", "h", 2.0), ("h", "y", 3.0), ("h", "dead", 5.0)])
    g.nodes["y"]["output"] = 0
    graph = read(g)
    assert "dead" in graph.vertices
    assert graph.paths() == (("x", "h", "y"),)
    assert graph.through(("h", "dead")) == 0
    assert graph.cuts() == ({("x", "h")}, {("h", "y")})
    assert graph.vertex_invariants() == {"h": 4 - 9 - 25, "dead": 25}
    assert graph(torch.ones(1, 1)).item() == 6


def test_a_vertex_may_be_input_and_output():
    g = nx.DiGraph()
    g.add_node("x", input=0, slope=-1.0)
    graph = read(g)
    assert graph.paths() == (("x",),)
    assert graph(torch.tensor([[-2.0]])).item() == 2
    assert graph.enumerate(torch.tensor([[-2.0]])).item() == -2
    assert graph.decompose()(torch.tensor([[-2.0]])).item() == 2
    assert graph.cuts() == ()
    assert not graph.is_cut([])


def lines(ax):
    """What is drawn for edges: color, width, dashed or not, start and end."""
    return [
        (to_hex(p.get_edgecolor()), p.get_linewidth(), p.get_linestyle(), p.get_path().vertices[[0, -1]].tolist())
        for p in ax.patches
    ]


@settings(QUICK, max_examples=15)
@given(graphs())
def test_drawings_go_from_left_to_right(g):
    graph = read(g)
    ax = graph.draw()
    drawn = lines(ax)
    assert len(drawn) == len(graph.edges)
    (dots,) = ax.collections
    places = dict(zip(graph.vertices, dots.get_offsets().tolist(), strict=True))
    assert len({tuple(place) for place in places.values()}) == len(places)
    for (color, _, style, ends), edge, weight, free in zip(
        drawn, graph.edges, graph.weights, graph.learnable, strict=True
    ):
        assert ends == [places[v] for v in edge]
        assert ends[0][0] < ends[1][0]
        assert color == (OKABE_ITO[0] if weight > 0 else OKABE_ITO[1]).lower()
        assert (style in ("solid", "-")) == free
    widths = [width for _, width, _, _ in drawn]
    assert np.array_equal(np.argsort(widths, kind="stable"), np.argsort(np.abs(graph.weights), kind="stable"))
    assert [t.get_text() for t in ax.texts].count("constant") == ("constant" in graph.vertices)


def test_drawings_take_axes_and_have_a_limit():
    graph = read(layered([2, 3, 1]))
    ax = Figure().subplots()
    assert graph.draw(ax) is ax
    assert {t.get_text() for t in ax.texts} >= {"0.0", "1.2", "2.0", f"{graph.weights[0]:.2g}"}
    with pytest.raises(ValueError, match="draw: got 2550 edges, expected at most 2000"):
        read(layered([1, 50, 50])).draw()
    with pytest.raises(ValueError, match="axes: got"):
        graph.draw("here")


def broken(change):
    g = nx.DiGraph()
    g.add_weighted_edges_from([("x", "h", 2.0), ("h", "y", 3.0)])
    change(g)
    return g


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.add_edges_from([("y", "z"), ("z", "h")]), "cycle 'h' -> 'y' -> 'z' -> 'h'"),
        (lambda g: g.add_edge("h", "h"), "cycle 'h' -> 'h'"),
        (lambda g: g.edges["x", "h"].update(weight=np.nan), r"weight of edge \('x', 'h'\): got nan"),
        (lambda g: g.edges["x", "h"].update(weight="2"), r"weight of edge \('x', 'h'\): got '2'"),
        (lambda g: g.edges["x", "h"].update(learnable="no"), "learnable of edge"),
        (lambda g: g.edges["x", "h"].update(origin="w"), r"origin of edge \('x', 'h'\): got 'w'"),
        (lambda g: g.nodes["h"].update(slope=np.inf), "slope of vertex 'h': got inf"),
        (lambda g: g.nodes["h"].update(input=0), "'h' has in-edges"),
        (lambda g: g.nodes["x"].update(input=-1), "input of vertex 'x': got -1"),
        (lambda g: g.nodes["x"].update(input="const"), "input of vertex 'x': got 'const'.*did you mean 'constant'"),
        (lambda g: g.nodes["x"].update(input="constant"), "got no coordinate of x"),
        (lambda g: (g.nodes["x"].update(input=0), g.add_edge("b", "h")), "'b' has no in-edges and is no input"),
        (lambda g: g.nodes["y"].update(output=1), r"output: got the places \[1\]"),
        (lambda g: g.clear(), "inputs: got no coordinate"),
    ],
)
def test_bad_graphs_are_refused(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read(broken(change))


def test_other_graphs_are_refused():
    with pytest.raises(ValueError, match="undirected"):
        read(nx.Graph([("x", "y")]))
    with pytest.raises(ValueError, match=r"multigraph.*slope 1 in between"):
        read(nx.MultiDiGraph([("x", "y")]))
    with pytest.raises(TypeError, match=r"expected a networkx.DiGraph"):
        read([("x", "y")])
    arrays = {"weights": [1.0], "slopes": [1.0, 1.0], "inputs": {"x": 0}, "outputs": ("y",)}
    with pytest.raises(ValueError, match="edges: got the unknown vertex 'h'"):
        NeuronGraph(("x", "y"), (("x", "h"),), **arrays)
    with pytest.raises(ValueError, match="vertices: got 'x' twice"):
        NeuronGraph(("x", "x"), (("x", "x"),), **arrays)
    with pytest.raises(ValueError, match="outputs: got the unknown vertex 'z'"):
        NeuronGraph(("x", "y"), (("x", "y"),), **arrays | {"outputs": ("z",)})
    with pytest.raises(ValueError, match=r"slopes: got shape \(1,\)"):
        NeuronGraph(("x", "y"), (("x", "y"),), **arrays | {"slopes": [1.0]})


def test_bad_arguments_are_refused():
    graph = read(layered([2, 2, 1]))
    with pytest.raises(ValueError, match=r"x: got shape \(3, 3\), expected \(N, 2\)"):
        graph(torch.ones(3, 3))
    with pytest.raises(ValueError, match="weights: got Tensor of shape"):
        graph(torch.ones(3, 2), torch.ones(3))
    with pytest.raises(ValueError, match=r"edge: got \('0.0', '2.0'\), expected an edge"):
        graph.through(("0.0", "2.0"))
    with pytest.raises(ValueError, match=r"edges: got '0.0'"):
        graph.is_cut(["0.0"])
    with pytest.raises(ValueError, match=r"output: got 'z', expected one of '2.0'"):
        graph.count("z")
    g = layered([2, 2, 1])
    g.edges["0.0", "1.0"]["learnable"] = False
    with pytest.raises(ValueError, match=r"cut_a: got the edge .*\('0.0', '1.0'\).*, which is not learnable"):
        read(g).layer_invariant([e for e in g.edges if e[0][0] == "0"], read(g).cuts()[0])
