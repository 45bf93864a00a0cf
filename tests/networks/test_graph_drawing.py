import itertools

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import nn

import bnrank
from bnrank.networks.graph import trace
from helpers import normal
from networks.graph_modules import Branches, DenseNet, ResNet, Skips, TransformerBlock, seeded

NETS = {
    "mlp": (lambda: bnrank.MLP([3, 5, 2]), (3,)),
    "deep": (lambda: bnrank.MLP([3, *[100] * 20, 2]), (3,)),
    "resnet": (lambda: ResNet([4, 4, 6, 6, 8, 8, 10, 10], norm=True), (2, 16, 16)),
    "densenet": (lambda: DenseNet(5), (4,)),
    "skips": (Skips, (4,)),
    "transformer": (TransformerBlock, (5, 4)),
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)), (1, 8, 8)),
    "branches": (Branches, (4,)),
    "one": (lambda: nn.Linear(3, 1), (3,)),
}


def drawn(name):
    make, shape = NETS[name]
    graph = trace(seeded(make), normal(2, *shape))
    ax = graph.draw()
    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    return graph, ax, canvas.get_renderer()


@pytest.mark.parametrize("name", NETS)
def test_labels_and_boxes_do_not_overlap(name):
    graph, ax, renderer = drawn(name)
    boxes = [patch.get_window_extent(renderer) for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    assert len(boxes) == len(graph)
    texts = [text.get_window_extent(renderer) for text in ax.texts]
    assert len(texts) >= len(graph)
    for one, two in itertools.combinations(boxes, 2):
        assert not one.overlaps(two)
    for one, two in itertools.combinations(texts, 2):
        assert not one.overlaps(two)
    for label, box in zip((t for t in ax.texts if t.get_size() == 8), boxes, strict=True):
        extent = label.get_window_extent(renderer)
        assert box.x0 - 1 <= extent.x0 <= extent.x1 <= box.x1 + 1
        assert box.y0 - 1 <= extent.y0 <= extent.y1 <= box.y1 + 1
    legend = ax.get_legend().get_window_extent(renderer)
    assert not any(legend.overlaps(box) for box in [*boxes, *texts])
    for extent in [*boxes, *texts]:
        assert ax.bbox.x0 - 1 <= extent.x0 <= extent.x1 <= ax.bbox.x1 + 1
        assert ax.bbox.y0 - 1 <= extent.y0 <= extent.y1 <= ax.bbox.y1 + 1


def test_left_to_right_within_a_line():
    graph, ax, renderer = drawn("skips")
    boxes = [patch.get_window_extent(renderer) for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    middle = {node.name: (box.x0 + box.x1) / 2 for node, box in zip(graph, boxes, strict=True)}
    for node in graph:
        assert all(middle[name] < middle[node.name] for name in node.inputs)


def test_kinds_have_their_own_colors():
    graph, ax, _ = drawn("resnet")
    boxes = [patch for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    colors = {}
    for node, box in zip(graph, boxes, strict=True):
        colors.setdefault(node.op, set()).add(box.get_facecolor())
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == len(colors)
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(named) == len(colors) - 1  # the input says so itself


def test_draws_into_given_axes():
    ax = Figure().subplots()
    graph = trace(bnrank.MLP([3, 4, 2]), torch.ones(2, 3))
    assert graph.draw(ax) is ax
    with pytest.raises(ValueError, match="axes: got"):
        graph.draw("here")


def test_table():
    text = str(trace(seeded(TransformerBlock), normal(2, 5, 4)))
    lines = text.splitlines()
    assert lines[0] == "TransformerBlock: 9 nodes"
    assert lines[1].split() == ["node", "does", "takes", "gives", "parameters"]
    assert "outside the theory:" in lines
    assert any(
        line.strip() == "norm1 (LayerNorm): normalization: divides by a function of the values" for line in lines
    )
    assert any("up.weight, up.bias" in line and "5x8" in line for line in lines)


def test_fixed_parameters_are_marked_in_the_table():
    net = bnrank.MLP([3, 4, 2])
    net.layers[0].weight.requires_grad_(False)
    assert "layers.0.weight (fixed), layers.0.bias" in str(trace(net, torch.ones(2, 3)))


def test_unknown_nodes_are_named():
    with pytest.raises(KeyError, match=r"no node 'layers_7'; did you mean 'layers_[01]'"):
        trace(bnrank.MLP([3, 4, 2]), torch.ones(2, 3))["layers_7"]
