"""E5 and the first part of E15: what the print says fails, what is said here holds."""

import itertools
import math

import pytest
import torch

from bnrank.networks.mlp import from_layers
from bnrank.theory.cost.bounds import r1_lower_bound, two_point
from bnrank.theory.cost.closed_forms import linear, linear_corrections
from helpers import norm


def chain(scale, depth, slope=0.0):
    """The scalar network x -> scale sigma(x), all weights equal."""
    return from_layers([torch.full((1, 1), scale ** (1 / depth), dtype=torch.float64)] * depth, slope=slope)


def jacobian(net, x):
    return float(torch.autograd.functional.jacobian(net, torch.tensor([x], dtype=torch.float64)))


BOTH_SIDES = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)


@pytest.mark.parametrize("depth", [2, 5, 50])
def test_e5_the_limit_needs_both_jacobians_of_rank_r0(depth):
    """Print: R1 >= log|Jf(x)|_+ + log|Jf(y)|_+ + C^{-2} ||Jf(x) - Jf(y)||_* at any two points."""
    relu = chain(1.0, depth)
    at_x, at_y = jacobian(relu, 1.0), jacobian(relu, -1.0)
    assert (at_x, at_y) == (1.0, 0.0)
    printed = math.log(at_x) + 0.0 + abs(at_x - at_y)  # the empty product |0|_+ is 1; C = 1, all weights being 1
    r1_at_most = norm(relu) - depth * 1  # R0 = 1, and ||theta||^2 = L at every depth
    assert (r1_at_most, printed) == (0.0, 1.0)  # the print asks for R1 >= 1
    bound = two_point(relu, BOTH_SIDES)  # at finite depth it holds: L/2 (1 + 0) + 1 <= L
    assert bound == pytest.approx(depth / 2 + 1)
    assert bound <= norm(relu)
    assert r1_lower_bound(relu, BOTH_SIDES) == pytest.approx(0, abs=1e-12)  # one point, of rank R0


@pytest.mark.parametrize("depth", [2, 3])
def test_e5_the_constant_is_at_least_one(depth):
    """Print: C any bound on the Jacobians of a~_l and a_l -> f, l = 1..L-1, without a floor."""
    small = chain(0.1, depth)
    jacobians = [0.1 ** (layer / depth) for layer in range(1, depth)]
    lipschitz = max(jacobians)
    assert lipschitz < 1
    costs = depth * 0.1 ** (2 / depth) / 2  # at the positive side; the negative one has none
    assert costs + lipschitz**-2 * 0.1 > norm(small)
    bound = two_point(small, BOTH_SIDES)
    assert bound.constant == 1
    assert bound == pytest.approx(costs + 0.1)
    assert bound <= norm(small) * (1 + 1e-12)
    if depth == 2:
        assert bound == pytest.approx(norm(small))  # and tight


def test_e5_the_slope_is_zero():
    """At slope -1/2 the largest constant in front of C^{-2} ||.||_* is 1/3."""
    net = chain(1.0, 2, slope=-0.5)
    at_x, at_y = jacobian(net, 1.0), jacobian(net, -1.0)
    assert (at_x, at_y) == (1.0, -0.5)
    costs, nuclear = abs(at_x) + abs(at_y), abs(at_x - at_y)  # (L/2)(|J|^{2/L} + |J|^{2/L}) at L = 2
    assert norm(net) == 2
    assert (norm(net) - costs) / nuclear == pytest.approx(1 / 3)
    assert costs + nuclear > norm(net)
    with pytest.raises(ValueError, match="slope -0\\.5"):
        two_point(net, BOTH_SIDES)


def test_e5_the_printed_proof_gives_half_but_one_is_true():
    """Random and tight networks: with the constant 1 the bound is never above the norm, and reaches it."""
    tightest = 0.0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        depth = 2 + seed % 4
        widths = [2, *[3] * (depth - 1), 2]
        weights = [torch.randn(b, a, generator=generator).double() for a, b in itertools.pairwise(widths)]
        net = from_layers(weights)
        bound = two_point(net, torch.randn(12, 2, generator=generator).double())
        assert bound <= norm(net)
        tightest = max(tightest, bound / norm(net))
    assert tightest < 1
    relu = chain(1.0, 2)
    bound = two_point(relu, BOTH_SIDES)
    halved = bound - bound.difference / bound.constant**2 / 2
    assert halved == 1.5
    assert bound == norm(relu) == 2


@pytest.mark.parametrize(("alpha", "beta", "p"), [(2.0, 1.0, 2 / 3), (1.0, 2.0, 2 / 3), (1.0, 1.5, 0.25)])
def test_e15_the_weights_of_the_second_correction_are_swapped(alpha, beta, p):
    """Jacot2023b (1): p = L_f / (L_f + L_g), and R2(f) belongs to the depth L_f, so it is over p."""
    f, g, product = [[math.exp(alpha)]], [[math.exp(beta)]], [[math.exp(alpha + beta)]]
    (_, r1_f, r2_f), (_, r1_g, r2_g), (_, r1, r2) = map(linear_corrections, (f, g, product))
    assert r1 == pytest.approx(r1_f + r1_g)
    corrected, printed = r2_f / p + r2_g / (1 - p), r2_f / (1 - p) + r2_g / p
    depth = 1_200_000
    deep = round(p * depth)
    limit = depth * (linear(f, deep) + linear(g, depth - deep) - depth - r1)  # what the proof lets tend to infinity
    assert limit == pytest.approx(corrected, rel=1e-3)
    assert abs(limit - printed) > 0.1 * limit
    assert r2 <= corrected * (1 + 1e-12)
    if p == pytest.approx(alpha / (alpha + beta)):  # where the straight line in log space has f end: equality
        assert r2 == pytest.approx(corrected)
        assert printed > 1.4 * r2
    best = min(r2_f / q + r2_g / (1 - q) for q in torch.linspace(0.001, 0.999, 9999).tolist())
    assert math.sqrt(best) == pytest.approx(math.sqrt(r2_f) + math.sqrt(r2_g), rel=1e-6)
