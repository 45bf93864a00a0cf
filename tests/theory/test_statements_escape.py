"""Verdicts on the first escape from the origin (T36, T38, T39), and what they measure."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks import from_layers
from bnrank.theory.escape import deepen
from bnrank.theory.escape import localized as module
from bnrank.theory.escape.localized import localized, nonnegative_part, residual_bound
from bnrank.theory.escape.search import find
from bnrank.theory.escape.stationarity import residual
from bnrank.theory.facts import Facts
from bnrank.theory.statements.escape import STATEMENTS, check
from bnrank.theory.verdicts import NotApplicable
from helpers import normal

D = torch.float64
BY_NAME = {s.name: s for s in STATEMENTS}
NORMS = BY_NAME["layers of an escape direction have one norm"]
DEEP = BY_NAME["deep layers of the fastest escape direction"]
INPUTS = BY_NAME["inputs near rank one"]
LAYERS = BY_NAME["near rank one at a layer, near rank one after it"]
FEW = BY_NAME["few layers of high rank"]
DEEPER = BY_NAME["a deeper network leaves as fast"]
ENDS = BY_NAME["the deeper network ends in rank one"]


def facts_of(weights, x, g):
    return Facts(from_layers(weights), x).altered(output_gradient=g)


def circle():
    """T40's data and its direction of rank two, of speed 1/2."""
    task = bnrank.tasks.circle(dtype=D)
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=D) / 2
    second = torch.tensor([[1.0, -1.0, 1.0, -1.0]], dtype=D) / 2
    return [first, second, -torch.ones(1, 1, dtype=D)], task.x, -task.y


def near_rank_one(eps, off, n=12, d=4, outputs=3, seed=0):
    """X = v u^T + eps E with v >= 0 and u of any sign, and a G near rank one."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.rand(n, generator=generator, dtype=D)
    u, e, a, h = (torch.randn(*s, generator=generator, dtype=D) for s in ((d,), (n, d), (outputs,), (n, outputs)))
    x = torch.outer(v / v.norm(), u / u.norm()) + eps * e / e.norm()
    return x, off * h / h.norm() - torch.outer(v / v.norm(), a / a.norm())


def ascended(weights, x, g, steps):
    """Some steps up the speed, the layers kept at norm 1."""
    weights = [w / w.norm() for w in weights]
    for _ in range(steps):
        held = [w.requires_grad_() for w in weights]
        a = x
        for w in held[:-1]:
            a = (a @ w.T).clamp(min=0)
        parts = torch.autograd.grad((g * (a @ held[-1].T)).sum(), held)
        with torch.no_grad():
            weights = [w - 0.3 * p / p.norm().clamp(min=1e-300) for w, p in zip(held, parts, strict=True)]
            weights = [w / w.norm() for w in weights]
    return [w.detach() for w in weights]


def planted(facts, **values):
    return facts.altered(localized=dataclasses.replace(facts.localized, **values))


# What is measured ----------------------------------------------------------------------------------------------------


def tail_by_svd(matrix):
    s = np.linalg.svd(matrix, compute_uv=False)
    return float((s[1:] ** 2).sum() / (s**2).sum())


def by_hand(weights, x, g):
    """Everything from full matrices and decompositions."""
    weights = [w.numpy() / np.linalg.norm(w.numpy()) for w in weights]
    x, g = x.numpy() / np.linalg.norm(x.numpy()), g.numpy() / np.linalg.norm(g.numpy())
    a, z = [x], []
    for w in weights:
        z.append(a[-1] @ w.T)
        a.append(np.maximum(z[-1], 0))
    speeds = []
    for values in a[1:-1]:
        left, s, _ = np.linalg.svd(values, full_matrices=False)
        speeds.append(s[0] * np.linalg.norm(g.T @ left[:, 0]))
    return {
        "share": -float((g * z[-1]).sum()),
        "weight_tails": [tail_by_svd(w) for w in weights],
        "activation_tails": [tail_by_svd(v) for v in a[:-1]],
        "activation_norms": [np.linalg.norm(v) for v in a[:-1]],
        "nonlinearities": [(np.minimum(v, 0) ** 2).sum() / (v**2).sum() for v in z[:-1]],
        "later": speeds,
    }


@pytest.mark.parametrize("chunk", [3, 4096])
@pytest.mark.parametrize("widths", [[3, 5, 2], [6, 40, 30, 4], [2, 3, 3, 3, 1], [4, 1, 6, 2]])
@pytest.mark.parametrize("n", [7, 20])
def test_what_is_measured_is_what_the_definitions_say(monkeypatch, chunk, widths, n):
    monkeypatch.setattr(module, "CHUNK", chunk)
    weights = [normal(b, a, seed=i) * 3.0**i for i, (a, b) in enumerate(itertools.pairwise(widths))]
    x, g = 5 * normal(n, widths[0], seed=11), normal(n, widths[-1], seed=12) / 7
    net = from_layers(weights)
    g = -g if float((g * net(x).detach()).sum()) > 0 else g
    found = localized(weights, x, g)
    for name, values in by_hand(weights, x, g).items():
        seen = found.tail_speeds[1:] if name == "later" else getattr(found, name)
        np.testing.assert_allclose(seen, values, rtol=1e-9, atol=1e-13, err_msg=name)
    squares = sum(float(w.square().sum()) for w in weights)
    on_sphere = [w * math.sqrt(len(weights) / squares) for w in weights]
    assert found.sphere_speed == pytest.approx(-float((g * from_layers(on_sphere)(x).detach()).sum()), rel=1e-10)
    np.testing.assert_allclose(found.layer_norms, [float(w.norm()) for w in on_sphere], rtol=1e-12)
    assert found.speed == pytest.approx(found.share * float(x.norm() * g.norm()))
    assert found.speed >= found.sphere_speed
    u = torch.linalg.svd(x)[2][0]
    neurons = [float((g.T @ (sign * x @ u).clamp(min=0)).norm() / (x.norm() * g.norm())) for sign in (1, -1)]
    assert found.tail_speeds[0] >= max(neurons) - 1e-12  # of a third direction, too
    assert found.tail_speeds[0] <= 1


@pytest.mark.parametrize("seed", range(4))
def test_the_nonnegative_part_is_near_the_best_one(seed):
    x = normal(3, 2, seed=seed)
    v = nonnegative_part(x, list(torch.eye(2, dtype=D)))
    assert bool((v >= 0).all())
    assert float(v.norm()) == pytest.approx(1)
    angle = torch.linspace(0, math.pi / 2, 300, dtype=D)
    a, b = torch.meshgrid(angle, angle, indexing="ij")
    all_v = torch.stack([a.cos(), a.sin() * b.cos(), a.sin() * b.sin()], -1)
    assert float((x.T @ v).norm()) >= float((all_v @ x).norm(dim=-1).max()) - 1e-4


# The inequalities on networks at large -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_nothing_is_violated_from_random_to_optimal(seed):
    generator = np.random.default_rng(seed)
    depth, (d, n, outputs, width) = int(generator.integers(2, 8)), generator.integers(1, 6, 4).tolist()
    x, g = near_rank_one(10 ** -generator.uniform(0, 4), 10 ** -generator.uniform(-1, 4), n, d, outputs, seed)
    widths = [d, *[width] * (depth - 1), outputs]
    weights = [normal(b, a, seed=97 * seed + i) for i, (a, b) in enumerate(itertools.pairwise(widths))]
    facts = facts_of(ascended(weights, x, g, int(generator.integers(0, 40))), x, g)
    verdicts = {s.name: s(facts) for s in STATEMENTS}
    assert all(v.status in ("holds", "not applicable") for v in verdicts.values()), verdicts
    if verdicts[FEW.name].status == "not applicable":
        assert "the speed is positive" in verdicts[FEW.name].reason


@pytest.mark.filterwarnings("ignore:escape.find. no start")
@pytest.mark.parametrize("seed", range(100))
def test_the_bounds_with_an_excess_of_speed_hold_for_any_network(seed):
    """Proposition 3.3 needs of optimality only how much faster rank one is: no assumption at all."""
    generator = np.random.default_rng(seed)
    depth, (d, n, outputs, width) = int(generator.integers(2, 6)), generator.integers(2, 6, 4).tolist()
    x, g = near_rank_one(10 ** -generator.uniform(0, 4), 10 ** -generator.uniform(0, 4), n, d, outputs, seed)
    best = find(x, g, depth, width, starts=1, steps=60, polish=False, seed=seed).network
    mix = 10 ** -generator.uniform(0, 4)
    weights = [w.detach() + mix * normal(*w.shape, seed=97 * seed + i) for i, w in enumerate(best.weights)]
    try:
        found = localized(weights, x, g)
    except NotApplicable:
        return
    error, speed = found.part
    excess = max(speed - error - found.share, 0.0) / found.share
    for ratio in found.ratios:
        assert ratio.value <= found.bound(error, excess) + 1e-12, ratio
        for k in range(1, ratio.layer):
            assert ratio.value <= found.bound(float(found.errors[k]), found.excess(k)) + 1e-12, ratio


def test_errors_cover_what_rounding_takes():
    """Singular values 1 and 3e-9: the tail 9e-18 is less than rounding of 1, the error 3e-9 must not be lost."""
    x = torch.diag(torch.tensor([1.0, 3e-9], dtype=D))
    found = localized([torch.eye(2, dtype=D)] * 2, x, -torch.eye(2, dtype=D))
    expected = 3e-9 / 2 ** torch.tensor([0.0, 0.5], dtype=D)
    assert (found.errors >= expected).all()
    assert (found.errors < 1.001 * expected).all()


def test_an_excess_of_speed_is_less_what_the_distance_from_rank_one_explains():
    weights, x, g = circle()
    found = localized(weights, x, g)
    error = float(found.errors[1])
    for gain, expected in ((0.9 * error, 0.0), (error + 0.1 * found.share, 0.1)):
        changed = dataclasses.replace(found, tail_speeds=torch.full((3,), found.share + gain, dtype=D))
        assert changed.excess(1) == pytest.approx(expected, abs=1e-12)


def test_a_raised_bound_is_said():
    x, g = near_rank_one(1e-4, 1e-4)
    found = find(x, g, 3, 4, starts=2, steps=300)
    facts = facts_of([w.detach() for w in found.network.weights], x, g)
    share = facts.localized.share
    faster = planted(facts, tail_speeds=torch.full((3,), 1.0009 * share, dtype=D), part=(0.0, 1.0009 * share))
    for statement in (DEEP, INPUTS, LAYERS):
        assert "above the formula" not in statement(facts).note
        assert "above the formula's, as rank one is faster by up to 0.000" in statement(faster).note
        assert statement(faster).right > statement(facts).right


# T36 -----------------------------------------------------------------------------------------------------------------


def test_layers_of_an_escape_direction_have_one_norm():
    weights, x, g = circle()
    facts = facts_of([7 * w for w in weights], x, g)
    found = NORMS(facts)
    assert (found.status, found.left, found.right) == ("holds", pytest.approx(1, abs=1e-12), 1)
    assert NORMS(facts_of([w * f for w, f in zip(weights, (1, 2, 3), strict=True)], x, g)).status == "not applicable"
    off = torch.tensor([1.0, 1.0, 1.0], dtype=D) * (1 + torch.tensor([1e-3, 0.0, 0.0], dtype=D))
    assert NORMS(planted(facts, layer_norms=off)).status == "violated"  # the residual says that they are equal


def test_a_difference_that_the_residual_explains_is_no_violation():
    weights, x, g = circle()
    facts = facts_of([weights[0] * 1.003, *weights[1:]], x, g)
    found = NORMS(facts)
    assert found.status == "inconclusive"
    assert abs(found.left - 1) > 1e-3
    assert "explained" in found.reason


@pytest.mark.parametrize("seed", range(20))
def test_the_residual_is_at_least_what_the_weights_say(seed):
    x, g = near_rank_one(0.3, 0.3, seed=seed)
    widths = [4, *[5] * (2 + seed % 3), 3]
    weights = [normal(b, a, seed=97 * seed + i) for i, (a, b) in enumerate(itertools.pairwise(widths))]
    facts = facts_of(ascended(weights, x, g, seed), x, g)
    if NORMS(facts).reason.startswith("the speed"):
        return
    least = residual_bound(facts.weights, facts.localized.layer_norms)
    seen = residual(facts.chain, x, g)
    assert 0 < least <= seen * (1 + 1e-9)
    assert least > 0.01 * seen or least < 1e-3


# T38 -----------------------------------------------------------------------------------------------------------------


def test_on_the_circle_the_bounds_say_nothing_and_the_verdicts_say_so():
    weights, x, g = circle()
    verdicts = check(SimpleNamespace(network=from_layers(weights), x=x, g=g))
    for statement in (DEEP, INPUTS, LAYERS, FEW):
        found = next(v for v in verdicts if v.name == statement.name)
        assert found.label == "holds (vacuous)", found
        assert found.vacuous
    deep = verdicts["T38"]
    assert deep.left == pytest.approx(0.625)  # the tail of sigma(Z_1): 8 points, 4 neurons
    assert "c = 37.68" in deep.note
    assert "114984" in deep.vacuous  # (9 c)^2
    assert verdicts.about["speed"] == pytest.approx(0.5)
    deeper = deepen(from_layers(weights), 8, x, g)
    found = check(SimpleNamespace(network=deeper, x=x, g=g))
    assert next(v for v in found if v.name == LAYERS.name).label == "holds"  # layers 3 to 8, after one of rank one


def tails_of(*values):
    return torch.tensor(values, dtype=D)


@pytest.mark.parametrize(("eps", "off", "depth"), [(0.01, 0.01, 3), (0.1, 0.1, 4), (0.05, 0.05, 6)])
def test_near_rank_one_data_bite(eps, off, depth):
    x, g = near_rank_one(eps, off)
    found = find(x, g, depth, 6, starts=4, steps=600)
    verdicts = {v.name: v for v in check(found)}
    assert {v.label for v in verdicts.values()} == {"holds"}, verdicts
    assert verdicts[INPUTS.name].right < 0.8
    facts = Facts(found.network, x).altered(output_gradient=g)
    assert INPUTS(facts).right == verdicts[INPUTS.name].right
    wide = torch.full((depth,), 0.8, dtype=D)
    wide[0] = facts.localized.activation_tails[0]
    assert DEEP(planted(facts, weight_tails=wide)).status == "violated"
    assert DEEP(planted(facts, activation_tails=wide)).status == "violated"
    assert INPUTS(planted(facts, activation_tails=wide)).status == "violated"
    assert INPUTS(planted(facts, nonlinearities=wide[1:])).status == "violated"
    assert LAYERS(planted(facts, weight_tails=wide)).status == "violated"
    assert FEW(planted(facts, activation_tails=wide)).status == "violated"


def test_the_bounds_are_those_of_the_statement():
    x, g = near_rank_one(0.02, 0.05)
    facts = Facts(find(x, g, 4, 5, starts=4, steps=600).network, x).altered(output_gradient=g)
    s, size = facts.localized.speed, float(x.norm() * g.norm())
    c = size / s * math.sqrt(2 * math.log(size / s))
    layer = 4
    assert DEEP(facts).right == pytest.approx(8 * c / 2 / (1 - c / 2))
    assert f"W_{layer}" in DEEP(facts).note
    v = nonnegative_part(x)
    eps = float((x - torch.outer(v, x.T @ v)).norm())
    g_eps = eps * float(g.norm())
    assert INPUTS(facts).right == pytest.approx(8 * g_eps / (s - g_eps), rel=1e-6)
    tails = [tail_by_svd(a) for a in (x, *(t.numpy() for t in activations(facts)))]
    assert FEW(facts).left == pytest.approx(-sum(math.log(1 - t) for t in tails), rel=1e-6)
    assert FEW(facts).right == pytest.approx(2 * math.log(size / s))


def activations(facts):
    a, found = facts.x, []
    for w in facts.weights[:-1]:
        a = (a @ w.T).clamp(min=0)
        found.append(a)
    return found


def test_depth_makes_the_theorem_bite_on_data_that_are_not_near_rank_one():
    """Positive data and G <= 0: a chain of rank one along the top singular pair of G^T X is optimal."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.rand(20, k, generator=generator, dtype=D) + 0.3 for k in (3, 2))
    left, s, right = torch.linalg.svd(g.T @ x)
    u, out = right[:1].abs(), left[:, :1].abs()
    widening = torch.tensor([[1.0], [1.0]], dtype=D) / math.sqrt(2)
    for depth, label in ((12, "holds (vacuous)"), (250, "holds")):
        inner = [widening @ widening.T] * (depth - 2)
        facts = facts_of([widening @ u, *inner, out @ widening.T], x, -g)
        assert facts.localized.speed == pytest.approx(float(s[0]))
        assert 0.5 < facts.localized.constant < 1.5
        assert DEEP(facts).label == label
        assert INPUTS(facts).label == "holds (vacuous)"
        assert LAYERS(facts).label == "holds"
    tails = facts.localized.weight_tails.clone()
    tails[-1] = 0.5
    assert DEEP(planted(facts, weight_tails=tails)).status == "violated"


def test_few_layers_bounds_every_count():
    weights, x, g = circle()
    facts = facts_of(weights, x, g)
    found, tails = FEW(facts), facts.localized.activation_tails
    for p in np.linspace(0.01, 1, 100):
        threshold = 2 * math.log(16) / (p * 3)
        assert int((tails > threshold).sum()) < p * 3
    assert found.left <= found.right
    assert FEW(planted(facts, share=0.99)).status == "violated"


def test_a_direction_slower_than_rank_one_is_not_optimal():
    """X = I_2, G = (-3, -1) on the diagonal: both coordinates alike have speed 2, the larger alone 3."""
    x, g = torch.eye(2, dtype=D), -torch.diag(torch.tensor([3.0, 1.0], dtype=D))
    facts = facts_of([torch.eye(2, dtype=D)] * 3, x, g)
    for statement in (DEEP, INPUTS, LAYERS):
        assert statement(facts).reason.startswith("the escape direction is optimal: rank one in place of")
    near = torch.tensor([[1.0, 0.0], [0.0, 0.01]], dtype=D)
    assert {s(facts_of([near] * 3, x, g)).status for s in (DEEP, INPUTS, LAYERS)} == {"holds"}


def test_signed_inputs_of_rank_one_have_a_part_that_is_not_zero():
    """E19: X = (1, -1), G = -I_2, an optimal direction with a second layer of rank two."""
    x, g = torch.tensor([[1.0], [-1.0]], dtype=D), -torch.eye(2, dtype=D)
    facts = facts_of([torch.tensor([[1.0], [-1.0]], dtype=D), torch.eye(2, dtype=D)], x, g)
    assert facts.localized.part[0] == pytest.approx(math.sqrt(0.5))
    assert not facts.localized.nonnegative
    assert facts.localized.weight_tails.tolist() == pytest.approx([0, 0.5])
    for statement in (DEEP, INPUTS):
        assert statement(facts).label == "holds (vacuous)"
    assert INPUTS(planted(facts, part=(0.0, 0.0))).status == "violated"  # what admitting the sign would say


def test_the_scale_of_data_gradient_and_layers_does_not_matter():
    x, g = near_rank_one(0.05, 0.05)
    net = find(x, g, 3, 4, starts=2, steps=300).network
    weights = [w.detach() for w in net.weights]
    plain = [s(facts_of(weights, x, g)) for s in (DEEP, INPUTS, LAYERS, FEW)]
    scaled = facts_of([w * f for w, f in zip(weights, (1e-60, 1e40, 3.0), strict=True)], 1e160 * x, 1e-180 * g)
    for before, after in zip(plain, (s(scaled) for s in (DEEP, INPUTS, LAYERS, FEW)), strict=True):
        assert (before.label, after.label) == ("holds", "holds")
        assert after.right == pytest.approx(before.right, rel=1e-6)


# T39 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_deeper_network_leaves_as_fast(seed):
    x, g = normal(8, 3, seed=seed), normal(8, 2, seed=seed + 50)
    weights = [normal(4, 3, seed=seed + 10), normal(4, 4, seed=seed + 20), normal(2, 4, seed=seed + 30)]
    g = -g if float((g * from_layers(weights)(x).detach()).sum()) > 0 else g
    facts = facts_of(weights, x, g)
    found = DEEPER(facts)
    assert found.status == "holds"
    deeper = deepen(from_layers(weights), 4, x, g)
    assert found.right == pytest.approx(-float((g * deeper(x).detach()).sum()))
    assert found.left < found.right  # a random network is far from balanced
    assert ENDS(facts).status == "holds"
    slow = dataclasses.replace(facts.deeper, sphere_speed=0.9 * found.left)
    assert DEEPER(facts.altered(deeper=slow)).status == "violated"


@pytest.mark.parametrize(
    "wrong",
    [
        {"squared_norm": 4.1},
        {"weight_tails": (0.0, 0.0, 1e-3)},
        {"activation_tails": (1e-3, 0.0)},
        {"nonlinearities": (0.0, 1e-3)},
    ],
)
def test_the_deeper_network_ends_in_rank_one(wrong):
    facts = facts_of(*circle())
    assert DEEPER(facts).left == pytest.approx(0.5, abs=1e-12)
    assert DEEPER(facts).right == pytest.approx(0.5, abs=1e-12)
    assert (ENDS(facts).status, facts.deeper.squared_norm) == ("holds", pytest.approx(4))
    assert ENDS(facts.altered(deeper=dataclasses.replace(facts.deeper, **wrong))).status == "violated"


def test_a_number_that_is_none_is_no_proof():
    facts = facts_of(*circle())
    for name, value in {"nonlinearities": (0.0, math.nan), "activation_tails": (math.nan, 0.0)}.items():
        found = ENDS(facts.altered(deeper=dataclasses.replace(facts.deeper, **{name: value})))
        assert found.status == "inconclusive"
        assert "not a number" in found.reason
    assert "0 by their shapes" in ENDS(facts).note


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e160, 1e200])
def test_units_are_no_matter_for_the_deeper_network(unit):
    weights, x, g = circle()
    for facts in (facts_of(weights, unit * x, g), facts_of(weights, x, unit * g)):
        assert DEEPER(facts).status == "holds"
        assert DEEPER(facts).right == pytest.approx(0.5 * unit, rel=1e-12)
        assert ENDS(facts).status == "holds"
        assert facts.deeper.nonlinearities[-1] == 0


# What does not apply -------------------------------------------------------------------------------------------------


def test_what_fails_is_named():
    weights, x, g = circle()
    zero = [weights[0], 0 * weights[1], weights[2]]
    cases = {
        "targets y are given": Facts(from_layers(weights), x),
        "no biases": Facts(bnrank.MLP([2, 3, 1]), x, g),
        "a ReLU network: slope 0.3": Facts(bnrank.MLP([2, 3, 1], slope=0.3, bias=False), x, g),
        "there is a hidden layer": Facts(bnrank.MLP([2, 1], bias=False), x, g),
        "every layer is not 0": facts_of(zero, x, g),
        "X is not 0": facts_of(weights, 0 * x, g),
        "G is not 0": Facts(from_layers(weights), x, 0 * g),
        "the speed is positive: L0 = 4": facts_of(weights, 8 * x, -g),
        "a chain of linear layers": Facts(nn.Sequential(nn.Linear(2, 1), nn.Tanh()), x, g),
    }
    for reason, facts in cases.items():
        for statement in STATEMENTS:
            found = statement(facts)
            assert found.status == "not applicable", (reason, found)
            assert reason in found.reason


def test_targets_and_class_numbers_give_the_gradient():
    weights, x, g = circle()
    by_targets = Facts(from_layers(weights), x, -4 * g, max_samples=3)  # G = -2 Y / N
    torch.testing.assert_close(by_targets.output_gradient, g)
    assert by_targets.localized.sphere_speed == pytest.approx(0.5)  # of all samples, not of three
    classes = torch.tensor([0, 1, 1, 0])
    facts = Facts(bnrank.MLP([2, 4, 2], bias=False), normal(4, 2), classes)
    expected = (0.5 - torch.eye(2, dtype=D)[classes]) / 4
    torch.testing.assert_close(facts.output_gradient, expected)
    assert all(s(facts).status != "violated" for s in STATEMENTS)


def test_a_found_direction_is_checked_with_its_own_data():
    weights, x, g = circle()
    found = SimpleNamespace(network=from_layers(weights).float(), x=x.numpy(), g=g.numpy())
    verdicts = check(found)
    assert [v.id for v in verdicts] == ["T36", "T38", "T38", "T38", "T38", "T39", "T39"]
    assert verdicts.ok
    assert verdicts.about["depth"] == 3
    with pytest.raises(TypeError, match=r"found: got .* without network, x, g, expected what"):
        check(3)
    with pytest.raises(ValueError, match="g: got 7 samples, expected as many as x has, 8"):
        check(SimpleNamespace(network=found.network, x=x, g=g[1:]))
    with pytest.raises(ValueError, match="g: "):
        check(SimpleNamespace(network=found.network, x=x, g=torch.ones(8, 2)))
    still = check(SimpleNamespace(network=found.network, x=x, g=-g))
    assert "the speed is positive" in still.about["no escape direction"]
    assert still.counts["not applicable"] == len(still)


@pytest.mark.parametrize("values", [(1e155, 1e-155), (1e120, 1e120), (1e-150, 1e-150), (1e-200, 1e-100)])
def test_extreme_weights_are_no_violation(values):
    x = torch.linspace(0.1, 1, 4, dtype=D)[:, None]
    facts = facts_of([torch.full((1, 1), v, dtype=D) for v in values], x, -x)
    assert all(s(facts).status in ("holds", "not applicable", "inconclusive") for s in STATEMENTS)
    assert FEW(facts).status == "holds"
