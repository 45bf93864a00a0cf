"""Targets of prescribed decay on the torus, against plain sums over the lattice."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern

from bnrank.tasks import lattice_sum, on_torus, torus_map
from bnrank.tasks.kernel_targets import torus_targets

CUTOFFS = [(1, 6), (2, 4), (3, 2)]


def target(d, cutoff, alpha=2.5, seed=0):
    return torus_targets(d, [alpha], cutoff, torch.Generator().manual_seed(seed))[0]


@pytest.mark.parametrize(
    ("d", "power", "expected"),
    [
        (1, 2.0, math.pi**2 / 3),
        (1, 4.0, math.pi**4 / 45),
        (2, 4.0, 4 * math.pi**2 / 6 * 0.915965594177219),  # 4 zeta(2) times Catalan's constant
    ],
)
def test_lattice_sums_that_are_known(d, power, expected):
    assert lattice_sum(d, power) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_lattice_sum_is_the_sum(d):
    points = np.array(list(itertools.product(range(-5, 6), repeat=d)))
    norms = np.linalg.norm(points, axis=1)
    assert lattice_sum(d, 20.0) == pytest.approx((norms[norms > 0] ** -20).sum(), rel=1e-10)


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_lattice_sums_of_large_powers_are_those_of_the_nearest_points(d):
    assert lattice_sum(d, 119.0) == pytest.approx(2 * d, rel=1e-12)
    for power in (121.0, 340.0, 1e6):
        assert lattice_sum(d, power) == 2 * d


@pytest.mark.parametrize(("d", "cutoff"), CUTOFFS)
def test_values_and_coefficients_are_those_of_a_plain_sum(d, cutoff):
    f = target(d, cutoff)
    angles = 7 * torch.rand(5, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected, seen = np.zeros(5), set()
    for m in itertools.product(range(cutoff + 1), *[range(-cutoff, cutoff + 1)] * (d - 1)):
        beta = complex(f.coefficients[(m[0], *(k + cutoff for k in m[1:]))])
        if beta == 0:
            continue
        norm = math.sqrt(sum(k * k for k in m))
        assert abs(beta) ** 2 == pytest.approx(norm ** -(2.5 + d) / lattice_sum(d, 2.5 + d), rel=1e-12)
        expected += 2 * (beta * np.exp(1j * angles.numpy() @ np.array(m))).real
        seen |= {m, tuple(-k for k in m)}
    assert len(seen) == (2 * cutoff + 1) ** d - 1  # every m but 0, once
    np.testing.assert_allclose(f(angles), expected, rtol=1e-12, atol=1e-13)
    assert f(angles.float()).dtype == torch.float32


@pytest.mark.parametrize(("d", "cutoff"), CUTOFFS)
def test_mean_square_on_a_grid_is_one_less_what_is_missing(d, cutoff):
    f = target(d, cutoff)
    axis = 2 * math.pi * torch.arange(2 * cutoff + 2, dtype=torch.float64) / (2 * cutoff + 2)
    grid = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    values = f(grid)
    assert float(values.mean()) == pytest.approx(0, abs=1e-12)
    assert float(values.square().mean()) == pytest.approx(1 - f.missing, rel=1e-12)
    assert 0 < f.missing < 1


@pytest.mark.parametrize(("d", "cutoff", "n"), [(1, 50, 21), (2, 30, 40), (3, 10, 57)])
def test_beyond_is_the_sum_of_all_but_the_largest(d, cutoff, n):
    f = target(d, cutoff)
    points = np.array(list(itertools.product(range(-12, 13), repeat=d)))
    squares = (points**2).sum(1).astype(float)
    terms = np.sort(squares[squares > 0] ** (-(2.5 + d) / 2))[::-1] / lattice_sum(d, 2.5 + d)
    assert f.beyond(n) == pytest.approx(1 - terms[:n].sum(), rel=1e-10)
    assert f.beyond(0) == 1
    everything = (2 * cutoff + 1) ** d - 1
    with pytest.raises(ValueError, match="of which some lie beyond the cutoff"):
        f.beyond(everything + 1)
    if d > 1:  # the corners of the cube are farther than what is outside
        with pytest.raises(ValueError, match="expected fewer"):
            f.beyond(everything)


def test_what_rounding_hides_is_not_given():
    f = target(1, 3000, 5.0)  # of the sum beyond 300 modes, less than 1e-6 lies beyond the cutoff
    m = np.arange(3000.0, 20, -1)
    for n in (40, 100, 300):
        assert f.beyond(n) == pytest.approx(
            2 * (m[m > n // 2] ** -6).sum() / lattice_sum(1, 6.0), rel=1e-15 / f.beyond(n)
        )
    assert math.isnan(f.missing)
    with pytest.raises(ValueError, match="n: got 2000, beyond which less than 1e-13"):
        f.beyond(2000)
    with pytest.raises(ValueError, match="n: got 4, beyond which less"):
        target(2, 3, 400.0).beyond(4)


@pytest.mark.parametrize(("d", "cutoff"), [(1, 3000), (2, 120)])
@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_the_best_error_decays_at_the_rate(d, cutoff, alpha):
    f = target(d, cutoff, alpha)
    assert math.log(f.beyond(200) / f.beyond(5000 if d == 1 else 3200)) / math.log(
        25 if d == 1 else 16
    ) == pytest.approx(alpha / d, rel=0.02)


def test_fourier_modes_are_eigenvectors_of_radial_kernels():
    axis = 2 * math.pi * torch.arange(8, dtype=torch.float64) / 8
    grid = torch.cartesian_prod(axis, axis)
    x = on_torus(grid).numpy()
    apart = grid[:, None] - grid
    np.testing.assert_allclose(((x[:, None] - x) ** 2).sum(-1), (4 * (apart / 2).sin() ** 2).sum(-1), atol=1e-12)
    gram = Matern(2.0, nu=1.5)(x)
    for m in ((1, 0), (2, 3), (-1, 2)):
        wave = np.exp(1j * grid.numpy() @ np.array(m))
        value = (gram @ wave)[0] / wave[0]
        np.testing.assert_allclose(gram @ wave, value * wave, atol=1e-10)


def test_the_task():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    small, large = (torus_map(n, 2, (1, 2.0), 3, n_test=5, cutoff=6) for n in (4, 9))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(small.x, large.x[:4])
    assert torch.equal(small.x_test, large.x_test)
    torch.testing.assert_close(small.y, large.y[:4], rtol=0, atol=1e-12)
    assert (large.x.shape, large.y.shape, large.y.dtype) == ((9, 4), (9, 2), torch.float64)
    assert torch.equal(large.truth.x_of_latents(large.truth.latents), large.x)
    assert torch.equal(large.truth.y_of_latents(large.truth.latents), large.y)
    assert torus_map(3, 1, cutoff=5, n_test=0).x_test is None
    assert not torch.equal(torus_map(9, 2, (1, 2.0), 4, n_test=5, cutoff=6).x, large.x)
    assert float(large.truth.latents.min()) >= 0
    assert float(large.truth.latents.max()) < 2 * math.pi


def test_columns_differ_in_decay_only():
    first, second = torus_targets(2, [1.0, 3.0], 5, torch.Generator().manual_seed(0))
    kept = first.coefficients != 0
    torch.testing.assert_close(first.coefficients[kept].angle(), second.coefficients[kept].angle())


def test_values_do_not_depend_on_how_points_are_cut_up(monkeypatch):
    f = target(2, 5)
    angles = torch.rand(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = f(angles)
    monkeypatch.setattr("bnrank.tasks.kernel_targets.CHUNK", 33)
    torch.testing.assert_close(f(angles), whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n: got 0"),
        ({"d": 0}, ValueError, "d: got 0"),
        ({"d": 5}, ValueError, "cutoff: got None, expected an integer for d = 5"),
        ({"alphas": ()}, TypeError, "alphas: got"),
        ({"alphas": 2.0}, TypeError, "alphas: got 2.0"),
        ({"alphas": (1.0, 0.0)}, ValueError, r"alphas\[1\]: got 0"),
        ({"cutoff": 0}, ValueError, "cutoff: got 0"),
        ({"n_test": -1}, ValueError, "n_test: got -1"),
        ({"seed": 0.5}, TypeError, "seed: got 0.5"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        torus_map(**{"n": 4, "cutoff": None, **arguments})


def test_bad_lattices_and_angles():
    with pytest.raises(ValueError, match="power: got 2"):
        lattice_sum(2, 2.0)
    with pytest.raises(TypeError, match=r"d: got 1\.5"):
        lattice_sum(1.5, 3.0)
    with pytest.raises(ValueError, match=r"angles: got shape \(3, 1\), expected \(N, 2\)"):
        target(2, 3)(torch.ones(3, 1))
