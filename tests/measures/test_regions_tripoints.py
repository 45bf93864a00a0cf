"""Class regions and tripoints, against Voronoi diagrams, refined grids, and networks built by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import Voronoi

from bnrank import MLP, regions
from bnrank.measures.regions import pieces
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import from_layers
from helpers import normal

from .regions_common import network

FLAT = [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def nearest(sites):
    """A linear classifier: the class of x is the nearest of the sites."""
    sites = double(sites)
    return from_layers([sites], [-(sites**2).sum(1) / 2])


def through_relus(net):
    """The same function behind a layer of ReLUs whose kinks cross the plane."""
    turn = normal(2, 2, seed=5)
    first = torch.cat([turn, -turn])
    weight = net.weights[0].detach() @ torch.cat([turn.inverse(), -turn.inverse()], 1)
    return from_layers([first, weight], [torch.zeros(4), net.biases[0].detach()])


def classes_at(net, plane, ab):
    origin, u, v = (torch.as_tensor(p, dtype=torch.float64) for p in plane)
    with torch.no_grad():
        return as_mlp(net)(origin + ab[..., :1] * u + ab[..., 1:] * v).argmax(-1)


def blocks(net, plane, low, high, n):
    """Lower corners of all squares of 2 x 2 blocks that hold three classes, of n x n blocks with 6 x 6 points each."""
    side = (high - low) / n
    axes = [torch.from_numpy(low[i] + side[i] / 6 * (np.arange(6 * n) + 0.5)) for i in range(2)]
    c = classes_at(net, plane, torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)).numpy()
    there = np.eye(c.max() + 1, dtype=bool)[c].reshape(n, 6, n, 6, -1).any((1, 3))
    there = there[1:] | there[:-1]
    there = there[:, 1:] | there[:, :-1]
    return low + np.argwhere(there.sum(-1) >= 3) * side, side


def on_a_grid(net, plane, bounds, depth=5):
    """Slow oracle: squares that hold three classes on a grid, and parts of squares beside them under refinement."""
    low, high = np.broadcast_to(np.asarray(bounds, float), (2, 2)).T
    found, side = blocks(net, plane, low, high, 50)
    for _ in range(depth):
        finer = [blocks(net, plane, spot - side, spot + 3 * side, 16)[0] for spot in found]
        side = side / 4
        found = np.concatenate([*finer, np.zeros((0, 2))])
        found = found[np.unique(np.round((found - low) / side).astype(int), axis=0, return_index=True)[1]]
    found = found + side
    return found[((low < found) & (found < high)).all(1)]


def around(net, plane, point, radius):
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    circle = torch.as_tensor(point) + radius * torch.stack([angles.cos(), angles.sin()], 1)
    return set(classes_at(net, plane, circle).tolist())


def consistent(net, plane, bounds, found):
    """Cells fill the rectangle and have the class of the network; boundaries lie between the classes they name."""
    bounds = np.broadcast_to(bounds, (2, 2))
    total = float(np.diff(bounds).prod())
    assert float(found.areas.sum()) + found.tied == pytest.approx(total, rel=1e-9)
    size = math.sqrt(total)
    for cell, label in zip(found.cells, found.cell_classes.tolist(), strict=True):
        edge = cell.roll(-1, 0) - cell
        area = float((cell[:, 0] * cell.roll(-1, 0)[:, 1] - cell[:, 1] * cell.roll(-1, 0)[:, 0]).sum() / 2)
        if label >= 0 and area > 1e-12 * total:
            assert (edge[:, 0] * edge.roll(-1, 0)[:, 1] - edge[:, 1] * edge.roll(-1, 0)[:, 0] > -1e-9 * total).all()
            assert int(classes_at(net, plane, cell.mean(0))) == label
    for (start, stop), pair in zip(found.boundaries, found.boundary_classes.tolist(), strict=True):
        across = (stop - start).flip(0) * double([1, -1])
        if min(pair) >= 0 and float(across.norm()) > 1e-5 * size:
            step = 1e-7 * size * across / across.norm()
            middle = (start + stop) / 2
            assert sorted(classes_at(net, plane, torch.stack([middle - step, middle + step])).tolist()) == pair


@pytest.mark.parametrize("number", [3, 5, 12])
@pytest.mark.parametrize("relus", [False, True])
def test_nearest_sites_meet_in_the_corners_of_voronoi_cells(number, relus):
    sites = normal(number, 2, seed=number)
    net = through_relus(nearest(sites.tolist())) if relus else nearest(sites.tolist())
    found = regions.tripoints(net, *FLAT, (-3, 3))
    diagram = Voronoi(sites.numpy())
    corners = diagram.vertices[(np.abs(diagram.vertices) < 3).all(1)]
    order = np.lexsort((corners[:, 1], corners[:, 0]))
    np.testing.assert_allclose(found.points, corners[order], atol=1e-9)
    assert torch.equal(found.points, found.inputs)
    for point, classes in zip(found.points, found.classes, strict=True):
        distances = (sites - point).norm(dim=1)
        assert classes == tuple(sorted(distances.argsort()[:3].tolist()))
    consistent(net, FLAT, (-3, 3), found)
    assert found.complete


def test_a_plane_through_many_dimensions():
    origin, u, v = normal(3, 6, seed=1)
    plane = origin, 2 * u, v + u
    sites = origin + double([[1, 0], [0, 1], [-1, -1]]) @ torch.stack([u, v])
    net = from_layers([sites], [-(sites**2).sum(1) / 2])
    bounds = ((-3, 4), (-5, 4))
    found = regions.tripoints(net, *plane, bounds)
    ((a, b),) = found.points.tolist()
    (x,) = found.inputs
    assert torch.allclose(x, origin + 2 * a * u + b * (v + u))
    distances = (sites - x).norm(dim=1)
    assert torch.allclose(distances, distances[:1].expand(3))
    consistent(net, plane, bounds, found)


def test_four_classes_at_a_point_are_one_tripoint():
    net = from_layers([double([[1, 0], [0, 1], [-1, 0], [0, -1]])], [double([0.1, 0.2, -0.1, -0.2])])
    found = regions.tripoints(net, *FLAT)
    assert found.classes == ((0, 1, 2, 3),)
    assert torch.allclose(found.points, double([[-0.1, -0.2]]))
    assert len(found.boundaries) == 4
    assert str(found) == "1 tripoint of 4 classes"


@pytest.mark.parametrize(("apart", "number"), [(1e-5, 2), (1e-7, 2), (1e-10, 1)])
def test_tripoints_that_are_close_are_one(apart, number):
    net = from_layers([double([[1, 0], [0, 1], [-1, 0], [0, -1]])], [double([apart, 0, apart, 0])])
    found = regions.tripoints(net, *FLAT)
    assert len(found) == number
    assert {k for classes in found.classes for k in classes} == {0, 1, 2, 3}


def test_four_classes_on_a_line_have_none():
    k = torch.arange(4.0)[:, None]
    net = from_layers([k * double([[3.0, 1.0]])], [-(k[:, 0] ** 2)])
    found = regions.tripoints(net, *FLAT, (-4, 4))
    assert (len(found), len(found.boundaries)) == (0, 3)
    assert (found.areas > 0).all()


def test_boundaries_along_kinks_are_found():
    """Three classes, each one alone on whole polygons: x > 0 and y > 0, x < 0, x > 0 and y < 0."""
    first = double([[1, 0], [-1, 0], [1, 1], [1, -1]])
    second = double([[1, -1, 0, -1], [0, 1, 0, 0], [1, -1, -1, 0]])  # min(x, y), max(-x, 0), min(x, -y)
    net = from_layers([first, second, torch.eye(3)], [-first @ double([0.25, -0.5]), torch.zeros(3), torch.zeros(3)])
    found = regions.tripoints(net, *FLAT)
    assert found.classes == ((0, 1, 2),)
    assert torch.allclose(found.points, double([[0.25, -0.5]]))
    assert found.areas.tolist() == pytest.approx([0.75 * 1.5, 1.25 * 2, 0.75 * 0.5])
    lengths = {}
    for ends, pair in zip(found.boundaries, found.boundary_classes.tolist(), strict=True):
        lengths[tuple(pair)] = lengths.get(tuple(pair), 0) + float((ends[1] - ends[0]).norm())
    assert lengths == pytest.approx({(0, 1): 1.5, (0, 2): 0.75, (1, 2): 0.5})
    consistent(net, FLAT, (-1, 1), found)


@pytest.mark.parametrize("seed", range(4))
def test_classes_that_are_maxima_of_two_affine_functions(seed):
    """Pairs of sites have one class: of the corners of Voronoi cells, those of three classes are left."""
    sites = normal(12, 2, seed=seed)
    rows, offsets = sites, -(sites**2).sum(1) / 2
    first = torch.cat([rows[1::2] - rows[::2], rows[::2], -rows[::2]])
    bias = torch.cat([offsets[1::2] - offsets[::2], offsets[::2], -offsets[::2]])
    eye = torch.eye(6, dtype=torch.float64)
    net = from_layers([first, torch.cat([eye, eye, -eye], 1)], [bias, torch.zeros(6)])
    found = regions.tripoints(net, *FLAT, (-3, 3))
    expected = {}
    for corner in Voronoi(sites.numpy()).vertices:
        classes = {i // 2 for i in (sites - torch.from_numpy(corner)).norm(dim=1).argsort()[:3].tolist()}
        if len(classes) == 3 and np.abs(corner).max() < 3:
            expected[tuple(corner)] = tuple(sorted(classes))
    assert found.classes == tuple(expected[corner] for corner in sorted(expected))
    assert len(found) > 2
    np.testing.assert_allclose(found.points, sorted(expected), atol=1e-9)
    consistent(net, FLAT, (-3, 3), found)


def test_a_plateau_of_ties_belongs_to_no_class():
    """f = (0, z, -z): z = 0 on a wedge left of x = 0 above y = 0, where ``argmax`` takes the first class."""
    first = double([[1, 0], [-1, 0], [0, 1]])
    second = double([[1, 0, 0], [0, 1, -1], [0, 0, 0]])  # relu(x), relu(-x - relu(y)) if x < 0
    net = from_layers([first, second, double([[0, 0, 0], [1, -1, 0], [-1, 1, 0]])])
    assert around(net, FLAT, [0.0, 0.0], 0.1) == {0, 1, 2}
    found = regions.tripoints(net, *FLAT)
    assert len(found) == 0
    assert found.areas.tolist() == pytest.approx([0, 2, 1.5])
    assert found.tied == pytest.approx(0.5)
    assert "0.5 of the area without a class" in str(found)
    assert set(map(tuple, found.boundary_classes.tolist())) == {(-1, 1), (-1, 2), (1, 2)}


def winners(net, point, radius):
    """Classes that win alone somewhere on a small circle."""
    angles = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    with torch.no_grad():
        largest, which = net(point + radius * torch.stack([angles.cos(), angles.sin()], 1)).topk(2)
    return set(which[largest[:, 0] > largest[:, 1], 0].tolist())


@pytest.mark.parametrize("widths", [[2, 3, 4], [2, 6, 6, 4], [2, 4, 4, 4, 4]])
def test_where_all_last_neurons_are_dead_all_outputs_tie(widths):
    """Outputs without bias: their vertices lie on kinks, where what is dead inside is rounding and no tie-breaker."""
    plateaus = 0
    for seed in range(12):
        net = network(widths, seed=seed, dtype=torch.float64)
        net.biases[-1].data.zero_()
        found = regions.tripoints(net, *FLAT, (-3, 3))
        for cell, label in zip(found.cells, found.cell_classes.tolist(), strict=True):
            if not bool(net(cell.mean(0)).any()):
                plateaus += 1
                assert label == -1
        for point, classes in zip(found.points, found.classes, strict=True):
            assert winners(net, point, 1e-6) == set(classes)
    assert plateaus >= 3


def test_the_plateau_of_a_plain_network_is_tied():
    net = MLP([2, 3, 4], seed=3, dtype=torch.float64)
    axis = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    zero = (net(torch.cartesian_prod(axis, axis)) == 0).all(1)
    found = regions.tripoints(net, *FLAT)
    assert found.tied == pytest.approx(4 * float(zero.double().mean()), abs=0.01)
    assert found.tied > 0.9
    assert len(found) == 0


def test_a_class_that_only_ties_on_a_line_is_not_there():
    net = from_layers([double([[1, 0], [-1, 0], [0, 0], [0, 3]])], [double([0, 0, 0, -2])])
    found = regions.tripoints(net, *FLAT)
    assert found.classes == ((0, 1, 3),)
    assert float(found.areas[2]) == 0


def test_twin_outputs_give_their_area_to_no_class():
    found = regions.tripoints(from_layers([double([[1, 0], [1, 0], [-1, 0], [0, 1]])]), *FLAT)
    assert (found.areas > 0).tolist() == [False, False, True, True]
    assert found.tied == pytest.approx(1.5)
    assert len(found) == 0


@pytest.mark.parametrize(("edge", "seen"), [(0.4999, False), (0.5, True), (0.5001, True)])
def test_at_the_edge_of_the_rectangle(edge, seen):
    """Three sectors meet in (0.5, 0): whether all, or only two, reach it from the left decides at the edge itself."""
    reaching = nearest([[-0.5, 0], [1.1, 0.8], [1.1, -0.8]])
    assert len(regions.tripoints(reaching, *FLAT, ((-1, edge), (-1, 1)))) == seen
    behind = nearest([[1.5, 0], [-0.1, 0.8], [-0.1, -0.8]])
    assert len(regions.tripoints(behind, *FLAT, ((-1, edge), (-1, 1)))) == (edge > 0.5)


NETWORKS = {
    "shallow": (network([2, 12, 4], seed=8), FLAT, (-3, 3)),
    "deep": (network([2, 10, 10, 10, 10, 5], seed=14), FLAT, (-3, 3)),
    "leaky": (network([2, 9, 9, 4], seed=6, slope=0.3), FLAT, (-3, 3)),
    "negative slope": (network([2, 9, 9, 4], seed=12, slope=-0.5), FLAT, (-3, 3)),
    "float32": (network([2, 15, 15, 6], seed=5, dtype=torch.float32), FLAT, ((-2, 3), (-1, 4))),
    "a plane": (network([7, 12, 12, 8], seed=6), tuple(normal(3, 7, seed=8)), (-2, 2)),
    "many classes": (network([3, 30, 10], seed=7), tuple(normal(3, 3, seed=9)), (-2, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_tripoints_are_those_of_a_refined_grid(name):
    net, plane, bounds = NETWORKS[name]
    found = regions.tripoints(net, *plane, bounds)
    points = found.points.numpy()
    seen = on_a_grid(net, plane, bounds)
    assert len(seen) > 0
    distances = np.linalg.norm(seen[:, None] - points, axis=2)
    assert distances.min(1).max() < 3e-3
    assert len(points) == len(np.unique(distances.argmin(1)))  # and the grid has missed none
    for point, classes in zip(points, found.classes, strict=True):
        for radius in (1e-5, 1e-7):
            assert around(net, plane, point, radius) == set(classes)
    consistent(net, plane, bounds, found)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    before=st.lists(st.integers(1, 6), max_size=2),
    after=st.lists(st.integers(1, 6), max_size=2),
    slope=st.sampled_from([0.0, 0.3, -0.5]),
    integers=st.booleans(),
)
def test_a_function_of_one_hidden_number_has_none(seed, before, after, slope, integers):
    """T17: f = h o z with a scalar z; whole numbers make plateaus and ties."""
    net = network([3, *before, 1, *after, 5], seed=seed, slope=slope)
    if integers:
        for parameter in net.parameters():
            parameter.data = parameter.data.mul(2).round()
    plane = (torch.zeros(3), torch.eye(3)[0], torch.eye(3)[1]) if integers else normal(3, 3, seed=seed)
    found = regions.tripoints(net, *plane, (-5, 5))
    assert len(found) == 0
    consistent(net, plane, (-5, 5), found)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    widths=st.lists(st.integers(1, 6), max_size=3),
    integers=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_cells_fill_the_rectangle_and_tripoints_have_their_classes(seed, widths, integers, scale):
    net = network([2, *widths, 4], seed=seed)
    if integers:
        for parameter in net.parameters():
            parameter.data = parameter.data.mul(2).round()
    found = regions.tripoints(net, *FLAT, (-scale, scale))
    consistent(net, FLAT, (-scale, scale), found)
    labels = found.cell_classes.tolist()
    for point, classes in zip(found.points, found.classes, strict=True):
        near = [
            label
            for cell, label in zip(found.cells, labels, strict=True)
            if label >= 0 and float((cell - point).norm(dim=1).min()) < 1e-8 * scale
        ]
        assert set(near) <= set(classes)
        assert len(classes) >= 3


def test_the_limit_is_kept_and_told():
    net, plane, bounds = NETWORKS["deep"]
    found = regions.tripoints(net, *plane, bounds, max_regions=7)
    assert not found.complete
    assert "the rectangle was not fully covered" in str(found)
    assert float(found.areas.sum()) < 64


def test_chunks_make_no_difference(monkeypatch):
    net, plane, bounds = NETWORKS["deep"]
    whole = regions.tripoints(net, *plane, bounds)
    monkeypatch.setattr(pieces, "BATCH", 7)
    parts = regions.tripoints(net, *plane, bounds)
    assert torch.allclose(whole.points, parts.points)
    assert torch.allclose(whole.areas, parts.areas)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "linearly independent", {"v": [2.0, 0.0]}),
        (ValueError, "bounds: got .*expected low < high", {"bounds": (1, -1)}),
        (ValueError, r"origin: got shape \(3,\)", {"origin": torch.zeros(3)}),
        (TypeError, "max_regions", {"max_regions": 1.5}),
        (TypeError, "Softmax|Tanh", {"net": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())}),
        (ValueError, "net: got one output", {"net": network([2, 3, 1])}),
        (ValueError, "1e150", {"net": from_layers([double([[1e200, 0], [0, 1]])])}),
    ],
)
def test_bad_input_is_refused_by_name(error, match, change):
    arguments = {"net": NETWORKS["shallow"][0], "origin": [0.0, 0.0], "u": [1.0, 0.0], "v": [0.0, 1.0]}
    with pytest.raises(error, match=match):
        regions.tripoints(**(arguments | change))


def test_the_network_is_left_as_it_is():
    net, plane, bounds = NETWORKS["float32"]
    before = [p.clone() for p in net.parameters()]
    regions.tripoints(net, *plane, bounds)
    assert all(torch.equal(p, q) for p, q in zip(before, net.parameters(), strict=True))
    assert next(net.parameters()).dtype == torch.float32
