"""Every quantity that find returns is conserved, has the value that T44 to T46 give it, and says why."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

import bnrank
from bnrank.networks.graph import tracing
from bnrank.theory.invariants import Conserved, Findings, find, finding
from helpers import normal
from theory.architectures import ZOO, Net, blocks, build, conv2, fc, frozen, relu

seq, flat = nn.Sequential, nn.Flatten
LOSSES = ("mse", "cross_entropy", "logistic", "own")


def data(net, shape, loss, seed):
    """Samples, targets, and the loss written out once more."""
    x = normal(6, *shape, seed=seed)
    outputs = net(x).detach()
    if loss == "cross_entropy":
        y = torch.randint(0, outputs.shape[1], (6,), generator=torch.Generator().manual_seed(seed))
        return x, y, lambda f, y: -torch.log_softmax(f, 1)[torch.arange(6), y].mean()
    y = normal(*outputs.shape, seed=seed + 1)
    if loss == "logistic":
        return x, y.sign(), lambda f, y: torch.log(1 + torch.exp(-y * f)).sum() / 6
    if loss == "own":
        return x, y, lambda f, y: (f * y).tanh().sum() + f.square().square().mean()
    return x, y, lambda f, y: ((f - y) ** 2).sum() / 6


def gradient(net, x, y, loss):
    net = copy.deepcopy(net).requires_grad_()  # frozen parameters too: a quantity has none of them
    loss(net.eval()(x), y).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in net.named_parameters()}


@pytest.mark.parametrize("name", ZOO)
def test_rates_along_the_gradient_are_zero(name):
    net, shape = build(name)
    net.eval()
    theta = {n: p.detach() for n, p in net.named_parameters()}
    found = find(net, normal(2, *shape, seed=0), verify=False)
    assert (len(found) == 0) == (name == "one layer")
    moving = {}
    for seed, loss in enumerate(LOSSES):
        x, y, function = data(net, shape, loss, 10 * seed)
        flow = gradient(net, x, y, function)
        step = 1 / max(float(g.abs().max()) for g in flow.values())
        moved = [{n: theta[n] + s * step * flow[n] for n in theta} for s in (1, -1)]
        for q in found:
            # a quadratic form: the central difference is its derivative along the flow
            rate = (q.of(moved[1]) - q.of(moved[0])) / (2 * step)
            bound = (q.scale(theta) * q.scale(flow)).sqrt()
            assert q.value(net).shape == q.shape == rate.shape == bound.shape
            error = (q.rate(net, x, y, function if loss == "own" else loss) - rate).abs()
            assert (error <= 1e-10 * bound.max()).all()
            if q.kind != "pair":
                assert (rate.abs() <= 1e-10 * bound).all(), (q.name, loss)
                moving[q.name] = max(moving.get(q.name, 0.0), float(bound.max()))
    assert all(size > 1e-3 for size in moving.values())  # zero, but not because nothing moves


def test_a_relu_leaves_the_off_diagonal_to_pairs():
    net, _ = build("mlp")
    found = find(net, normal(1, 2, seed=0))
    matrix = net[0].weight.detach() @ net[0].weight.detach().T - net[2].weight.detach().T @ net[2].weight.detach()
    torch.testing.assert_close(found["vertex 0 | 2"].value(net), matrix.diagonal())
    torch.testing.assert_close(found["pair 0 | 2"].value(net), matrix - matrix.diagonal().diag())
    assert "ReLU between" in found["vertex 0 | 2"].reason
    assert "active on the same samples" in found["pair 0 | 2"].assumption
    assert found["pair 0 | 2"].ids == ("T44", "T47")


def test_layers_are_differences_of_two_cuts():
    net, _ = build("mlp with biases")
    found = find(net, normal(1, 2, seed=0))
    layers = found.having("layer")
    assert [q.name for q in layers] == ["layer 0 | 2", "layer 2 | 4"]
    assert [q.cuts for q in layers] == [
        (("0.weight", "0.bias", "2.bias", "4.bias"), ("2.weight", "2.bias", "4.bias")),
        (("2.weight", "2.bias", "4.bias"), ("4.weight", "4.bias")),
    ]
    for name in ("mlp with biases", "identity blocks", "diagonal blocks", "free blocks", "convolutions, zeros"):
        net, shape = build(name)
        found = find(net, normal(1, *shape, seed=0))
        p = {n: t.detach() for n, t in net.named_parameters()}
        assert found.having("layer")
        for q in found.having("layer"):
            cuts = [sum(p[n].square().sum() for n in cut) for cut in q.cuts]
            torch.testing.assert_close(q.value(net), cuts[0] - cuts[1])
            assert q.ids == ("T46",)
            assert float(q.scale(p)) >= abs(float(q.value(net)))


def test_cuts_go_through_whole_residual_blocks():
    """A path along the skip crosses neither Y nor Z, so no cut lies inside an identity block (E20)."""
    found = find(build("identity blocks")[0], normal(1, 2, seed=0))
    assert [q.name for q in found.having("layer")] == ["layer u | v"]
    assert not find(build("skip from the input to the output")[0], normal(1, 2, seed=0)).having("layer")


def test_nothing_is_cut_where_a_path_goes_around_outside_the_theory():
    net = Net(lambda m, x: m.b(relu(m.a(x))) + torch.sigmoid(x), a=fc(2, 3), b=fc(3, 2)).double()
    found = find(net, normal(1, 2, seed=0))
    assert [q.kind for q in found] == ["vertex", "pair"]
    assert found.outside[0].reason


def test_what_is_outside_is_named_and_the_rest_analyzed():
    net = seq(fc(2, 3), nn.ReLU(), fc(3, 4), nn.BatchNorm1d(4), nn.ReLU(), fc(4, 3), nn.Softmax(1), fc(3, 3), fc(3, 2))
    found = find(net, torch.ones(4, 2))
    assert [q.name for q in found if q.kind != "layer"] == ["vertex 0 | 2", "pair 0 | 2", "matrix 7 | 8"]
    assert {part.type for part in found.outside} == {"BatchNorm1d", "Softmax"}
    assert "BatchNorm1d" in str(found)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (fc(2, 3), "only weight is trained"),
        (seq(nn.ReLU(), nn.Flatten()), "no parameter requires a gradient"),
        (seq(fc(2, 3), nn.Tanh(), fc(3, 2)), "outside the theory (Tanh)"),
        (seq(fc(2, 3), frozen(fc(3, 2))), "only 0.weight is trained"),
        (seq(fc(2, 2), frozen(fc(2, 2), torch.ones(2, 2)), nn.Sigmoid(), fc(2, 2)), "Sigmoid"),
    ],
)
def test_says_why_nothing_is_conserved(net, why):
    found = find(net, torch.ones(1, 2))
    assert len(found) == 0
    assert why in found.why_nothing
    assert why in str(found)


def test_findings_are_a_sequence_by_number_and_name():
    net, _ = build("mlp")
    found = find(net, normal(1, 2, seed=0))
    assert isinstance(found, Findings)
    assert isinstance(found[0], Conserved)
    assert found["vertex 0 | 2"] is found[0]
    assert found[:2] == tuple(found)[:2]
    assert len(set(found.names)) == len(found) == len(list(found))
    assert found.having("matrix") == ()
    text = str(found)
    for q in found:
        assert q.name in text
        assert q.reason in text
    with pytest.raises(ValueError, match="kind: got 'edge'"):
        found.having("edge")
    with pytest.raises(KeyError, match="vertex 0"):
        found["vertex 9"]


def test_quadratic_form():
    net, _ = build("leaky, then linear")
    a, b = ({n: normal(*p.shape, seed=seed) for n, p in net.named_parameters()} for seed in (1, 2))
    for q in find(net, normal(1, 2, seed=0)):
        torch.testing.assert_close(q.between(a, a), q.of(a))
        torch.testing.assert_close(q.between(a, b), q.between(b, a))
        total = {n: a[n] + b[n] for n in a}
        torch.testing.assert_close(q.of(total), q.of(a) + 2 * q.between(a, b) + q.of(b))
        torch.testing.assert_close(q.of({n: 3 * v for n, v in a.items()}), 9 * q.of(a))
        single = q.of({n: v.to(torch.bfloat16) for n, v in a.items()})
        assert single.dtype == torch.float64
        assert (single - q.of(a)).abs().max() < 0.02 * q.scale(a).max()
        assert not q.of({n: v.clone().requires_grad_() for n, v in a.items()}).requires_grad
        if q.kind != "pair":
            assert (q.scale(a) >= q.of(a).abs()).all()
    q = find(net, normal(1, 2, seed=0))["matrix 2 | 3"]
    with pytest.raises(ValueError, match=r"got no 3\.weight"):
        q.of({"2.weight": a["2.weight"]})


def test_a_number_per_position_takes_up_the_scaling_of_what_reads_that_position():
    net, shape = build("number per position, fc behind")
    found = [q for q in find(net, normal(1, *shape, seed=0)) if q.kind == "vertex" and "t" in q.parameters]
    t, c = net.t.detach().flatten(), net.c.weight.detach().reshape(2, 3, 2)
    expected = t.square() - c.square().sum((0, 2))
    torch.testing.assert_close(torch.cat([q.value(net) for q in found]), expected)
    assert all("one number multiplies" in q.reason for q in found)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (seq(fc(2, 9), nn.ReLU(), fc(9, 2)), r"0.weight: \(9, 2\), expected \(4, 2\)"),
        (seq(fc(2, 4), nn.ReLU(), fc(4, 3)), r"2.weight: \(3, 4\), expected \(2, 4\)"),
        (seq(fc(2, 4, True), nn.ReLU(), fc(4, 2)), r"0.bias: \(4,\), expected no such parameter"),
        (seq(fc(2, 4)), r"2.weight: no such parameter, expected \(2, 4\)"),
    ],
)
def test_another_module_is_refused(other, what):
    net = seq(fc(2, 4), nn.ReLU(), fc(4, 2))
    x, y = normal(3, 2, seed=0), normal(3, 2, seed=1)
    found = find(net, x)
    assert len(found) == 3
    for q in found:
        for wrong in (q.value, lambda m, q=q: q.rate(m, x, y)):
            with pytest.raises(ValueError, match=what):
                wrong(other)
    for wrong in (found[1].pairs, found[1].slopes, lambda m, x: found[1].closed_form_rate(m, x, y)):
        with pytest.raises(ValueError, match=what):
            wrong(other, x)
    named = {"0.weight": torch.ones(9, 2), "2.weight": torch.ones(2, 9)}
    for wrong in (found[0].of, found[0].scale):
        with pytest.raises(ValueError, match=r"got 0.weight of shape \(9, 2\), expected \(4, 2\)"):
            wrong(named)


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("cross_entropy", torch.zeros(3, 2), "class indices from 0 to 1"),
        ("cross_entropy", torch.tensor([0, 1, 2]), "class indices from 0 to 1"),
        ("cross_entropy", torch.tensor([0, 1]), r"of shape \(3,\)"),
        ("logistic", torch.tensor([[0, 1], [1, 0], [1, 1]]), "-1 and 1"),
        ("mse", [[0.0, 1.0]], "expected a tensor"),
    ],
)
def test_targets_that_do_not_fit_the_loss(loss, y, message):
    net = seq(fc(2, 4), nn.ReLU(), fc(4, 2))
    x = normal(3, 2, seed=0)
    with pytest.raises((TypeError, ValueError), match=message):
        find(net, x)[0].rate(net, x, y, loss)


def test_the_module_is_left_as_it_is():
    net = seq(fc(2, 3, True), nn.ReLU(inplace=True), nn.Dropout(0.0), fc(3, 2)).train()
    net[0].bias.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    x, y = torch.ones(3, 2), torch.zeros(3, 2)
    kept = x.clone()
    for q in find(net, x):
        q.rate(net, x, y)
        q.value(net)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, kept)
    assert net.training
    assert [p.requires_grad for p in net.parameters()] == [True, False, True]
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(before[n], v) for n, v in net.state_dict().items())


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(context):
    net, _ = build("mlp")
    x, y = normal(3, 2, seed=0), normal(3, 2, seed=1)
    expected = [q.rate(net, x, y) for q in find(net, x)]
    with context():
        for q, rate in zip(find(net, x.clone()), expected, strict=True):
            torch.testing.assert_close(q.rate(net, x.clone(), y.clone()), rate)


def test_a_wrong_claim_is_caught(monkeypatch):
    """The graph says that there is no activation: then the matrix would be conserved."""
    net, _ = build("mlp")
    graph, tracer = tracing.run(net, normal(1, 2, seed=0))
    nodes = tuple(dataclasses.replace(n, slope=1.0) if n.op == "activation" else n for n in graph)
    lying = dataclasses.replace(graph, nodes=nodes)
    monkeypatch.setattr(finding, "run", lambda net, x: (lying, tracer))
    assert find(net, normal(2, 2, seed=0), verify=False).having("matrix")
    with pytest.raises(RuntimeError, match="error in bnrank"):
        find(net, normal(2, 2, seed=0))


def test_refuses_what_it_cannot_compute():
    net, _ = build("mlp")
    x = normal(3, 2, seed=0)
    q = find(net, x)[0]
    with pytest.raises(ValueError, match="loss: got 'mae'"):
        q.rate(net, x, x, "mae")
    with pytest.raises(ValueError, match=r"y: got shape \(3, 5\)"):
        q.rate(net, x, normal(3, 5, seed=0))
    with pytest.raises(ValueError, match="loss: returned"):
        q.rate(net, x, x, lambda f, y: f)
    with pytest.raises(TypeError, match="net: got 'net'"):
        find("net", x)
    shared = seq(fc(2, 2), nn.ReLU(), fc(2, 2))
    shared[2].weight = shared[0].weight
    with pytest.raises(ValueError, match="weight"):
        find(shared, torch.ones(1, 2))


def test_what_nothing_reads_is_said_to_be_so():
    net = Net(lambda m, x: m.b(m.a(x)[:, 1:]), a=fc(2, 3), b=fc(2, 2)).double()
    found = find(net, normal(1, 2, seed=0))
    assert [q.name for q in found] == ["vertex a | nothing", "matrix a | b", "layer a | b"]
    assert "nothing reads it" in found[0].reason
    assert found[0].ids == ("no gradient",)
    net = Net(lambda m, x: m.b(functional.pad(relu(m.a(x))[:, 2:], (0, 2))), a=fc(2, 4), b=fc(4, 2)).double()
    found = find(net, normal(1, 2, seed=0))
    still = [q for q in found if "nothing" in q.name]
    assert [q.name for q in still] == ["vertex a | nothing", "matrix nothing | b"]
    assert all(q.ids == ("no gradient",) and "no gradient" in q.reason for q in still)
    net = Net(lambda m, x: m.b(m.a(x)[:, 1:]), a=fc(2, 3), b=fc(2, 2)).double()
    found = find(net, normal(1, 2, seed=0))
    torch.testing.assert_close(found[0].value(net), net.a.weight[:1].detach().square().sum(1))


def test_frozen_parameters_do_not_enter():
    net, _ = build("frozen first")
    found = find(net, normal(1, 2, seed=0))
    assert {n for q in found for n in q.parameters} == {"2.weight", "3.weight"}


def test_a_resnet():
    """Strides, max pooling, projections, ReLU after the sums: three streams, two inner values per pair of blocks."""

    class Block(nn.Module):
        def __init__(self, n_in, n, stride):
            super().__init__()
            self.a, self.b = conv2(n_in, n, 3, stride=stride, padding=1), conv2(n, n, 3, padding=1)
            self.down = conv2(n_in, n, 1, stride=stride) if stride > 1 else None

        def forward(self, x):
            return functional.relu(self.b(functional.relu(self.a(x))) + (x if self.down is None else self.down(x)))

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        stem = (conv2(3, 8, 7, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        body = [Block(i, o, s) for i, o, s in ((8, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1))]
        net = seq(*stem, *body, nn.AdaptiveAvgPool2d(1), flat(), fc(16, 5))
    found = find(net, torch.ones(1, 3, 32, 32))
    streams = ["vertex 0 + 3.b + 4.b | 3.a + 4.a + 2 more", "vertex 5.b + 5.down + 6.b | 6.a + 9"]
    assert [q.name for q in found.having("vertex") if "down" in q.name or "0 +" in q.name] == streams
    assert [q.size for q in found.having("vertex")] == [8, 8, 8, 16, 16, 16]
    assert "MaxPool2d" in found[streams[0]].reason
    assert not any(q.name == streams[0].replace("vertex", "pair") for q in found)
    assert [q.name for q in found.having("layer")] == [
        "layer 0 | 5.a + 5.down",
        "layer 5.a | 5.b",
        "layer 5.b + 5.down | 9",
    ]


def test_doctest_names_are_public():
    assert bnrank.theory.invariants.find is find


def test_linear_stream_is_one_matrix():
    found = find(blocks("identity", linear=True).double(), normal(1, 2, seed=0))
    q = found.having("matrix")[0]
    assert q.ids == ("T44-T45, identity stream",)
    assert q.layers == (("u.weight", "z1.weight", "z2.weight"), ("y1.weight", "y2.weight", "v.weight"))
