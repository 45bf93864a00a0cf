"""Networks whose rows are no independent samples, as the nodes of a graph: what errors say, and remedies."""

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.measures import ntk
from helpers import normal

NODES, EDGES = normal(20, 5).float(), torch.randint(20, (2, 40), generator=torch.Generator().manual_seed(0))


class Graph(nn.Module):
    """Two layers that sum over the neighbors of a node; the leading dimensions of x are kept, or are refused."""

    def __init__(self, several=True):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.several = nn.Linear(5, 12), nn.Linear(12, 3), several
        self.register_buffer("adjacent", (torch.rand(20, 20) > 0.7).float())

    def forward(self, x):
        if x.ndim > 2 and not self.several:
            raise ValueError("expected the nodes of one graph")
        return self.b((self.adjacent @ self.a(x)).relu())


class Edges(nn.Module):
    """As a network of torch_geometric: nodes and edges."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x, edges):
        h = self.a(x)
        return self.b(torch.zeros_like(h).index_add(-2, edges[1], h[..., edges[0], :]).relu())


class Wrapped(nn.Module):
    """What the errors advise: the edges as a buffer."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("edges", EDGES)

    def forward(self, x):
        return self.net(x, self.edges)


class Each(nn.Module):
    """What the errors advise for a network of one graph."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return torch.stack([self.net(graph) for graph in x])


MEASURES = {
    "profile": (bnrank.profile, 2),
    "read": (bnrank.networks.read, 2),
    "bottleneck": (bnrank.bottleneck, 2),
    "compare": (lambda net, x: bnrank.compare(net, net, x), 2),
    "check": (bnrank.check, 2),
    "jacobian": (lambda net, x: bnrank.Jacobian(net, x).singular_values, 2),
    "ntk": (ntk.trace, 1),
    "compress": (lambda net, x: bnrank.compress(net, x, tune=0), 2),
}


@pytest.mark.parametrize("name", MEASURES)
def test_an_error_says_on_how_many_rows_a_network_was_run(name):
    run, count = MEASURES[name]
    with pytest.raises(ValueError, match=r"^(net|a): Graph runs on the 20 rows of x together, but not on") as caught:
        run(Graph(), NODES)
    text = str(caught.value)
    assert f"but not on {count} row{'s' * (count > 1)}: mat1 and mat2 shapes cannot be multiplied (20x20 and" in text
    assert "bnrank takes rows as independent samples" in text
    assert "give one graph per sample, x of shape (N, 20, 5), such as x[None] for one" in text


def test_one_graph_per_sample_is_measured():
    net, x = Graph(), normal(60, 20, 5).float()
    ds = bnrank.profile(net, x)
    assert ds.units.values.tolist() == [12, 3]
    own = net.double()
    rows = (own.adjacent @ own.a(x.double())).relu().detach()
    np.testing.assert_allclose(
        ds.activation_singular_values[0],
        torch.linalg.svdvals(rows.flatten(1))[: ds.sizes["index"]] / 60**0.5,
        rtol=1e-9,
    )
    assert bnrank.profile(Graph(), NODES[None]).sizes["sample"] == 1
    alone = bnrank.profile(Graph())
    first = alone.weight_singular_values.values[alone.layer_name == "a"][0]
    np.testing.assert_allclose(first[:5], ds.weight_singular_values[0, :5], rtol=1e-6)


def test_a_network_of_one_graph_only_is_told_to_be_wrapped():
    with pytest.raises(ValueError, match="wrap it in a module that takes one graph per sample") as caught:
        bnrank.profile(Graph(several=False), NODES)
    assert "x of shape (N, 20, 5)" in str(caught.value)
    ds, same = (bnrank.profile(net, normal(30, 20, 5)) for net in (Each(Graph(several=False)), Graph()))
    np.testing.assert_allclose(ds.jacobian_singular_values, same.jacobian_singular_values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ds.stable_rank, same.stable_rank)


@pytest.mark.parametrize("x", [(NODES, EDGES), {"x": NODES, "edges": EDGES}], ids=["tuple", "mapping"])
def test_inputs_that_all_samples_share_belong_into_the_network(x):
    with pytest.raises(
        ValueError, match=r"^x: got shapes \(20, 5\), \(2, 40\), expected tensors with one entry"
    ) as got:
        bnrank.profile(Edges(), x)
    assert "keep what all samples share, such as the edges of a graph, as a buffer of a module that wraps" in str(
        got.value
    )
    ds = bnrank.profile(Wrapped(Edges()), NODES[None])
    assert ds.layer_name.values.tolist() == ["net.a", "net.b"]
    net = Edges()
    adjacent = torch.zeros(20, 20).index_put((EDGES[1], EDGES[0]), torch.ones(40), accumulate=True)
    norms = (adjacent @ net.a(NODES)).relu().norm()
    assert float(ds.activation_singular_values[0, 0]) == pytest.approx(float(norms), rel=1e-5)  # of one sample
    assert bnrank.profile(Edges()).sizes["layer"] == 2


def test_a_network_that_fails_on_all_rows_is_not_put_down_to_them():
    with pytest.raises(ValueError, match=r"^net: Linear failed on x of shape \(N, 5\)") as caught:
        bnrank.profile(nn.Linear(4, 2), NODES)
    assert "rows" not in str(caught.value)


class ByNumpy(nn.Module):
    """Computes its first step outside PyTorch, which no gradient passes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(torch.from_numpy(np.sin(x.numpy())))))


def test_a_network_that_no_gradient_enters_has_an_ntk():
    net, x = ByNumpy(), normal(20, 3)
    traces = bnrank.profile(net, x)["ntk_trace"].values
    net = net.double()
    for row, trace in zip(x.double(), traces, strict=True):
        out = net(row[None])[0]
        squares = [g.square().sum() for y in out for g in torch.autograd.grad(y, net.parameters(), retain_graph=True)]
        assert trace == pytest.approx(float(sum(squares)), rel=1e-8)
