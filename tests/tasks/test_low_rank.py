"""Maps of planted rank (F1, F4): what is planted is there, and draws depend on the seed only."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bnrank
from bnrank.tasks import ShallowReLU, bottleneck_spectra_map, low_rank_map


def jacobians(function, z):
    """Central differences in float64, shape (N, d, latent): the slow and obvious way."""
    z, step = z.double(), 1e-6
    columns = []
    for i in range(z.shape[1]):
        shift = torch.zeros(z.shape[1], dtype=torch.float64)
        shift[i] = step
        columns.append((function(z + shift) - function(z - shift)) / (2 * step))
    return torch.stack(columns, -1)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(latent=st.integers(2, 6), rank=st.integers(1, 6), seed=st.integers(0, 10**9))
def test_planted_rank(latent, rank, seed):
    rank = min(rank, latent)
    task = low_rank_map(n=20, d_in=9, d_out=7, latent=latent, rank=rank, width=60, seed=seed, n_test=0)
    truth = task.truth
    assert truth.rank == rank
    assert truth.latents.shape == (20, latent)
    of_y, of_x = jacobians(truth.y_of_latents, truth.latents), jacobians(truth.x_of_latents, truth.latents)
    assert (torch.linalg.matrix_rank(of_y, rtol=1e-6) == rank).all()
    assert (torch.linalg.matrix_rank(of_x, rtol=1e-6) == latent).all()
    assert torch.equal(of_y[:, :, rank:], torch.zeros_like(of_y[:, :, rank:]))


def test_outputs_see_the_first_latents_only():
    truth = low_rank_map(latent=5, rank=2).truth
    for i in range(5):
        z = truth.latents.clone()
        z[:, i] += 1
        assert torch.equal(truth.y_of_latents(z), truth.y_of_latents(truth.latents)) == (i >= 2)
        assert not (truth.x_of_latents(z) == truth.x_of_latents(truth.latents)).all(1).any()


def test_truth_gives_the_data_bit_by_bit():
    task = low_rank_map(n=37, n_test=11)
    truth = task.truth
    assert torch.equal(truth.x_of_latents(truth.latents), task.x)
    assert torch.equal(truth.y_of_latents(truth.latents), task.y)
    assert torch.equal(truth.x_of_latents(truth.latents_test), task.x_test)
    assert torch.equal(truth.y_of_latents(truth.latents_test), task.y_test)
    assert {task.x.dtype, task.y.dtype, truth.latents.dtype} == {torch.float32}
    assert truth.y_of_latents(truth.latents.double()).dtype == torch.float64


def test_scales():
    def mean_squares(task):
        return [data.double().square().sum(1).mean().item() for data in (task.x, task.y)]

    assert mean_squares(low_rank_map()) == pytest.approx([9, 4], rel=1e-6)
    assert mean_squares(low_rank_map(x_norm_squared=0.5, y_norm_squared=35)) == pytest.approx([0.5, 35], rel=1e-6)
    drawn = low_rank_map(x_norm_squared=None, y_norm_squared=None)
    # E||y||^2 = d_out E relu(u)^2 = d_out for u ~ N(0, 2); averages over 50 neurons and 300 samples
    assert mean_squares(drawn) == pytest.approx([20, 20], rel=0.5)
    assert low_rank_map().x / drawn.x == pytest.approx(np.full((300, 20), (low_rank_map().x / drawn.x)[0, 0]), rel=1e-4)


def test_latents_are_standard_normal():
    z = low_rank_map(n=20_000, n_test=0).truth.latents.double()
    assert z.mean(0).abs().max() < 4 / 20_000**0.5
    assert (torch.cov(z.T) - torch.eye(8)).abs().max() < 6 / 20_000**0.5


def test_noise_is_on_the_training_outputs_alone():
    clean, noisy = low_rank_map(n=2000), low_rank_map(n=2000, noise=0.3)
    assert (noisy.y - clean.y).std().item() == pytest.approx(0.3, rel=0.02)
    assert torch.equal(noisy.x, clean.x)
    assert torch.equal(noisy.y_test, clean.y_test)


def test_without_bias_the_functions_are_homogeneous():
    truth = low_rank_map(bias=False).truth
    z = truth.latents.double()
    assert torch.allclose(truth.y_of_latents(3 * z), 3 * truth.y_of_latents(z))
    with_bias = low_rank_map().truth
    assert not torch.allclose(with_bias.y_of_latents(3 * z), 3 * with_bias.y_of_latents(z))


def test_seed_decides_every_bit_and_the_global_generators_are_left_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = (low_rank_map(seed=seed, noise=0.1) for seed in (3, 3, 4))
    for name in ("x", "y", "x_test", "y_test"):
        assert torch.equal(getattr(a, name), getattr(b, name))
        assert not torch.equal(getattr(a, name), getattr(c, name))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_the_map_depends_on_the_seed_alone():
    """Other sample counts and noise leave g and h as they are, up to the scalar."""
    a = low_rank_map(seed=3, x_norm_squared=None)
    b = low_rank_map(seed=3, x_norm_squared=None, n=50, n_test=0, noise=1.0)
    assert torch.equal(a.truth.x_of_latents(a.truth.latents), b.truth.x_of_latents(a.truth.latents))
    assert torch.equal(a.truth.latents_test, low_rank_map(seed=3, n=50).truth.latents_test)
    # a network of the same seed does not share the draws
    assert not torch.isin(a.truth.latents, bnrank.MLP([8, 300], seed=3, init=1.0).weights[0]).any()


def test_no_test_data():
    task = low_rank_map(n_test=0)
    assert task.x_test is None
    assert task.y_test is None
    assert task.truth.latents_test.shape == (0, 8)


def test_preset_of_f1():
    task = bottleneck_spectra_map(seed=2)
    assert (task.n, task.d_in, task.d_out, task.truth.rank) == (500, 50, 50, 4)
    assert task.truth.latents.shape == (500, 15)
    assert task.truth.x_of_latents.w1.shape == (100, 15)
    assert task.truth.y_of_latents.w1.shape == (100, 4)
    assert bottleneck_spectra_map(rank=5).truth.rank == 5


def test_settings_make_the_task_again():
    task = low_rank_map(n=30, rank=3, seed=5, noise=0.2, y_norm_squared=None)
    assert torch.equal(low_rank_map(**task.settings).y, task.y)


def test_shallow_relu_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    w1, b1, w2 = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((4, 2), (4,), (3, 4)))
    z = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for n in range(5):
        for j in range(4):
            u = w1[j, 0] * z[n, 0] + w1[j, 1] * z[n, 1] + b1[j]
            for i in range(3):
                expected[n, i] += w2[i, j] * max(float(u), 0.0)
    assert torch.allclose(ShallowReLU(w1, b1, w2)(z), expected)
    with pytest.raises(ValueError, match=re.escape("z: got shape (5, 1), expected (..., latent) with latent >= 2")):
        ShallowReLU(w1, b1, w2)(z[:, :1])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rank": 9}, ValueError, "rank: got 9, expected at most latent = 8"),
        ({"rank": 4, "d_out": 3}, ValueError, "rank: got 4, expected at most d_out = 3"),
        ({"latent": 21}, ValueError, "latent: got 21, expected at most d_in = 20"),
        ({"width": 7}, ValueError, "latent: got 8, expected at most width = 7"),
        ({"n": 0}, ValueError, "n: got 0"),
        ({"n": 2.5}, TypeError, "n: got 2.5"),
        ({"n_test": -1}, ValueError, "n_test: got -1"),
        ({"noise": -0.1}, ValueError, "noise: got -0.1"),
        ({"x_norm_squared": 0}, ValueError, "x_norm_squared: got 0"),
        ({"seed": -1}, ValueError, "seed: got -1"),
    ],
)
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        low_rank_map(**arguments)


def test_a_dead_function_cannot_be_scaled():
    for seed in range(50):  # one neuron, one sample: dead about every second time
        try:
            low_rank_map(n=1, d_in=1, d_out=1, latent=1, rank=1, width=1, seed=seed)
        except ValueError as error:
            assert re.match("[xy]_norm_squared: the drawn function is 0 on all samples", str(error))  # noqa: PT017
            return
    pytest.fail("no draw was dead")
