import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers, make
from bnrank.theory.cost.closed_forms import linear, remainder_bound
from bnrank.theory.facts import Facts
from bnrank.theory.statements import representation
from bnrank.theory.verdicts import HOLDS, INCONCLUSIVE, NOT_APPLICABLE, VIOLATED, statements_in
from helpers import normal

NAMES = {s.name: s for s in statements_in(representation)}
OF_THE_NORM = ["representation cost", "Jacobian bound", "pseudo-determinant bound", "bound on every singular value"]
ALWAYS = [*OF_THE_NORM]  # apply to every chain
LINEAR = ["cost of a linear map", "expansion of the cost of a linear map"]
RIDGE = 3e-3


def random_facts(seed=0, slope=0.0, bias=True, widths=(3, 5, 4, 2), scale=1.0, **kwargs):
    net = make(list(widths), slope, bias, seed=seed, dtype=torch.float64)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(scale * normal(*p.shape, seed=seed + i))
    return Facts(net, normal(8, widths[0], seed=seed), **kwargs)


def smooth_task():
    """Positive inputs and a positive linear map: a minimum without kinks."""
    x = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    return bnrank.Task(x, torch.stack([x.sum(1), x[:, 0]], 1))


@pytest.fixture(scope="module", params=[(0.0, True), (0.3, True), (1.0, False)], ids=["relu", "leaky", "linear"])
def trained(request):
    slope, bias = request.param
    task, net = smooth_task(), make([2, 5, 5, 2], slope, bias, seed=1, dtype=torch.float64)
    run = bnrank.train(net, task, ridge=RIDGE, steps=1200, progress=False, dtype=torch.float64)
    facts = Facts(run.network(0), task.x, task.y, RIDGE)
    assert facts.stationarity < 1e-8
    return facts


def oracle(facts):
    values = torch.linalg.svdvals(torch.stack([torch.autograd.functional.jacobian(facts.net, x) for x in facts.x]))
    return torch.where(values > facts.rtol * values[:, :1], values, 0.0)


# They hold ---------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.3, -0.5, 1.0]),
    st.booleans(),
    st.sampled_from([(3, 5, 4, 2), (2, 4, 1), (4, 2), (2, 3, 3, 3, 3, 2)]),
    st.sampled_from([0.1, 1.0, 5.0]),
)
def test_all_that_apply_hold_on_random_networks(seed, slope, bias, widths, scale):
    facts = random_facts(seed, slope, bias, widths, scale)
    wanted = [*ALWAYS, *(LINEAR if slope == 1 else []), *(["two-point bound"] if slope == 0 else [])]
    for name, statement in NAMES.items():
        verdict = statement(facts)
        assert verdict.status == (HOLDS if name in wanted else NOT_APPLICABLE) or (
            name == "second correction of a product" and slope == 1 and verdict.status in (HOLDS, NOT_APPLICABLE)
        ), verdict
        assert not math.isnan(verdict.left) or verdict.status == NOT_APPLICABLE


def test_all_that_apply_hold_on_trained_networks(trained):
    for name, statement in NAMES.items():
        verdict = statement(trained)
        linear_only = name in [*LINEAR, "second correction of a product"]
        applies = trained.slope == 1 if linear_only else trained.slope == 0 if name == "two-point bound" else True
        assert verdict.status == (HOLDS if applies else NOT_APPLICABLE), verdict


def test_a_trained_linear_network_is_near_its_cost():
    task, net = smooth_task(), make([2, 3, 2], 1.0, False, seed=1, dtype=torch.float64)
    run = bnrank.train(net, task, ridge=RIDGE, steps=600, progress=False, dtype=torch.float64)
    facts = Facts(run.network(0), task.x, task.y, RIDGE)
    for name in ("cost of a linear map", "Jacobian bound", "representation cost", "second correction of a product"):
        verdict = NAMES[name](facts)
        assert verdict.left == pytest.approx(verdict.right, rel=1e-6)


# What is compared --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_sides_are_those_of_the_formulas(slope):
    facts = random_facts(3, slope)
    values, depth, norm = oracle(facts), 3, facts.parameter_norm
    verdict = NAMES["Jacobian bound"](facts)
    costs = depth * (values ** (2 / depth)).sum(1)
    assert (verdict.left, verdict.right) == pytest.approx((float(costs.max()), norm))
    assert f"sample {int(costs.argmax())}, the closest of 8" in verdict.note
    sums = [
        (j + 1) * depth + 2 * float(row[: j + 1].log().sum()) for row in values for j in range(int((row > 0).sum()))
    ]
    verdict = NAMES["pseudo-determinant bound"](facts)
    assert verdict.left == pytest.approx(max(sums))
    verdict = NAMES["bound on every singular value"](facts)
    ratios = values / (norm / (torch.arange(1, 3) * depth)) ** (depth / 2)
    assert verdict.left / verdict.right == pytest.approx(float(ratios.max()))


def test_the_bound_on_singular_values_is_tight_for_the_last_of_equal_ones():
    facts = Facts(from_layers([2 * torch.eye(2)] * 3), normal(4, 2).abs() + 0.1)
    verdict = NAMES["bound on every singular value"](facts)
    assert (verdict.left, verdict.right) == pytest.approx((8, 8))  # (24 / (2 * 3))^{3/2}
    assert verdict.status == HOLDS
    assert "k = 2 of 2" in verdict.note


def test_linear_sides_are_those_of_the_formulas():
    facts = random_facts(1, 1.0, False)
    product = facts.weights[2] @ facts.weights[1] @ facts.weights[0]
    verdict = NAMES["cost of a linear map"](facts)
    assert (verdict.left, verdict.right) == pytest.approx((linear(product, 3), facts.parameter_norm))
    verdict = NAMES["expansion of the cost of a linear map"](facts)
    assert verdict.right == pytest.approx(remainder_bound(product, 3))
    assert 0 < verdict.left <= verdict.right


def test_the_second_correction_of_square_factors_is_subadditive():
    facts = random_facts(2, 1.0, False, (3, 3, 3, 3))
    verdict = NAMES["second correction of a product"](facts)
    r2 = [2 * float((torch.linalg.svdvals(w).log() ** 2).sum()) for w in facts.weights]
    product = facts.weights[2] @ facts.weights[1] @ facts.weights[0]
    assert verdict.status == HOLDS
    assert verdict.left == pytest.approx((2 * float((torch.linalg.svdvals(product).log() ** 2).sum())) ** 0.5)
    assert verdict.right == pytest.approx(sum(r**0.5 for r in r2))
    aligned = from_layers([torch.diag(torch.tensor([2.0, 3.0]))] * 4, slope=1.0)
    tight = NAMES["second correction of a product"](Facts(aligned, normal(3, 2)))
    assert tight.status == HOLDS
    assert tight.left == pytest.approx(tight.right)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, -0.5, 1.0]), st.booleans(), st.booleans())
def test_the_gradient_bounds_the_imbalance_of_any_network(seed, slope, bias, classes):
    """What the gradient explains is a theorem: it holds without any training."""
    y = torch.arange(8) % 2 if classes else normal(8, 2, seed=seed + 1)
    facts = random_facts(seed, slope, bias, y=y, ridge=0.05)
    limit, representation.STATIONARY = representation.STATIONARY, 1.0
    try:
        verdicts = [NAMES["balance of layers"](facts), NAMES["balance of neurons"](facts)]
    finally:
        representation.STATIONARY = limit
    for verdict in verdicts:
        assert verdict.status in (HOLDS, INCONCLUSIVE)  # inconclusive: what the gradient explains


def test_balance_is_tight_where_the_gradient_is_along_the_scaling():
    # W1 = 2, W2 = 1, f = 2 x, C = 0 at y = 2 x: the gradient is that of the penalty alone
    net = from_layers([torch.tensor([[2.0]]), torch.tensor([[1.0]])])
    x = torch.tensor([[1.0], [2.0]])
    facts = Facts(net, x, 2 * x, 0.5)
    assert facts.gradient_norm == pytest.approx(5**0.5)  # 2 lambda (2, 1)
    limit, representation.STATIONARY = representation.STATIONARY, 1.0
    try:
        verdict = NAMES["balance of neurons"](facts)
    finally:
        representation.STATIONARY = limit
    assert (verdict.left, verdict.right) == (4.0, 1.0)
    assert "a difference of 5" in verdict.note  # ||grad|| ||direction|| / (2 lambda) = 5, and |4 - 1| = 3
    assert verdict.status == INCONCLUSIVE
    assert NAMES["balance of neurons"](facts.altered(gradient_norm=0.5 * 5**0.5, stationarity=0.0)).status == VIOLATED


# Planted violations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OF_THE_NORM, "two-point bound"])
def test_too_small_a_norm_violates_all_lower_bounds(name):
    facts = random_facts(1)
    assert NAMES[name](facts.altered(parameter_norm=1e-3)).status == VIOLATED


@pytest.mark.parametrize("name", ["Jacobian bound", "pseudo-determinant bound", "bound on every singular value"])
def test_too_large_a_jacobian_is_found_at_its_sample(name):
    facts = random_facts(1)
    values = facts.jacobian_values.clone()
    values[5] *= 1e6
    verdict = NAMES[name](facts.altered(jacobian_values=values))
    assert verdict.status == VIOLATED
    assert "sample 5" in verdict.note


def test_linear_statements_are_violated_by_other_weights_and_other_jacobians():
    facts = random_facts(1, 1.0, False, (3, 3, 3))
    assert NAMES["cost of a linear map"](facts.altered(parameter_norm=0.1)).status == VIOLATED
    assert NAMES["cost of a linear map"](facts.altered(weights=[9 * w for w in facts.weights])).status == VIOLATED
    expansion = NAMES["expansion of the cost of a linear map"]
    assert expansion(facts.altered(jacobian_values=50 * facts.jacobian_values)).status == VIOLATED


def test_the_second_correction_is_violated_by_factors_that_are_no_factors():
    facts = random_facts(1, 1.0, False, (2, 2, 2))
    rotation = torch.linalg.qr(normal(2, 2))[0]
    stretch = torch.diag(torch.tensor([5.0, 0.2], dtype=torch.float64))

    class Lying(list):
        """Weights whose product is not what their singular values allow: asked one by one they are rotations."""

        def __iter__(self):
            return iter([rotation, rotation])

    verdict = NAMES["second correction of a product"](facts.altered(weights=Lying([stretch, stretch])))
    assert verdict.status == VIOLATED


@pytest.mark.parametrize("name", ["balance of layers", "balance of neurons"])
def test_a_network_that_only_claims_to_be_stationary_is_found_out(name):
    facts = random_facts(1, y=normal(8, 2, seed=9), ridge=RIDGE)
    verdict = NAMES[name](facts.altered(stationarity=1e-9, gradient_norm=1e-9))
    assert verdict.status == VIOLATED
    assert "layer" in verdict.note


def test_a_trained_network_off_balance_is_found_out(trained):
    weights = [w.clone() for w in trained.weights]
    neuron = int(weights[0].norm(dim=1).argmax())
    weights[0][neuron] *= 1.001
    weights[1][:, neuron] /= 1.001
    for name in ("balance of layers", "balance of neurons"):
        assert NAMES[name](trained.altered(weights=weights)).status == VIOLATED


# Assumptions -------------------------------------------------------------------------------------------------------


def test_each_missing_assumption_is_named():
    x = normal(8, 3)
    convolution = Facts(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)), x[:, None])
    tokens = Facts(nn.Embedding(3, 2), torch.tensor([0, 2]))
    for facts in (convolution, tokens):
        for statement in statements_in(representation):
            verdict = statement(facts)
            assert verdict.status == NOT_APPLICABLE
            assert "chain of linear layers" in verdict.reason
    relu, y = random_facts(0), normal(8, 2, seed=5)
    reasons = {
        "cost of a linear map": (relu, "linear (slope 1): slope 0"),
        "expansion of the cost of a linear map": (relu, "linear (slope 1)"),
        "second correction of a product": (random_facts(0, 1.0), "rank of the product (equal R0): ranks"),
        "two-point bound": (random_facts(0, -0.5), "ReLU: slope -0.5"),
        "balance of layers": (random_facts(0, y=y), "a ridge > 0 is given"),
        "balance of neurons": (random_facts(0, y=y, ridge=0.1), "stationary point of C + lambda"),
    }
    for name, (facts, reason) in reasons.items():
        verdict = NAMES[name](facts)
        assert verdict.status == NOT_APPLICABLE
        assert reason in verdict.reason
    no_targets = NAMES["balance of layers"](random_facts(0, ridge=0.1))
    assert "targets y are given" in no_targets.reason
    one_layer = NAMES["balance of layers"](random_facts(0, widths=(3, 2), y=y, ridge=0.1))
    assert "hidden neurons" in one_layer.reason


def test_r1_of_misaligned_factors_does_not_add_up():
    facts = Facts(
        from_layers([torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])], slope=1.0),
        normal(3, 2),
    )
    verdict = NAMES["second correction of a product"](facts)
    assert verdict.status == NOT_APPLICABLE
    assert "R1 of the layers adds up" in verdict.reason


def test_degenerate_networks_break_nothing():
    zero = Facts(from_layers([torch.zeros(3, 2), torch.zeros(1, 3)]), normal(4, 2))
    steady = from_layers([torch.zeros(2, 2), torch.ones(1, 2)], [torch.ones(2), torch.ones(1)], 0.3)
    constant = Facts(steady, normal(1, 2))
    deep = random_facts(0, widths=(2, *[2] * 30, 1), scale=0.5)
    single = random_facts(0)
    for facts in (zero, constant, deep, Facts(single.net.float(), single.x, rtol=0.0)):
        for name in ALWAYS:
            assert NAMES[name](facts).status == HOLDS


def test_a_sequential_is_read_as_the_chain_it_is():
    facts = random_facts(2)
    layers = [m for layer in facts.net.layers for m in (layer, nn.ReLU())][:-1]
    same = Facts(nn.Sequential(nn.Flatten(), *layers), facts.x[:, :, None])
    for name in [*ALWAYS, "two-point bound"]:
        assert NAMES[name](same).left == pytest.approx(NAMES[name](facts).left)
