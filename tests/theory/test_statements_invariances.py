"""T42 and T44 to T49 as statements: any module, planted violations, what they do not apply to."""

import functools

import pytest
import torch
from torch import nn

import bnrank
import helpers
from bnrank.theory.facts import Facts
from bnrank.theory.invariants import Tail
from bnrank.theory.statements import invariances
from bnrank.theory.verdicts import statements_in

STATEMENTS = statements_in(invariances)
PATHS, VERTICES, MATRICES, SAME, LAYERS, DIFFERENT, ONE, TAIL, STEP, RIDGE = STATEMENTS
DOUBLE = torch.float64


normal = functools.partial(helpers.normal, dtype=torch.float32)


def seeded(module, seed=0):
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.6 * normal(*p.shape, seed=100 * seed + i))
    return module


class Residual(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.Y, self.Z = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        return x + self.Z(torch.relu(self.Y(x)))


class Bent(nn.Module):
    def __init__(self, bend):
        super().__init__()
        self.a, self.c, self.bend = nn.Linear(3, 4, bias=False), nn.Linear(4, 2), bend

    def forward(self, x):
        return self.c(self.bend(self.a(x)))


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 3),
        nn.Linear(3, 2),
    )


ZOO = {
    "mlp": (lambda: bnrank.MLP([3, 6, 6, 2], seed=1), (12, 3)),
    "without biases": (lambda: bnrank.MLP([3, 6, 6, 2], slope=-0.5, bias=False, seed=1), (12, 3)),
    "linear": (lambda: bnrank.networks.LinearNetwork([3, 4, 4, 2], seed=1), (12, 3)),
    "convolution": (convolution, (6, 1, 7, 7)),
    "residual": (lambda: nn.Sequential(nn.Linear(3, 4), Residual(4, 3), nn.Linear(4, 4), nn.Linear(4, 2)), (9, 3)),
    "prelu": (
        lambda: nn.Sequential(nn.Linear(3, 5), nn.PReLU(), nn.Linear(5, 4), nn.PReLU(4), nn.Linear(4, 2)),
        (9, 3),
    ),
    "outside": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)), (9, 3)),
}


def facts_of(name, targets="numbers", ridge=0.1):
    make, shape = ZOO[name]
    module, x = seeded(make()), normal(*shape, seed=7)
    if targets is None:
        return Facts(module, x)
    outputs = module(x).shape[1]
    y = torch.arange(len(x)) % outputs if targets == "classes" else normal(len(x), outputs, seed=8)
    return Facts(module, x, y, ridge)


@pytest.mark.parametrize("targets", ["numbers", "classes", None])
@pytest.mark.parametrize("name", ZOO)
def test_they_hold_for_any_network_and_loss(name, targets):
    facts = facts_of(name, targets)
    verdicts = {s: s(facts) for s in STATEMENTS}
    assert {v.status for v in verdicts.values()} <= {"holds", "not applicable"}, verdicts
    assert verdicts[VERTICES].status == verdicts[LAYERS].status == verdicts[STEP].status == "holds"
    said = verdicts[VERTICES].note
    expected = {"numbers": "C = mean ||f - y||^2", "classes": "cross-entropy", None: "holds for any loss"}[targets]
    assert expected in said
    assert ("outside the theory: 1 (Tanh)" in said) == (name == "outside")
    has_a_tail = name in ("linear", "convolution", "residual")
    assert (verdicts[TAIL].status == "holds") == (verdicts[MATRICES].status == "holds") == has_a_tail
    assert (verdicts[DIFFERENT].status == "holds") == (name not in ("linear", "convolution"))
    assert (verdicts[PATHS].status == "holds") == (name not in ("convolution", "outside"))
    assert (verdicts[RIDGE].status == "holds") == (targets is not None)


def wrong(facts, size=1e-6):
    """Return the gradient with noise of a part in a million of its norm."""
    norm = sum(float(g.square().sum()) for g in facts.gradient.values()) ** 0.5
    return {name: g + size * norm * normal(*g.shape, seed=9).to(DOUBLE) for name, g in facts.gradient.items()}


@pytest.mark.parametrize("statement", [VERTICES, MATRICES, LAYERS, STEP, RIDGE], ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["linear", "convolution", "residual"])
def test_a_wrong_gradient_violates_what_is_about_it(statement, name):
    facts = facts_of(name)
    assert statement(facts).status == "holds"
    assert statement(facts.altered(gradient=wrong(facts))).status == "violated"


def test_a_wrong_gradient_violates_what_is_about_pairs():
    module = bnrank.MLP([3, 6, 6, 2], seed=1)
    with torch.no_grad():
        module.weights[0][1] = 2 * module.weights[0][0]  # active where the first one is
        module.biases[0][1] = 2 * module.biases[0][0]
    facts = Facts(module, normal(12, 3), normal(12, 2, seed=1))
    for statement in (SAME, DIFFERENT):
        assert statement(facts).status == "holds", statement(facts)
        assert statement(facts.altered(gradient=wrong(facts))).status == "violated"
    same = facts.patterns["pair layers.0 | layers.1"]
    assert bool(same[0, 1])
    assert not bool(same[0, 2])
    found = DIFFERENT(facts)
    assert abs(found.left) > 1e-3
    assert found.left == pytest.approx(found.right, rel=1e-9)
    every = {name: torch.ones_like(same).fill_diagonal_(False) for name, same in facts.patterns.items()}
    assert SAME(facts.altered(patterns=every)).status == "violated"  # pairs with different patterns are not conserved
    assert DIFFERENT(facts.altered(patterns=every)).reason.startswith("two channels are active on different samples")


def test_wrong_outputs_are_no_sum_over_paths():
    facts = facts_of("mlp")
    assert PATHS(facts.altered(outputs=facts.outputs + 1e-6)).status == "violated"
    assert "302 paths" in PATHS(facts).note  # 6 (3 + 1) 6 2 = 288 from x and b_1, 12 from b_2, 2 from b_3


def test_a_wrong_tail_violates_its_bound(monkeypatch):
    def rank_one(t):
        first = torch.diag(torch.tensor([t, 0.1, 0.1, 0.1], dtype=DOUBLE))
        return bnrank.networks.from_layers([first, t * torch.eye(4, dtype=DOUBLE)[:1]], slope=1.0)

    facts = Facts(rank_one(3.0), normal(5, 4))
    found = TAIL(facts)
    assert (found.status, found.label) == ("holds", "holds")
    assert found.left > 0.99 * found.right
    assert "d 2^N M = 1, N = 0, M = 1, kappa = 0.03" in found.note
    assert TAIL(facts_of("linear")).label == "holds (vacuous)"
    right = Tail.bounds
    low = Facts(bnrank.networks.from_layers([normal(4, 4), 0.1 * torch.ones(1, 4)], slope=1.0), normal(5, 4))
    assert TAIL(low).label == "holds (vacuous)"
    monkeypatch.setattr(Tail, "bounds", lambda self, module: right(self, module, rank_one(1.0)))
    assert TAIL(low).status == "violated"  # the constants of another network


@pytest.mark.parametrize("bend", [torch.abs, lambda h: h.clamp(min=0)])
def test_at_kinks_nothing_is_violated(bend):
    net = seeded(Bent(lambda h: bend(torch.relu(h))))
    facts = Facts(net, normal(20, 3), normal(20, 2, seed=1))
    for statement in (SAME, DIFFERENT):
        assert statement(facts).status in ("holds", "not applicable"), statement(facts)
    assert DIFFERENT(facts).status == "holds"


@pytest.mark.parametrize("small", [0.0, 1e-9])
def test_small_layers_beside_a_large_one_violate_no_bound(small):
    """The constants are rounded at the size of all layers of the tail, the last one and its blocks among them."""
    for seed in range(12):
        for sizes in ([3, 4, 2], [3, 4, 3, 1]):
            net = bnrank.networks.LinearNetwork(sizes, seed=seed)
            with torch.no_grad():
                for weight in net.weights[:-1]:
                    weight.mul_(small)
            found = TAIL(Facts(net, normal(5, 3)))
            assert found.status == "holds", (seed, found)


def test_what_they_do_not_apply_to():
    one = Facts(nn.Linear(3, 2), normal(4, 3))
    assert PATHS(one).status == "holds"
    for statement in (VERTICES, MATRICES, SAME, LAYERS, DIFFERENT, STEP):
        assert statement(one).status == "not applicable"
        assert "only weight is trained" in statement(one).reason
    assert RIDGE(one).reason.startswith("a ridge > 0 is given")
    assert TAIL(one).reason.startswith("the network ends in two linear layers or more: before it: the input")
    relu = facts_of("mlp")
    assert (
        MATRICES(relu).reason
        == "the network has a conserved quantity of kind 'matrix': it has layer, pair, vertex only"
    )
    assert TAIL(relu).reason.startswith("the network ends in two linear layers or more: before it: relu")
    wide = PATHS(Facts(bnrank.MLP([10, 200, 200, 1], seed=0), normal(4, 10)))
    assert wide.reason == "a network of few paths: 42200 weights, more than 10000"
    deep = PATHS(Facts(bnrank.MLP([3, 12, 12, 12, 12, 1], seed=0), normal(4, 3)))
    assert deep.reason.startswith("a network of few paths: 84")
    assert facts_of("mlp", None).loss[2] == "C = mean ||f||^2, as no targets are given: it holds for any loss"


@pytest.mark.parametrize(("size", "status"), [(0.5e-9, "holds"), (2e-9, "violated")])
def test_how_large_an_error_of_a_rate_is_seen(size, status):
    """A billionth of what cancels in it and, where nothing does, of 1e-5 times the size of outputs and targets."""
    facts = facts_of("mlp")
    theta, gradient = facts.function.parameters, dict(facts.gradient)
    q = facts.findings.having("vertex")[0]
    products = {name: (theta[name] * gradient[name]).abs().sqrt() for name in q.parameters}
    (first, *_), _ = q.layers
    scales = 2 * q.scale(products) + 1e-5 * (facts.few[1].square().sum(1).mean() + facts.outputs.square().sum(1).mean())
    u = int(scales.argmin())
    row = theta[first][u]
    gradient[first] = gradient[first].clone()
    gradient[first][u] += size * scales[u] * row / (2 * row.square().sum())
    assert scales[u] < facts.outputs.square().sum(1).mean()  # a floor of the size of the outputs would hide it
    assert VERTICES(facts.altered(gradient=gradient)).status == status


def test_a_module_that_cannot_be_traced_says_why():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)))

    facts = Facts(Recurrent(), normal(4, 3))
    for statement in STATEMENTS[:-1]:
        found = statement(facts)
        assert found.status == "not applicable"
        assert found.reason.startswith("the computation graph of the network is known: ")
        assert "layer" in found.reason


def test_at_a_minimum_the_gradient_is_noise_and_violates_nothing():
    net = bnrank.networks.LinearNetwork([3, 4, 2], bias=True)
    x = normal(30, 3)
    y = x @ normal(3, 2, seed=1)
    run = bnrank.train(net, bnrank.Task(x, y), steps=600, dtype=DOUBLE, progress=False)
    facts = Facts(run.network(0), x, y)
    assert facts.data_loss < 1e-10
    for statement in (VERTICES, MATRICES, LAYERS, STEP):
        assert statement(facts).status == "holds"
    dead = Facts(bnrank.MLP([3, 4, 2], init=0.0), x, y)
    for statement in STATEMENTS:
        assert statement(dead).status in ("holds", "not applicable")


def test_of_many_samples_a_hundred_are_looked_at_and_of_deep_networks_four_values():
    facts = Facts(bnrank.MLP([3, *[5] * 7, 2], seed=0), normal(400, 3), normal(400, 2, seed=1), max_samples=300)
    assert len(facts.x) == 300
    assert len(facts.few[0]) == len(facts.few[1]) == 100
    assert len(facts.patterns) == 4
    assert "of 4 of 7 values at 100 samples" in DIFFERENT(facts).note
    x, y = facts.few
    out = facts.function(x)
    parameters = {n: p.clone().requires_grad_() for n, p in facts.function.parameters.items()}
    out = facts.function.with_parameters(parameters, x)
    slow = torch.autograd.grad(((out - y) ** 2).sum(1).mean(), list(parameters.values()))
    for name, g in zip(parameters, slow, strict=True):
        torch.testing.assert_close(facts.gradient[name], g)


@pytest.mark.parametrize("y", [normal(6, 3, seed=1), torch.tensor([0, 1, 2, 0, 1, 2]), None])
def test_one_sample_changes_pairs_by_rank_four(y, monkeypatch):
    facts = Facts(bnrank.MLP([4, 16, 12, 3], seed=0), normal(6, 4), y)
    found = ONE(facts)
    assert (found.label, found.left, found.right) == ("holds", 4, 4)
    narrow = ONE(Facts(bnrank.MLP([4, 4, 3], seed=0), normal(6, 4), y))
    assert "the left side is at most 4" in narrow.vacuous or narrow.right < 4
    filters = nn.Sequential(nn.Conv1d(2, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3))  # at two positions
    two = ONE(Facts(seeded(filters), normal(6, 2, 4), y))
    assert (two.label, two.left, two.right) == ("holds", 8, 8)
    linear = bnrank.networks.LinearNetwork([4, 16, 3])
    assert ONE(Facts(linear, normal(6, 4), y)).reason.startswith("two channels go through an activation")
    whole = invariances.conserved.gradient

    def noisy(*given):  # not the gradient of one sample
        weights, flow = whole(*given)
        return weights, {name: g + 1e-3 * helpers.normal(*g.shape) for name, g in flow.items()}

    monkeypatch.setattr(invariances.conserved, "gradient", noisy)
    assert (ONE(facts).status, ONE(facts).right) == ("violated", 4)
