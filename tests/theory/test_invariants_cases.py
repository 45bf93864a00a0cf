"""The cases of T45 with their flattenings, written out."""

import pytest
import torch
from torch import nn

from bnrank.theory.invariants import find
from helpers import normal
from theory.architectures import Net, conv, conv2, fc, relu


def squares(w):
    return w.flatten(1) @ w.flatten(1).T


def columns(k):
    """A convolution's or a matrix's weights, (out k) x in."""
    return k.movedim(1, -1).reshape(-1, k.shape[1])


def by_channel(v, channels):
    """A matrix behind a flattened convolution, one column per channel."""
    return v.reshape(len(v), channels, -1).permute(0, 2, 1).reshape(-1, channels)


def block(d, n=4, *, bend=False):
    """A residual block x -> z sigma(y x) + d x."""

    def forward(m, h):
        skipped = h if d == "identity" else m.d * h if d == "diagonal" else m.d(h)
        return skipped + m.z(relu(m.y(h)) if bend else m.y(h))

    held = {"diagonal": normal(n, seed=1), "free": fc(n, n)}
    return Net(forward, y=fc(n, 3), z=fc(3, n), **({"d": held[d]} if d in held else {}))


def written(p, name):
    """[Z D] of a free or diagonal block."""
    d = p[f"{name}.d"].diag() if f"{name}.d" in p else p[f"{name}.d.weight"]
    return torch.cat([p[f"{name}.z.weight"], d], 1)


def read(p, name):
    """[Y; D]."""
    d = p[f"{name}.d"].diag() if f"{name}.d" in p else p[f"{name}.d.weight"]
    return torch.cat([p[f"{name}.y.weight"], d])


seq = nn.Sequential
flat = nn.Flatten
# network, sample, kind, statement, W1 W1^T - W2^T W2
CASES = {
    "fc, fc": (
        lambda: seq(fc(3, 4), fc(4, 2)),
        (3,),
        "matrix",
        "T45 (1)",
        lambda p: squares(p["0.weight"]) - squares(p["1.weight"].T),
    ),
    "fc with bias, fc": (
        lambda: seq(fc(3, 4, True), fc(4, 2, True)),
        (3,),
        "matrix",
        "T45 (1)",
        lambda p: squares(p["0.weight"]) + torch.outer(p["0.bias"], p["0.bias"]) - squares(p["1.weight"].T),
    ),
    "fc, relu, fc": (
        lambda: seq(fc(3, 4), nn.ReLU(), fc(4, 2)),
        (3,),
        "vertex",
        "T45 (1)",
        lambda p: squares(p["0.weight"]) - squares(p["2.weight"].T),
    ),
    **{
        f"conv, conv, {how}": (
            lambda how=how: seq(conv2(2, 3, 2, **how), conv2(3, 2, 2), flat()),
            (2, 5, 5),
            "matrix",
            "T45 (2)",
            lambda p: squares(p["0.weight"]) - squares(columns(p["1.weight"]).T),
        )
        for how in ({}, {"padding": 1}, {"padding": 1, "padding_mode": "circular"}, {"stride": 2})
    },
    "conv, average, conv": (
        lambda: seq(conv2(2, 3, 2), nn.AvgPool2d(2), conv2(3, 2, 2, stride=2), flat()),
        (2, 7, 7),
        "matrix",
        "T45 (2)",
        lambda p: squares(p["0.weight"]) - squares(columns(p["2.weight"]).T),
    ),
    "conv, maximum, conv": (
        lambda: seq(conv2(2, 3, 2), nn.MaxPool2d(2), conv2(3, 2, 2), flat()),
        (2, 7, 7),
        "vertex",
        "T45 (2)",
        lambda p: squares(p["0.weight"]) - squares(columns(p["2.weight"]).T),
    ),
    **{
        f"inside a block, {d}": (
            lambda d=d: seq(block(d)) if d != "identity" else seq(fc(3, 4), block(d)),
            (4,) if d != "identity" else (3,),
            "matrix",
            "T45 (3)",
            lambda p, n="0" if d != "identity" else "1": squares(p[f"{n}.y.weight"]) - squares(p[f"{n}.z.weight"].T),
        )
        for d in ("identity", "diagonal", "free")
    },
    "between free blocks": (
        lambda: seq(block("free", bend=True), block("free", bend=True)),
        (4,),
        "matrix",
        "T45 (4)",
        lambda p: squares(written(p, "0")) - squares(read(p, "1").T),
    ),
    "between diagonal blocks": (
        lambda: seq(block("diagonal"), block("diagonal")),
        (4,),
        "vertex",
        "T45 (4)",
        lambda p: squares(written(p, "0")) - squares(read(p, "1").T),
    ),
    "between free blocks, relu after the sum": (
        lambda: seq(block("free"), nn.ReLU(), block("free")),
        (4,),
        "vertex",
        "T45 (4)",
        lambda p: squares(written(p, "0")) - squares(read(p, "2").T),
    ),
    "conv, fc": (
        lambda: seq(conv2(2, 3, 2), flat(), fc(12, 2)),
        (2, 3, 3),
        "matrix",
        "T45 (5)",
        lambda p: squares(p["0.weight"]) - squares(by_channel(p["2.weight"], 3).T),
    ),
    "conv, free block": (
        lambda: seq(conv(2, 3, 2), flat(), block("free", 6, bend=True)),
        (2, 3),
        "matrix",
        "T45 (6)",
        lambda p: squares(p["0.weight"]) - squares(by_channel(read(p, "2"), 3).T),
    ),
    "conv, diagonal block": (
        lambda: seq(conv(2, 3, 2), flat(), block("diagonal", 6)),
        (2, 3),
        "vertex",
        "T45 (6)",
        lambda p: squares(p["0.weight"]) - squares(by_channel(read(p, "2"), 3).T),
    ),
    "fc, free block": (
        lambda: seq(fc(3, 4), block("free")),
        (3,),
        "matrix",
        "T45 (7)",
        lambda p: squares(p["0.weight"]) - squares(read(p, "1").T),
    ),
    "free block, fc": (
        lambda: seq(block("free"), fc(4, 2)),
        (4,),
        "matrix",
        "T45 (7)",
        lambda p: squares(written(p, "0")) - squares(p["1.weight"].T),
    ),
    "fc, conv": (
        lambda: seq(fc(3, 6), nn.Unflatten(1, (2, 3)), conv(2, 2, 2), flat()),
        (3,),
        "matrix",
        "T45, beyond the source",
        lambda p: squares(p["0.weight"].reshape(2, -1)) - squares(columns(p["2.weight"]).T),
    ),
    "free block, conv": (
        lambda: seq(block("free", 6), nn.Unflatten(1, (2, 3)), conv(2, 2, 2), flat()),
        (6,),
        "matrix",
        "T45, beyond the source",
        lambda p: squares(written(p, "0").reshape(2, -1)) - squares(columns(p["2.weight"]).T),
    ),
    "identity stream": (
        lambda: seq(fc(3, 4), block("identity", bend=True), block("identity"), fc(4, 2)),
        (3,),
        "matrix",
        "T44-T45, identity stream",
        lambda p: (
            sum(squares(p[n]) for n in ("0.weight", "1.z.weight", "2.z.weight"))
            - sum(squares(p[n].T) for n in ("1.y.weight", "2.y.weight", "3.weight"))
        ),
    ),
}


def two_heads(m, x):
    h = m.a(x)
    return torch.cat([m.c(h), m.d(h)], 1)


# what looks like a case of T45 and is none
OTHERS = {
    "two heads": (Net(two_heads, a=fc(3, 2), c=fc(2, 2), d=fc(2, 1)), "T44-T45, sums"),
    "a difference": (Net(lambda m, x: m.c(m.a(x) - m.b(x)), a=fc(3, 3), b=fc(3, 3), c=fc(3, 2)), "T44-T45, sums"),
    "a sum of two branches": (
        Net(
            lambda m, x: m.c(m.a(relu(m.e(x))) + m.b(relu(m.f(x)))),
            **{name: fc(3, 3) for name in "abef"},
            c=fc(3, 2),
        ),
        "T44-T45, sums",
    ),
    "a skip with a relu": (
        Net(
            lambda m, x: m.v(relu(h := m.u(x)) + m.z(relu(m.y(h)))),
            u=fc(3, 2),
            y=fc(2, 3),
            z=fc(3, 2),
            v=fc(2, 2),
        ),
        "T45 (1)",
    ),
    "a skip with a sigmoid": (
        Net(
            lambda m, x: m.v(torch.sigmoid(h := m.u(x)) + m.z(relu(m.y(h)))),
            u=fc(3, 2),
            y=fc(2, 3),
            z=fc(3, 2),
            v=fc(2, 2),
        ),
        "T45 (1)",
    ),
    "a product as skip": (
        Net(lambda m, x: m.d(x, x) + m.c(relu(m.a(x))), d=nn.Bilinear(3, 3, 2), a=fc(3, 4), c=fc(4, 2)),
        "T45 (1)",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_case_of_t45_is_not_called_one(name):
    net, label = OTHERS[name]
    said = {i for q in find(net.double(), normal(1, 3, seed=0)) for i in q.ids if i.startswith(("T45", "T44-"))}
    assert said == {label}


@pytest.mark.parametrize("name", CASES)
def test_cases_of_t45_have_their_flattenings(name):
    make, shape, kind, statement, formula = CASES[name]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = make().double()
    found = [q for q in find(net, normal(1, *shape, seed=0)) if q.kind == kind and statement in q.ids]
    expected = formula({n: p.detach() for n, p in net.named_parameters()})
    values = [q.value(net) for q in found]
    expected = expected.diagonal() if kind == "vertex" else expected
    matching = [v for v in values if v.shape == expected.shape and torch.allclose(v, expected, rtol=0, atol=1e-13)]
    assert len(matching) == 1


def test_grouped_convolutions_conserve_all_of_each_group():
    """T45 (2) says that they fail off the diagonal: between groups they do, within a group they do not."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = seq(conv(2, 6, 2), conv(6, 4, 1, groups=2), flat(), fc(8, 2)).double()
    q = find(net, normal(1, 2, 3, seed=0))["matrix 0 | 1"]
    assert "2 groups" in q.reason
    theta = {n: p.detach() for n, p in net.named_parameters()}
    loss = ((net(normal(6, 2, 3, seed=1)) - normal(6, 2, seed=2)) ** 2).sum() / 6
    flow = dict(zip(theta, torch.autograd.grad(loss, list(net.parameters())), strict=True))

    def form(a, b):
        readers = [k.reshape(2, 2, 3).transpose(1, 2).reshape(6, 2) for k in (a["1.weight"], b["1.weight"])]
        product = a["0.weight"].flatten(1) @ b["0.weight"].flatten(1).T - readers[0] @ readers[1].T
        return (product + product.T) / 2

    rate = -2 * form(theta, flow)
    group = torch.arange(6) // 3
    same = group[:, None] == group
    assert rate[same].abs().max() < 1e-14
    assert rate[~same].abs().max() > 1e-2
    assert (q.value(net)[~same] == 0).all()
    torch.testing.assert_close(q.value(net)[same], form(theta, theta)[same])
