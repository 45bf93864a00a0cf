"""E6, E7, E16, E22 to E25: slips of Jacot2023a, Jacot2023b and the slides Jacot2023c.

Each is shown to fail as printed and to hold as corrected, in float64.
"""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from bnrank.networks.mlp import MLP, from_layers, leaky_relu
from bnrank.tasks import bottleneck_spectra_map
from helpers import normal


def jacobian(function, x):
    return torch.autograd.functional.jacobian(function, x)


# E6: the proof of the layer of almost rank one (T15)


def test_e6_the_last_lines_have_the_ratios_upside_down():
    depths = 10.0 ** np.arange(1, 7)
    singular_values = [np.linalg.svd(np.diag([1.0, depth**-0.25]))[1] for depth in depths]
    printed = np.array([s[0] / s[1] for s in singular_values])  # O(L^{-1/4}) in print
    corrected = np.array([s[1] / s[0] for s in singular_values])
    assert (printed >= 1).all()  # as for every matrix: never O(L^{-1/4})
    np.testing.assert_allclose(corrected, depths**-0.25)


def test_e6_the_cross_term_with_the_bias():
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(1000):
        z = np.maximum(rng.normal(size=(3, 6)), 0)
        w, b = rng.normal(size=(4, 3)), rng.normal(size=(4, 1))
        n = z.shape[1]
        left = np.linalg.norm(np.maximum(w @ z + b, 0)) ** 2 / n
        weights, bias = np.linalg.norm(w) ** 2, np.linalg.norm(b) ** 2
        broken += left > np.linalg.norm(z, 2) ** 2 / n * weights + bias
        with_ones = np.linalg.norm(np.vstack([z, np.ones((1, n))]), 2) ** 2 / n
        assert left <= with_ones * (weights + bias)
    assert 0 < broken < 1000
    one = np.ones((1, 1))
    assert np.linalg.norm(np.maximum(one @ one + one, 0)) ** 2 == 4  # printed: at most 1 * 1 + 1 = 2
    assert np.linalg.norm(np.vstack([one, one]), 2) ** 2 * 2 == pytest.approx(4)  # the corrected bound is attained


def covariance(z):
    centered = z - z.mean(1, keepdims=True)
    return centered @ centered.T / z.shape[1]


@pytest.mark.parametrize(("d", "growth"), [(16, 1.8), (64, 7), (256, 30)])
def test_e6_centering_does_not_contract_in_operator_norm(d, growth):
    """Half the samples are balanced +-1 vectors, half are 0: relu makes one direction of all the signs."""
    z = np.hstack([hadamard(d)[1:].T, np.zeros((d, d - 1))])
    before, after = covariance(z), covariance(np.maximum(z, 0))  # W = I, b = 0
    assert np.linalg.norm(after, 2) > growth * np.linalg.norm(before, 2)  # printed: at most ||W||_op^2 = 1 times it
    assert np.trace(after) <= np.trace(before)


def test_e6_centering_contracts_in_trace():
    rng = np.random.default_rng(0)
    for _ in range(300):
        z, w, b = rng.normal(size=(3, 8)), rng.normal(size=(5, 3)), rng.normal(size=(5, 1))
        after = covariance(np.maximum(w @ z + b, 0))
        assert np.trace(after) <= np.linalg.norm(w, 2) ** 2 * np.trace(covariance(z))


def test_e6_the_smaller_of_one_and_the_norm():
    """The step (l0 delta - t) / max(t, 1) >= -min(1, 1/t), t = ||X^T X / N||_op: the 1/t should be t."""
    t, spent = np.meshgrid(np.geomspace(0.01, 100, 41), np.linspace(0, 1, 11))
    left = (spent - t) / np.maximum(t, 1)
    assert (left[t > 3] < -np.minimum(1, 1 / t)[t > 3]).any()
    assert (left >= -np.minimum(1, t) - 1e-15).all()


def test_e6_the_depth_from_which_the_norm_falls():
    """For l <= l1 = ceil(2t / delta), max(t, 1) (l + C_N) / (L - l) has to be at most delta / 2; then l0 <= l1."""
    for t, constant, delta in [(1.0, 1.0, 0.01), (0.3, 5.0, 0.1), (4.0, 0.5, 0.03)]:
        last = math.ceil(2 * t / delta)
        printed = 2 * max(t, 1) * (constant + last) + last
        corrected = 2 * max(t, 1) * (constant + last) / delta + last

        def growth(depth, t=t, constant=constant, last=last):
            return max(t, 1) * (last + constant) / (depth - last)

        assert growth(printed) == pytest.approx(1 / 2)
        assert growth(corrected) == pytest.approx(delta / 2)
    # with delta = sqrt(kappa / L), l1 = O(sqrt L); the print has 2t sqrt(L) / (delta sqrt(kappa)), which is O(L)
    kappa, t = 3.0, 1.0
    depths = np.array([1e4, 1e6])
    deltas = np.sqrt(kappa / depths)
    for bound, order in ((2 * t / deltas, 0.5), (2 * t * np.sqrt(depths) / (deltas * math.sqrt(kappa)), 1.0)):
        assert math.log(bound[1] / bound[0], 100) == pytest.approx(order)


# E7 and E16: the data of the first figure (F1)


@pytest.mark.parametrize("latents", [4, 5])
def test_e7_four_latents_and_five_are_different_tasks(latents):
    task = bottleneck_spectra_map(rank=latents, n=20, n_test=0)
    for z in task.truth.latents[:5].double():
        assert torch.linalg.matrix_rank(jacobian(task.truth.y_of_latents, z), rtol=1e-9) == latents
    other = bottleneck_spectra_map(rank=9 - latents, n=20, n_test=0)
    assert torch.equal(task.x, other.x)
    assert not torch.equal(task.y, other.y)


def test_e16_the_outputs_are_a_function_of_latents_not_inputs():
    truth = bottleneck_spectra_map(rank=5, n=20, n_test=0).truth
    for z in truth.latents[:5].double():
        corrected = jacobian(truth.y_of_latents, z)  # y = h(z_1, ..., z_5)
        printed = jacobian(lambda latents: truth.y_of_latents(truth.x_of_latents(latents)), z)  # y = h(x_1, ..., x_5)
        assert (corrected[:, 5:] == 0).all()
        assert (corrected[:, :5].abs().sum(0) > 0.1).all()
        assert (printed.abs().sum(0) > 0.01).all()  # depends on all 15 latents, while the source says on 5


# E16: depths, counts and the slides


def depth_of_fplf(d):
    """T20: weight layers that suffice for every finite piecewise linear function of d variables."""
    return math.ceil(math.log2(d + 1)) + 1


def max_of_four(affine):
    """Max of four affine maps of R^3 in three weight layers, by max(a, b) = relu(a - b) + relu(b) - relu(-b)."""
    pair = torch.tensor([[1.0, -1], [0, 1], [0, -1]], dtype=torch.float64)
    read = torch.tensor([[1.0, 1, -1]], dtype=torch.float64)
    first = torch.block_diag(pair, pair)
    second = pair @ torch.block_diag(read, read)
    biases = [first @ affine[:, 3], torch.zeros(3), torch.zeros(1)]
    return from_layers([first @ affine[:, :3], second, read], biases)


def test_e16_brackets_in_the_depth_formula():
    def printed(d):
        return math.ceil(math.log2(d) + 1) + 1

    assert {d for d in range(1, 17) if printed(d) == depth_of_fplf(d)} == {1, 2, 4, 8, 16}
    assert all(printed(d) == depth_of_fplf(d) + 1 for d in (3, 5, 6, 7, 9, 15))  # one layer too many
    affine, x = normal(4, 4, seed=0), normal(200, 3, seed=1)
    net = max_of_four(affine)
    assert net.depth == depth_of_fplf(3) == printed(3) - 1
    expected = (x @ affine[:, :3].T + affine[:, 3]).max(1).values
    torch.testing.assert_close(net(x)[:, 0], expected, rtol=0, atol=1e-13)


def test_e16_the_missing_layer_in_the_depth_formula():
    """The print gives g: R^{n_0} -> R the depth ceil(log2(n_0 + 1)): one layer for n_0 = 1, which is affine."""
    assert math.ceil(math.log2(1 + 1)) == 1
    x = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    for seed in range(20):
        one_layer = MLP([1, 1], init=1.0, seed=seed, dtype=torch.float64)
        assert one_layer(x).diff(n=2, dim=0).abs() < 1e-14  # of |x| it is 2
    two = from_layers([torch.tensor([[1.0], [-1.0]]), torch.ones(1, 2)])
    assert two.depth == depth_of_fplf(1)
    assert torch.equal(two(x), x.abs())


def monomials(d, degree):
    """Exponents of d variables that sum to the degree, counted one variable at a time."""
    if d == 1:
        return 1
    return sum(monomials(d - 1, degree - first) for first in range(degree + 1))


def test_e16_the_count_of_monomials():
    for d in (1, 2, 3, 4):
        counts = [monomials(d, degree) for degree in range(41)]
        assert counts == [math.comb(m + d - 1, d - 1) for m in range(41)]
        assert np.cumsum(counts).tolist() == [math.comb(m + d, d) for m in range(41)]
    # printed: m^d monomials of degree m. At d = 3, m = 40 that is 64,000; there are 861, and 12,341 up to degree 40
    assert (monomials(3, 40), sum(monomials(3, m) for m in range(41))) == (861, 12_341)

    def order(count, d, m=10**6):  # p of a growth like m^p
        return math.log2(count(2 * m, d) / count(m, d))

    for d in (2, 3, 10):
        assert order(lambda m, d: math.comb(m + d - 1, d - 1), d) == pytest.approx(d - 1, abs=1e-4)
        assert order(lambda m, d: math.comb(m + d, d), d) == pytest.approx(d, abs=1e-4)
        assert math.comb(10**6 + d, d) * math.factorial(d) / 10 ** (6 * d) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("slope", "differs"), [(0.0, False), (0.3, True), (-0.5, False)])
def test_e16_the_activation_is_applied_twice(slope, differs):
    """The slides have alpha_l = sigma(W_l alpha_{l-1} + b_l) and f = W_L sigma(alpha_{L-1}) + b_L."""
    net = MLP([3, 8, 8, 2], slope=slope, seed=0, dtype=torch.float64)
    x = normal(50, 3, seed=0)
    alpha = x
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        alpha = leaky_relu(alpha @ w.T + b, slope)
    last_w, last_b = net.weights[-1], net.biases[-1]
    printed, corrected = leaky_relu(alpha, slope) @ last_w.T + last_b, alpha @ last_w.T + last_b
    torch.testing.assert_close(corrected, net(x), rtol=0, atol=1e-14)
    assert bool((printed - net(x)).abs().max() > 0.1) == differs
    assert differs or torch.equal(printed, corrected)  # relu, or a negative slope: the activations are >= 0


def statistics(v, w):
    along = (v @ w).abs()
    return torch.stack([along, (v - (v @ w)[:, None] * w).norm(dim=1)], 1)


def descend(v, w, steps, eta, e=0.0):
    """Gradient descent on ||v v^T - (w w^T + E)||_F^2, E symmetric, one row per start."""
    target = torch.outer(w, w) + e
    for _ in range(steps):
        v = v - eta * 4 * (v * (v * v).sum(1, keepdim=True) - v @ target)
    return v


def test_e16_both_pairs_of_summary_statistics_close():
    """Slides: (|w^T v|, ||(I - w w^T) v||); paper: their squares. Either evolves on its own."""
    w = normal(20, seed=0)
    w = w / w.norm()
    v = normal(6, 20, seed=1) * 0.2
    gradient = torch.autograd.functional.jacobian(
        lambda u: (torch.outer(u, u) - torch.outer(w, w)).square().sum(), v[0]
    )
    torch.testing.assert_close(v[:1] - 1e-3 * gradient, descend(v[:1], w, 1, 1e-3))

    rotated = normal(6, 20, seed=2)  # same statistics, other directions off the axis, other signs along it
    off = rotated - (rotated @ w)[:, None] * w
    u = statistics(v, w)
    twin = -torch.sign(v @ w)[:, None] * u[:, :1] * w + off / off.norm(dim=1, keepdim=True) * u[:, 1:]
    assert (twin - v).norm(dim=1).min() > 0.1
    torch.testing.assert_close(statistics(twin, w), u)
    later, twin_later = (statistics(descend(start, w, 300, 0.01), w) for start in (v, twin))
    torch.testing.assert_close(twin_later, later)
    assert (later - u).abs().max() > 0.3

    flowed = statistics(descend(v, w, 1, 1e-7), w)  # the flow, by a small step
    size = (u**2).sum(1)
    for power, factor in ((1, 4), (2, 8)):
        along, off_axis = ((flowed**power - u**power) / 1e-7).T
        torch.testing.assert_close(along, -factor * (size - 1) * u[:, 0] ** power, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(off_axis, -factor * size * u[:, 1] ** power, rtol=1e-5, atol=1e-6)

    alone = v.clone()  # neither statistic closes without the other
    alone[:, :] = (v @ w)[:, None] * w + 2 * (v - (v @ w)[:, None] * w)
    assert (
        statistics(descend(alone, w, 50, 0.01), w)[:, 0] - statistics(descend(v, w, 50, 0.01), w)[:, 0]
    ).abs().max() > 0.01

    noise = normal(20, 20, seed=3)
    noise = 0.1 * (noise + noise.T) / 2
    with_noise = [statistics(descend(start, w, 300, 0.01, noise), w) for start in (v, twin)]
    assert (with_noise[0] - with_noise[1]).abs().max() > 0.01  # closed up to O(||E||) only


# E22: Jacot2023b, introduction


@pytest.mark.parametrize("depth", [2, 10, 1000])
def test_e22_the_jacobian_is_controlled_where_its_rank_is_r0(depth):
    """f(x, y) = (10 relu(x), 0.1 relu(y)): R0 = 2, R1 = 2 log(10 * 0.1) = 0, but Jf = diag(10, 0) where y < 0 < x."""
    layer = torch.diag(torch.tensor([10.0, 0.1], dtype=torch.float64) ** (1 / depth))
    net = from_layers([*[layer] * (depth - 1), layer])
    if depth < 100:
        both, one = (
            jacobian(lambda v: net(v), torch.tensor(v, dtype=torch.float64)) for v in ([1.0, 1.0], [1.0, -1.0])
        )
        torch.testing.assert_close(torch.linalg.svdvals(both), torch.tensor([10, 0.1], dtype=torch.float64))
        torch.testing.assert_close(torch.linalg.svdvals(one), torch.tensor([10.0, 0], dtype=torch.float64))
    norm = sum(w.square().sum().item() for w in net.weights)
    assert norm == pytest.approx(depth * (10 ** (2 / depth) + 0.1 ** (2 / depth)))  # attains T4: this is R(f; L)
    first_correction = norm - 2 * depth
    assert 2 * math.log(10 * 0.1) <= first_correction + 1e-12  # at rank R0 = 2
    if depth == 1000:
        assert first_correction < 0.03  # R1 = 0, up to R2 / L
        assert 2 * math.log(10) > 4.6  # printed: R1 is at least this, for every x


# E23: the slides' theorems on stability


def test_e23_descent_converges_up_to_twice_the_printed_step():
    """(w2 w1 - 1)^2 at the minimum (2, 1/2), where (2 / N) ||J_theta f||^2 = 2 (w1^2 + w2^2) = 8.5."""
    minimum = torch.tensor([2.0, 0.5], dtype=torch.float64)

    def descended(relative_step):
        w = minimum + 1e-6
        for _ in range(3000):
            w = w - relative_step / 8.5 * 2 * (w.prod() - 1) * w.flip(0)
        return w

    for relative_step in (0.9, 1.8):  # printed: from 1 on, descent cannot converge to it
        end = descended(relative_step)
        assert abs(end.prod() - 1) < 1e-14
        assert (end - minimum).norm() < 1e-5
    end = descended(2.2)
    assert (end - minimum).norm() > 0.1
    assert 2 * end.square().sum() < 2 / (2.2 / 8.5)  # it went to a flatter one


def test_e23_the_bound_on_activations_needs_its_maximum():
    """A linear scalar chain with A = 0.1, x = 1, all layers equal: k = 1, c1 = L (s^{2/L} - 1) < 0."""
    depth, s = 400, 0.1
    layer = s ** (1 / depth)
    c1 = depth * (layer**2 - 1)
    activations = sum(layer ** (2 * (level - 1)) for level in range(1, depth + 1))
    trace = sum(layer ** (2 * (level - 1)) * layer ** (2 * (depth - level)) for level in range(1, depth + 1))
    c = trace / depth  # ||J_theta f||_F^2 = c L
    assert c1 < 0
    printed = c * depth * math.exp(2 * c1) / s**2
    corrected = c * depth * max(1, math.exp(c1)) / s**2
    assert activations > 20 * printed
    assert activations < corrected


# E24: Jacot2023a, proofs


def test_e24_the_jacobian_has_derivatives_of_the_activation():
    net = MLP([3, 6, 6, 2], slope=0.3, seed=0, dtype=torch.float64)
    x = normal(3, seed=2)
    printed = corrected = torch.eye(3, dtype=torch.float64)
    a = x
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        z = w @ a + b
        printed = leaky_relu(z, 0.3)[:, None] * (w @ printed)  # D_l with diagonal sigma_a(z)
        corrected = torch.where(z >= 0, 1.0, 0.3)[:, None] * (w @ corrected)  # sigma_a'(z)
        a = leaky_relu(z, 0.3)
    true = jacobian(lambda v: net(v), x)
    torch.testing.assert_close(net.weights[-1] @ corrected, true)
    assert (net.weights[-1] @ printed - true).abs().max() > 0.1


def kernel_ridge(x, y, scale=1.0, ridge=1e-2):
    """Gaussian kernel ridge regression, one sample per row: its function, and the coefficients."""

    def k(a, b):
        return torch.exp(-torch.cdist(a, b).square() / (2 * scale**2))

    coefficients = torch.linalg.solve(k(x, x) + ridge * torch.eye(len(x), dtype=x.dtype), y)
    return lambda point: (k(point[None], x) @ coefficients)[0], coefficients


def test_e24_sign_of_the_kernel_jacobian():
    x, y, point = normal(20, 2, seed=0), normal(20, 5, seed=1), normal(2, seed=2)
    predictor, coefficients = kernel_ridge(x, y)
    distance = (x - point).norm(dim=1)
    derivative = -distance * torch.exp(-(distance**2) / 2)  # k' of k(r) = e^{-r^2 / 2}
    printed = ((x - point).T * (derivative / distance)) @ coefficients
    true = jacobian(predictor, point).T
    assert (printed - true).abs().max() > 0.1
    torch.testing.assert_close(-printed, true)


@pytest.mark.parametrize(("d_in", "rank_x", "d_out"), [(2, 2, 5), (4, 4, 4), (5, 2, 6), (5, 5, 3)])
def test_e24_rank_of_the_kernel_jacobian(d_in, rank_x, d_out):
    x = normal(20, rank_x, seed=0) @ normal(rank_x, d_in, seed=1)
    predictor, _ = kernel_ridge(x, normal(20, d_out, seed=3), scale=2.0)
    rank = int(torch.linalg.matrix_rank(jacobian(predictor, normal(d_in, seed=2)), rtol=1e-9))
    printed = min(rank_x + 1, 20, d_out)
    assert rank == min(d_in, printed)
    assert (rank == printed) == (printed <= d_in)


# E25: Jacot2023b, appendix B


def identity_chain(depth, k=2):
    """The identity of R^k: ||theta||^2 = kL, so that c1 = 0 and c1 - 2 log|Jf|_+ = 0."""
    return from_layers([torch.eye(k)] * depth)


def test_e25_how_many_layers_are_close():
    """Theorem 15 ends with "at most pL layers" that meet both bounds; it is at least (1 - p)L that do."""
    depth, p = 20, 0.1
    net = identity_chain(depth)
    u_v = torch.eye(2, dtype=torch.float64)  # U_l V_l^T, and D_l = I at a positive x
    meet_both = sum(bool((w - u_v).norm() <= 1e-15 and 2 - u_v.square().sum() <= 0) for w in net.weights)
    assert meet_both == depth
    assert meet_both > p * depth  # printed: at most
    assert meet_both >= (1 - p) * depth


@pytest.mark.parametrize("n", [1, 2, 50])
def test_e25_the_kernel_of_one_point_is_not_averaged(n):
    """Theorem 16 assumes Tr Theta(x, x) / N <= cL at a single x; Theorem 7, without the 1 / N, is what holds."""
    depth, k = 20, 2
    net = identity_chain(depth, k)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    outputs = net(x)
    trace = 0.0
    for output in outputs:
        gradients = torch.autograd.grad(output, list(net.weights), retain_graph=True)
        trace += sum(g.square().sum().item() for g in gradients)
    activations = depth * x.square().sum().item()
    printed, corrected = trace / n / k, trace / k  # cL max{1, e^{c1/k}} / (k |Jf|_+^{2/k})
    assert activations <= corrected * (1 + 1e-12)
    assert (activations <= printed * (1 + 1e-12)) == (n == 1)
