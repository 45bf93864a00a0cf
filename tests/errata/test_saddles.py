"""E2, E3, E17, E18, E19, E21: slips of Bantzis2025, each shown to fail as printed and to hold as corrected.

Bias-free ReLU networks in NumPy, one sample per column as in the source: Z_l = W_l relu(Z_{l-1}), Z_0 = relu(Z_0) = X;
L0 = <G, Z_L>.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

import bnrank


def preactivations(weights, x):
    """Z_1, ..., Z_L."""
    z = [weights[0] @ x]
    for w in weights[1:]:
        z.append(w @ np.maximum(z[-1], 0))
    return z


def localized_loss(weights, x, g):
    return float((g * preactivations(weights, x)[-1]).sum())


def gradients(weights, x, g, at_kink=0.0):
    """Gradients of L0 by back-propagation; ``at_kink`` in [0, 1] is the derivative of relu at 0 (Clarke)."""
    z = preactivations(weights, x)
    activations = [x, *(np.maximum(a, 0) for a in z[:-1])]
    delta, result = g, []
    for layer in reversed(range(len(weights))):
        result.append(delta @ activations[layer].T)
        if layer:
            below = z[layer - 1]
            delta = (weights[layer].T @ delta) * np.where(np.abs(below) < 1e-12, at_kink, below > 0)
    return result[::-1]


def flat(weights):
    return np.concatenate([w.ravel() for w in weights])


def shaped(theta, like):
    pieces = np.split(theta, np.cumsum([w.size for w in like])[:-1])
    return [p.reshape(w.shape) for p, w in zip(pieces, like, strict=True)]


def rescaled(weights, radius):
    return [w * radius / np.linalg.norm(flat(weights)) for w in weights]


def radius_along_flow(weights, x, g, t, at_kink=0.0):
    """||theta(t)|| under d theta / dt = -grad L0, and how far the direction has turned."""
    start = flat(weights)

    def velocity(_, theta):
        return -flat(gradients(shaped(theta, weights), x, g, at_kink))

    end = solve_ivp(velocity, (0, t), start, rtol=1e-11, atol=1e-13).y[:, -1]
    turned = np.linalg.norm(end / np.linalg.norm(end) - start / np.linalg.norm(start))
    return np.linalg.norm(end), turned


def circle():
    """T40: eight points of the unit circle with G = +1, -1, ..., and the direction of rank two with speed 1/2."""
    angle = 2 * np.pi * np.arange(8) / 8
    x, g = np.stack([np.sin(angle), np.cos(angle)]), (-1.0) ** np.arange(8)[None]
    x[np.abs(x) < 1e-15] = 0
    w1 = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    return x, g, [w1, np.array([[1.0, -1.0, 1.0, -1.0]]) / 2, np.array([[-1.0]])]


def positive_direction(depth):
    """Positive data, G <= 0: a smooth escape direction W_L ... W_1 = top singular pair of -G X^T, and its speed."""
    rng = np.random.default_rng(0)
    x, g = rng.uniform(0.1, 1, (3, 5)), -rng.uniform(0.1, 1, (2, 5))
    u, s, v = np.linalg.svd(-g @ x.T)
    u, v = np.abs(u[:, :1]), np.abs(v[:1])
    return x, g, [v, *[np.ones((1, 1))] * (depth - 2), u], s[0]


def radius_by_law(t, r0, speed, depth):
    """T37: d r / dt = L^{1 - L/2} s r^{L-1}."""
    rate = depth ** (1 - depth / 2) * speed
    if depth == 2:
        return r0 * math.exp(rate * t)
    return (r0 ** (2 - depth) + (2 - depth) * rate * t) ** (1 / (2 - depth))


def time_by_law(r, r0, speed, depth):
    rate = depth ** (1 - depth / 2) * speed
    return math.log(r / r0) / rate if depth == 2 else (r0 ** (2 - depth) - r ** (2 - depth)) / ((depth - 2) * rate)


def test_e2_growth_law_on_the_circle():
    x, g, rho = circle()
    kink = math.sqrt(2) / 4  # the Clarke subgradient under which rho is an escape direction: the data lie on kinks
    for grad, w in zip(gradients(rho, x, g, kink), rho, strict=True):
        np.testing.assert_allclose(grad, -0.5 * w, atol=1e-15)
    r0, t = 0.1 * math.sqrt(3), 6.0
    r, turned = radius_along_flow(rescaled(rho, r0), x, g, t, kink)
    assert turned < 1e-9
    assert r == pytest.approx(0.2474, abs=5e-5)
    assert r == pytest.approx(radius_by_law(t, r0, 0.5, 3), rel=1e-8)
    printed = r0**-1 - 3 * 0.5 * t  # (r0^{2-L} + (2-L) L s t) = 1 / r
    assert printed < 0  # blown up, at t = 3.85
    assert time_by_law(r, r0, 0.5, 3) == pytest.approx(t, rel=1e-8)
    plus = (1 / r0 + 1 / r) / (3 * 0.5)  # the printed time, with its plus sign
    assert plus == pytest.approx(6.54, abs=0.01)


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
@pytest.mark.parametrize(
    "relative", [0.3, 1.0]
)  # 1: the start ||theta(t_0)|| = sqrt L, the only one in the source (E17)
def test_e2_growth_law_on_positive_data(depth, relative):
    x, g, rho, speed = positive_direction(depth)
    assert np.linalg.norm(flat(rho)) == pytest.approx(math.sqrt(depth))
    for grad, w in zip(gradients(rho, x, g), rho, strict=True):
        np.testing.assert_allclose(grad, -speed * w, atol=1e-13)
    assert localized_loss(rho, x, g) == pytest.approx(-speed)
    r0 = relative * math.sqrt(depth)
    target = 1.5 * r0
    t = time_by_law(target, r0, speed, depth)
    r, turned = radius_along_flow(rescaled(rho, r0), x, g, t)
    assert turned < 1e-8
    assert r == pytest.approx(target, rel=1e-7)
    printed_rate = depth * speed * r0 ** (depth - 1)
    velocity = np.linalg.norm(flat(gradients(rescaled(rho, r0), x, g)))
    assert printed_rate == pytest.approx(velocity * depth ** (depth / 2))  # L^{L/2} times too fast


@pytest.mark.parametrize("depth", [3, 4, 6])
def test_e2_escape_time_needs_a_minus(depth):
    """Even with the printed rate L s, the printed time does not invert the printed law."""
    r0, r, speed = 0.2, 0.7, 0.3
    printed_time = (r0 ** (2 - depth) + r ** (2 - depth)) / ((depth - 2) * depth * speed)
    minus = (r0 ** (2 - depth) - r ** (2 - depth)) / ((depth - 2) * depth * speed)
    assert r0 ** (2 - depth) + (2 - depth) * depth * speed * printed_time < 0
    assert (r0 ** (2 - depth) + (2 - depth) * depth * speed * minus) ** (1 / (2 - depth)) == pytest.approx(r)


@pytest.fixture(scope="module", params=[3, 4])
def two_clocks(request):
    """A flow from a general smooth start, with s = int r^{L-2} dt, I = int L0(direction) ds and more."""
    depth = request.param
    rng = np.random.default_rng(depth)
    x, g = rng.uniform(0.1, 1, (3, 5)), -rng.uniform(0.1, 1, (2, 5))
    widths = [3, *[4] * (depth - 1), 2]
    weights = [rng.uniform(0.05, 1, (b, a)) for a, b in itertools.pairwise(widths)]
    weights = rescaled(weights, 0.6)
    r0, size = 0.6, flat(weights).size

    def velocity(_, state):
        theta, integral = state[:size], state[size + 1]
        r = np.linalg.norm(theta)
        ds = r ** (depth - 2)
        loss = localized_loss(shaped(theta / r, weights), x, g)
        d_theta = -flat(gradients(shaped(theta, weights), x, g))
        with_factor, printed = (np.exp(c * (depth - 2) * integral) * ds for c in (depth, 1))
        return [*d_theta, ds, loss * ds, with_factor, printed, ds * ds]

    t = {3: 0.35, 4: 0.9}[depth]
    end = solve_ivp(velocity, (0, t), [*flat(weights), 0, 0, 0, 0, 0], rtol=1e-10, atol=1e-12).y[:, -1]
    return depth, x, g, weights, r0, t, end[:size], *end[size:]


def test_e3_the_exponent_has_a_factor_of_depth(two_clocks):
    depth, _, _, _, r0, t, theta, _, integral, with_factor, printed, _ = two_clocks
    r = np.linalg.norm(theta)
    assert r > 1.3 * r0
    assert r0 * math.exp(-depth * integral) == pytest.approx(r, rel=1e-8)
    assert r0 * math.exp(-integral) < 0.9 * r
    assert r0 ** (2 - depth) * with_factor == pytest.approx(t, rel=1e-8)
    assert r0 ** (2 - depth) * printed > 1.05 * t


def test_e17_the_new_time_is_an_integral_over_the_old(two_clocks):
    depth, x, g, weights, r0, _, theta, s, _, _, _, over_s = two_clocks
    direction = theta / np.linalg.norm(theta)

    def velocity(_, bar):
        gradient = flat(gradients(shaped(bar, weights), x, g))
        return -(gradient - bar * (bar @ gradient))

    def after(time):
        return solve_ivp(velocity, (0, time), flat(weights) / r0, rtol=1e-10, atol=1e-12).y[:, -1]

    np.testing.assert_allclose(after(s), direction, atol=1e-8)
    assert abs(over_s - s) > 0.1 * s  # the print integrates ||theta||^{L-2} over s itself: that is s only at radius 1
    assert np.abs(after(over_s) - direction).max() > 1e-3
    assert depth > 2


def test_e17_the_optimal_speed_is_minus_the_minimum():
    x, g, rho = circle()
    minimum = localized_loss(rho, x, g)
    assert minimum == pytest.approx(-0.5, abs=1e-15)
    product = np.linalg.norm(x) * np.linalg.norm(g)
    assert product / minimum < 0  # printed: c takes the logarithm of this
    speed = -minimum
    assert product / speed * math.sqrt(2 * math.log(product / speed)) == pytest.approx(37.68, abs=0.01)


def test_e17_the_example_needs_a_negative_last_weight():
    x, g, rho = circle()
    printed = [*rho[:2], np.array([[1.0]])]
    assert localized_loss(printed, x, g) == pytest.approx(0.5, abs=1e-15)  # L0 grows along it
    assert localized_loss(rho, x, g) == pytest.approx(-0.5, abs=1e-15)
    assert [np.linalg.matrix_rank(w) for w in rho] == [2, 1, 1]  # not two matrices of rank two


def test_e17_the_ratio_of_singular_values_has_a_constant():
    """X = I_2, G = -I_2, depth 2: an optimal direction whose second layer has equal singular values."""
    x, g = np.eye(2), -np.eye(2)
    rho = [np.eye(2) / math.sqrt(2)] * 2
    speed = -localized_loss(rho, x, g)
    assert speed == pytest.approx(1)
    rng = np.random.default_rng(0)
    fastest = max(-localized_loss(rescaled(list(rng.normal(size=(2, 2, 2))), math.sqrt(2)), x, g) for _ in range(2000))
    assert 0.8 < fastest <= 1  # 1 is optimal: |L0| <= ||W_2||_F ||relu(W_1)||_F
    first, second = np.linalg.svd(rho[1])[1]
    assert first / second < 2**0.25  # printed: at least l^{1/4}
    c = 2 / speed * math.sqrt(2 * math.log(2 / speed))
    assert c / math.sqrt(2) > 1  # the theorem has a constant, and says nothing here


def deepened(weights, x, g, choose):
    """T39 with one more layer: keep one pair (row of W_{L-1}, column of W_L) of the last hidden layer."""
    *before, inner, outer = weights
    below = np.maximum(preactivations(before, x)[-1], 0) if before else x
    hidden = np.maximum(inner @ below, 0)
    contributions = np.einsum("oi,in,on->i", outer, hidden, g)
    sizes = np.linalg.norm(outer, axis=0) * np.linalg.norm(inner, axis=1)
    kept = np.argmin(contributions / sizes if choose == "normalized" else contributions)
    scale = math.sqrt(sizes.sum())
    row = inner[kept : kept + 1] / np.linalg.norm(inner[kept])
    column = outer[:, kept : kept + 1] / np.linalg.norm(outer[:, kept])
    return [*before, scale * row, np.ones((1, 1)), scale * column]


def test_e18_the_deeper_network_is_not_linear_at_its_output():
    x, g, rho = circle()
    deep = deepened(rho, x, g, "normalized")
    assert localized_loss(deep, x, g) == pytest.approx(-0.5)
    *_, z_inserted, z_output = preactivations(deep, x)
    np.testing.assert_array_equal(np.maximum(z_inserted, 0), z_inserted)
    assert np.linalg.norm(np.maximum(z_output, 0) - z_output) == pytest.approx(np.linalg.norm(z_output))
    assert np.linalg.norm(z_output) > 0.3


def test_e18_the_kept_pair_is_the_best_normalized_one():
    rng = np.random.default_rng(0)
    slower = {"normalized": 0, "plain": 0}
    tried = 0
    while tried < 2000:
        x, g = rng.normal(size=(3, 6)), rng.normal(size=(2, 6))
        weights = rescaled([rng.normal(size=s) for s in ((4, 3), (4, 4), (2, 4))], math.sqrt(3))
        loss = localized_loss(weights, x, g)
        if loss >= 0:
            continue
        tried += 1
        for choose in slower:
            deep = deepened(weights, x, g, choose)
            size = np.linalg.norm(flat(deep)) ** 2
            assert size <= 4 + 1e-12
            slower[choose] += localized_loss(deep, x, g) > loss + 1e-12
    assert slower["normalized"] == 0
    assert 5 <= slower["plain"] <= 40  # 16 of these 2,000


def small_input_noise():
    """u v^T + E with v >= 0, an optimal direction for it (speed 1), and the loss gradient G."""
    noise = 0.2
    u, v = np.array([[1.0], [0.0]]), np.ones((1, 2)) / math.sqrt(2)
    e = noise * np.array([[0.0], [1.0]]) @ np.array([[1.0, -1.0]]) / math.sqrt(2)
    return u, v, e, noise, -v, [np.array([[1.0, 0.0]]), np.eye(1)]


def test_e19_sign_of_the_lower_bound():
    u, v, e, noise, g, best = small_input_noise()
    with_noise, without = localized_loss(best, u @ v + e, g), localized_loss(best, u @ v, g)
    assert with_noise == pytest.approx(-1)
    assert with_noise < -without - noise  # printed: >= -L0(u v^T) - ||G|| eps
    rng = np.random.default_rng(0)
    for _ in range(300):
        x, g = rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
        e = rng.normal(size=(3, 5)) * 0.1
        weights = rescaled([rng.normal(size=s) for s in ((4, 3), (4, 4), (2, 4))], math.sqrt(3))
        gap = localized_loss(weights, x + e, g) - localized_loss(weights, x, g)
        assert gap >= -np.linalg.norm(g) * np.linalg.norm(e)


def test_e19_sign_of_the_second_term():
    u, v, e, noise, g, best = small_input_noise()
    # best is optimal at its depth 2 with one output: the speed is that of the best unit
    angle = np.linspace(0, 2 * np.pi, 100_001)
    units = np.stack([np.cos(angle), np.sin(angle)], 1)
    assert np.abs(np.maximum(units @ (u @ v + e), 0) @ v.T).max() <= 1 + 1e-12
    ratio = np.linalg.norm(preactivations(best, u @ v + e)[-1]) / np.linalg.norm(u @ v + e)
    assert ratio == pytest.approx(1 / math.sqrt(1.04))
    k, b = 2 * np.linalg.norm(g) / np.linalg.norm(g @ v.T), 1.0  # ||u|| = ||v|| = 1
    printed = 1 - (k - 2 * b) / (1 + noise) * noise
    corrected = 1 - (k + 2 * b) / (1 + noise) * noise
    assert printed == pytest.approx(1)
    assert ratio < printed
    assert corrected == pytest.approx(((1 - k * noise) - b * noise) / (1 + b * noise))
    assert ratio > corrected


def test_e19_the_product_needs_activations():
    """After (5): factors ||W_l Z_{l-1}|| for ||W_l relu(Z_{l-1})||."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5))
    weights = [rng.normal(size=s) for s in ((4, 3), (4, 4), (2, 4))]
    z = [x, *preactivations(weights, x)]
    activations = [x, *(np.maximum(a, 0) for a in z[1:])]
    norm = np.linalg.norm

    def product(inputs):
        factors = [norm(w @ i) / norm(z[k]) for k, (w, i) in enumerate(zip(weights, inputs, strict=True))]
        return math.prod(factors)

    true = norm(z[-1]) / norm(x)
    assert product(activations[:-1]) == pytest.approx(true)
    assert product(z[:-1]) > 1.2 * true
    # so too in A.3, where L0 is split into the last hidden neurons
    g = rng.normal(size=(2, 5))
    split = [(g * (weights[2] @ np.maximum(weights[1] @ below[1], 0))).sum() for below in (z, activations)]
    assert split[1] == pytest.approx(localized_loss(weights, x, g))
    assert abs(split[0] - split[1]) > 0.1
    # and the bound by ||W||_op / ||W||_F, which the next step uses, holds for activations only
    w, below = np.eye(2), np.array([[1.0], [-2.0]])
    share = np.linalg.norm(w, 2) / norm(w)
    assert norm(w @ below) / (norm(w) * norm(np.maximum(below, 0))) > share
    assert norm(w @ np.maximum(below, 0)) / (norm(w) * norm(np.maximum(below, 0))) <= share + 1e-15


def test_e19_the_eigenvector_equation():
    a = np.random.default_rng(0).uniform(size=(3, 4))
    s = np.linalg.norm(a, 2)
    right = np.linalg.svd(a)[2][0]
    left = a @ right / s
    assert np.linalg.norm(a.T @ a @ right - s * right) > 0.1  # printed
    np.testing.assert_allclose(a.T @ a @ right, s**2 * right, atol=1e-14)
    assert a.shape[1] != len(left)  # printed: A v = s u, which has no meaning unless A is square
    np.testing.assert_allclose(a.T @ left, s * right, atol=1e-14)


def test_e19_signed_inputs_of_rank_one_are_not_enough():
    """X = (1, -1), G = -I_2: exactly rank one, yet an optimal direction has a second layer of rank two."""
    x, g = np.array([[1.0, -1.0]]), -np.eye(2)
    rho = [np.array([[1.0], [-1.0]]) / math.sqrt(2), np.eye(2) / math.sqrt(2)]
    assert localized_loss(rho, x, g) == pytest.approx(-1)
    values = np.linalg.svd(rho[1])[1] ** 2
    assert values[1] / values.sum() == pytest.approx(0.5)  # printed with layer 0 admitted: eps = 0, hence 0
    # the optimum: |L0| <= ||W_2||_F ||relu(W_1 X)||_F, and ||relu(W_1 X)||_F = ||W_1||_F for this X
    rng = np.random.default_rng(0)
    for _ in range(200):
        w1 = rng.normal(size=(3, 1))
        assert np.linalg.norm(np.maximum(w1 @ x, 0)) == pytest.approx(np.linalg.norm(w1))
    # with non-negative inputs of rank one the bound is what it says: every layer of rank one
    positive = np.array([[1.0, 1.0]])
    best = min(
        (minimize(objective, rng.normal(size=6), args=(positive, g), tol=1e-12) for _ in range(5)),
        key=lambda found: found.fun,
    )
    w2 = shaped(best.x, [np.zeros((2, 1)), np.zeros((2, 2))])[1]
    values = np.linalg.svd(w2)[1] ** 2
    assert best.fun == pytest.approx(-math.sqrt(2))
    assert values[1] / values.sum() < 1e-6


def objective(theta, x, g):
    return localized_loss(rescaled(shaped(theta, [np.zeros((2, 1)), np.zeros((2, 2))]), math.sqrt(2)), x, g)


def test_e19_six_matrices_have_five_hidden_layers():
    matrices = [(10, 8), *[(10, 10)] * 4, (3, 10)]  # appendix B's list, at a hundredth of its width
    four = bnrank.MLP([8, *[10] * 4, 3], bias=False)
    five = bnrank.MLP([8, *[10] * 5, 3], bias=False)
    assert [tuple(w.shape) for w in five.weights] == matrices
    assert [tuple(w.shape) for w in four.weights] != matrices


@pytest.mark.parametrize("depth", [2, 3, 20])
def test_e21_the_bounds_do_not_cover_the_output_layer(depth):
    x = g = np.ones((1, 1))
    rho = [*[np.ones((1, 1))] * (depth - 1), -np.ones((1, 1))]
    speed = -localized_loss(rho, x, g)
    assert speed == 1  # the optimum: |L0| <= prod ||W_l||_F
    c = 1 / speed * math.sqrt(2 * math.log(1 / speed))
    assert c == 0  # so the bound is 0 in every layer
    nonlinearity = [np.linalg.norm(np.maximum(z, 0) - z) / np.linalg.norm(z) for z in preactivations(rho, x)]
    assert nonlinearity == [0] * (depth - 1) + [1]
