"""Data for autoencoders against plain loops and dense samplings."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch

from bnrank.tasks import (
    ShallowReLU,
    Task,
    Truth,
    autoencoder,
    circle,
    composition,
    crosses_itself,
    digits,
    distances_to_polyline,
    falling_ball,
    low_rank_map,
    matrix_factorization,
    planar_curve,
    polyline,
    s_shapes,
    separable,
    torus_map,
    two_digits,
)


def range_of(task):
    seen = torch.cat([task.truth.latents, task.truth.latents_test])
    return float(seen.min()), float(seen.max())


@pytest.mark.parametrize(("width", "seed"), [(1, 0), (5, 3), (20, 0), (50, 4)])
def test_curve_is_the_drawn_function_of_gaussian_latents(width, seed):
    task = planar_curve(300, width, seed, n_test=40, x_norm_squared=4.0)
    g = task.truth.x_of_latents
    assert (task.x.shape, task.x_test.shape, task.x.dtype) == ((300, 2), (40, 2), torch.float32)
    assert torch.equal(task.x, task.y)
    assert torch.equal(task.x_test, task.y_test)
    assert torch.equal(g(task.truth.latents), task.x)
    assert torch.equal(g(task.truth.latents_test), task.x_test)
    assert (task.truth.rank, task.truth.latents.shape, g.w1.shape) == (1, (300, 1), (width + 1, 1))
    assert abs(task.x.mean(0)).max() < 1e-6
    assert float(task.x.square().sum(1).mean()) == pytest.approx(4, rel=1e-6)
    assert float(task.truth.latents.std()) == pytest.approx(1, abs=0.15)
    assert not crosses_itself(polyline(g, *range_of(task)))


def test_curve_is_reproducible_and_its_streams_apart():
    state = torch.get_rng_state()
    a, b, c = planar_curve(seed=1), planar_curve(seed=1), planar_curve(seed=2)
    assert torch.equal(a.x, b.x)
    assert not torch.equal(a.x, c.x)
    assert not torch.equal(a.x, a.x_test)
    assert torch.equal(planar_curve(seed=1, n_test=0).truth.latents, a.truth.latents)
    assert planar_curve(seed=1, n_test=0).x_test is None
    assert torch.equal(planar_curve(**a.settings).x, a.x)
    assert torch.equal(torch.get_rng_state(), state)


def test_curves_that_cross_are_drawn_again():
    """Of the first draws of 40 seeds some cross themselves; none of those given does."""
    from bnrank.tasks import autoencoding

    first = crossed = 0
    for seed in range(40):
        task = planar_curve(50, 10, seed, n_test=0)
        for_g = autoencoding.streams(seed, 3)[0]
        g = autoencoding._curve(10, task.truth.latents.double(), 1.0, for_g)
        crossed += crosses_itself(polyline(g, *range_of(task)))
        first += torch.equal(g.w1, task.truth.x_of_latents.w1)
        assert not crosses_itself(polyline(task.truth.x_of_latents, *range_of(task)))
    assert crossed >= 5
    assert first == 40 - crossed


@pytest.mark.parametrize("seed", range(4))
def test_corners_are_all_there_is_between_them_the_curve_is_straight(seed):
    task = planar_curve(100, 15, seed)
    g, (low, high) = task.truth.x_of_latents, range_of(task)
    corners = polyline(g, low, high)
    knots = sorted(-b / w for w, b in zip(g.w1.flatten().tolist(), g.b1.tolist(), strict=True) if w)
    knots = [low, *(k for k in knots if low < k < high), high]
    expected = torch.stack([g(torch.tensor([k], dtype=torch.float64)) for k in knots])
    torch.testing.assert_close(corners, expected, rtol=1e-9, atol=1e-9)
    for left, right in itertools.pairwise(knots):
        third = g(torch.tensor([(2 * left + right) / 3], dtype=torch.float64))
        at = [g(torch.tensor([k], dtype=torch.float64)) for k in (left, right)]
        torch.testing.assert_close(third, (2 * at[0] + at[1]) / 3, rtol=1e-9, atol=1e-9)
    assert float(distances_to_polyline(task.x, corners).max()) < 1e-6  # float32


@pytest.mark.parametrize("d", [1, 2, 3])
def test_distances_against_a_dense_sampling(d):
    generator = torch.Generator().manual_seed(d)
    corners = torch.randn(7, d, generator=generator, dtype=torch.float64)
    x = 2 * torch.randn(30, d, generator=generator, dtype=torch.float64)
    t = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    dense = torch.cat([(1 - t) * a + t * b for a, b in itertools.pairwise(corners)])
    expected = torch.stack([(dense - point).norm(dim=1).min() for point in x])
    torch.testing.assert_close(distances_to_polyline(x, corners), expected, rtol=1e-3, atol=1e-3)
    repeated = corners.repeat_interleave(2, 0)  # sides of length 0
    torch.testing.assert_close(distances_to_polyline(x, repeated), distances_to_polyline(x, corners))


def test_distances_do_not_depend_on_the_pieces(monkeypatch):
    from bnrank.tasks import autoencoding

    corners, x = torch.randn(5, 2).double(), torch.randn(50, 2).double()
    whole = distances_to_polyline(x, corners)
    monkeypatch.setattr(autoencoding, "PIECE", 20)
    torch.testing.assert_close(distances_to_polyline(x, corners), whole)


def crosses_slowly(corners):
    """Whether sides i and j >= i + 2 meet: solve p_i + t d_i = p_j + u d_j."""
    for i in range(len(corners) - 1):
        for j in range(i + 2, len(corners) - 1):
            matrix = np.stack([corners[i + 1] - corners[i], corners[j] - corners[j + 1]], 1)
            t, u = np.linalg.solve(matrix, corners[j] - corners[i])
            if 0 <= t <= 1 and 0 <= u <= 1:
                return True
    return False


def test_crossings_against_solving_pair_by_pair():
    found = []
    for seed in range(200):
        corners = np.random.default_rng(seed).normal(size=(4 + seed % 3, 2))
        found.append(crosses_itself(torch.from_numpy(corners)))
        assert found[-1] == crosses_slowly(corners)
    assert 40 < sum(found) < 160


def test_a_curve_that_rests_or_touches_is_not_injective():
    assert crosses_itself(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [2.0, 1.0]]))
    assert crosses_itself(torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [1.0, 0.0]]))
    assert not crosses_itself(torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [1.0, 0.001]]))


@pytest.mark.parametrize("width", [1, 2])
def test_curves_of_few_corners_do_not_rest(width):
    for seed in range(60):
        task = planar_curve(100, width, seed)
        seen = torch.cat([task.truth.latents, task.truth.latents_test])
        points = task.truth.x_of_latents(seen.double())
        apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(1)
        repeated = len(seen) - len(seen.unique())
        assert int((apart < 1e-12).any(1).sum()) <= 2 * repeated


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e-20, 0.0), (1e20, 0.0), (1.0, 7.0)])
def test_resting_up_to_rounding(scale, offset):
    corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0 + 1e-15, 1e-15], [2.0, 1.0]], dtype=torch.float64)
    assert crosses_itself(scale * corners + offset)
    corners[2] = torch.tensor([1.0, 1e-9])
    assert not crosses_itself(scale * corners + offset)


def test_autoencoder_of_any_task():
    task = autoencoder(digits(n=20, n_test=10))
    assert torch.equal(task.x, digits(n=20).x)
    assert torch.equal(task.y, task.x)
    assert torch.equal(task.y_test, task.x_test)
    assert (task.loss, task.classes, task.d_out, task.truth) == ("mse", None, 64, None)
    images = Task(torch.randn(6, 1, 4, 5), torch.tensor([0, 1, 0, 1, 0, 1]), loss="cross_entropy", name="images")
    flat = autoencoder(images)
    assert torch.equal(flat.x, images.x.flatten(1))
    assert (flat.x_test, flat.name, flat.d_out) == (None, "images, autoencoder", 20)


def test_autoencoder_knows_the_number_of_latents_as_rank():
    source = low_rank_map(n=30, latent=5, rank=2, n_test=10)
    task = autoencoder(source)
    assert task.truth.rank == 5
    assert torch.equal(task.truth.y_of_latents(task.truth.latents), task.y)
    assert source.truth.rank == 2
    assert autoencoder(dataclasses.replace(source, x=source.x.double(), x_test=source.x_test.double())).truth.rank == 5
    assert autoencoder(planar_curve(20)).truth.rank == 1


def moved(**changes):
    source = low_rank_map(n=30, latent=5, rank=2, n_test=10)
    return dataclasses.replace(source, **{name: change(source) for name, change in changes.items()})


@pytest.mark.parametrize(
    "make",
    [
        lambda: moved(x=lambda t: t.x + 0.1),
        lambda: moved(x_test=lambda t: t.x_test.flip(0)),
        lambda: moved(x=lambda t: t.x[:, :6], x_test=lambda t: t.x_test[:, :6]),
        lambda: moved(x=lambda t: t.x[:20], y=lambda t: t.y[:20]),
        lambda: matrix_factorization(n=30, n_test=5),
        lambda: falling_ball(n=10, size=6, n_test=5),
        lambda: torus_map(n=20, d=1, n_test=5, cutoff=5),
        lambda: torus_map(n=20, d=2, n_test=5, cutoff=5),
        lambda: composition(n=20),
        lambda: separable(n=10),
        lambda: circle(),
        lambda: s_shapes(),
        lambda: two_digits(images=10, images_test=5),
    ],
)
def test_autoencoder_claims_no_rank_where_the_inputs_are_no_function_of_real_latents(make):
    task = make()
    made = autoencoder(task)
    assert made.truth is None
    assert torch.equal(made.y, task.x.flatten(1))


def test_more_latents_than_inputs_are_not_injective():
    g = low_rank_map(n=2, d_in=8, latent=8).truth.x_of_latents
    g = dataclasses.replace(g, w2=g.w2[:5])
    z = torch.randn(20, 8)
    task = Task(g(z), g(z), truth=Truth(8, z, z, g, g))
    assert autoencoder(task).truth is None
    wide = low_rank_map(n=2, d_in=12, latent=8).truth.x_of_latents
    more = torch.randn(20, 9)  # of which the last is not used
    assert autoencoder(Task(wide(more), wide(more), truth=Truth(9, more, more, wide, wide))).truth is None


G = ShallowReLU(torch.ones(1, 1).double(), torch.zeros(1).double(), torch.ones(2, 1).double())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: planar_curve(1), ValueError, "n: got 1, expected an integer of at least 2"),
        (lambda: planar_curve(width=0), ValueError, "width: got 0"),
        (lambda: planar_curve(n_test=-1), ValueError, "n_test: got -1"),
        (lambda: planar_curve(x_norm_squared=0), ValueError, "x_norm_squared: got 0"),
        (lambda: planar_curve(seed="a"), TypeError, "seed: got 'a'"),
        (lambda: planar_curve(width=9), ValueError, "width: got 9, for which none of 3 curves"),
        (lambda: autoencoder(torch.ones(2, 2)), TypeError, "task: got Tensor"),
        (lambda: polyline(torch.ones(2), 0, 1), TypeError, "g: got Tensor"),
        (lambda: polyline(low_rank_map().truth.x_of_latents, 0, 1), ValueError, "g: got a function of 8 latents"),
        (lambda: polyline(G, 1, 1), ValueError, "lower, upper: got 1 and 1"),
        (lambda: crosses_itself(torch.ones(3, 3)), ValueError, "corners: got shape (3, 3)"),
        (lambda: distances_to_polyline(torch.ones(2, 3), torch.ones(2, 2)), ValueError, "x: got shape (2, 3)"),
        (lambda: distances_to_polyline(torch.ones(2, 2), torch.ones(1, 2)), ValueError, "corners: got 1 sample(s)"),
    ],
)
def test_errors_name_the_argument(call, error, message, monkeypatch):
    monkeypatch.setattr("bnrank.tasks.autoencoding.DRAWS", 3)
    monkeypatch.setattr("bnrank.tasks.autoencoding.crosses_itself", lambda corners: True)
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_distances_in_the_whole_range_of_floats():
    line = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[0.0, 1e200], [0.0, 1.0], [0.5, 1e-200], [0.0, 0.0]], dtype=torch.float64)
    assert distances_to_polyline(x, line).tolist() == pytest.approx([1e200, 1.0, 1e-200, 0.0], rel=1e-12)
    point = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    for scale in (1e-300, 1e300):
        assert float(distances_to_polyline(scale * point, scale * line)) == pytest.approx(scale * 20**0.5, rel=1e-12)
