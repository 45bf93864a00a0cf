"""Compositions with a small inner dimension."""

import math

import pytest
import torch

from bnrank.tasks import block_norms, composition
from bnrank.tasks.task import streams


@pytest.mark.parametrize(("d_in", "inner", "sizes"), [(10, 1, [10]), (10, 2, [5, 5]), (7, 3, [3, 2, 2])])
def test_block_norms_of_a_plain_loop(d_in, inner, sizes):
    x = torch.randn(6, d_in, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = block_norms(x, inner)
    for row, z in zip(x.tolist(), found.tolist(), strict=True):
        begin = 0
        for size, value in zip(sizes, z, strict=True):
            square = sum(v * v for v in row[begin : begin + size])
            assert value == pytest.approx((square - size) / math.sqrt(2 * size), rel=1e-12)
            begin += size


def test_block_norms_are_standardized_and_unchanged_under_rotations_of_blocks():
    x = torch.randn(40_000, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = block_norms(x, 2)
    torch.testing.assert_close(z.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=0.03)
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(2, dtype=torch.float64), rtol=0, atol=0.05)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    torch.testing.assert_close(block_norms(torch.cat([x[:, :5] @ turn, x[:, 5:]], 1), 2), z)


@pytest.mark.parametrize("inner", [1, 2])
def test_outputs_are_cosines_of_the_inner_variables(inner):
    task = composition(20, 6, 4, inner, seed=5, n_test=7, frequency=1.5)
    for_h = streams(5, 3)[0]
    w = torch.randn(4, inner, generator=for_h, dtype=torch.float64)
    phases = torch.rand(4, generator=for_h, dtype=torch.float64)
    for x, y in ((task.x, task.y), (task.x_test, task.y_test)):
        for row, z in zip(y.tolist(), block_norms(x.double(), inner).tolist(), strict=True):
            for j, value in enumerate(row):
                angle = 1.5 * sum(a * b for a, b in zip(w[j].tolist(), z, strict=True)) + 2 * math.pi * float(phases[j])
                assert value == pytest.approx(math.sqrt(0.5) * math.cos(angle), abs=1e-5)


def test_neighbors_along_the_inner_variable_have_close_outputs():
    """Whatever else is different about their inputs: y depends on z alone."""
    task = composition(3000, 10, 10, 1, seed=2, frequency=2.0)
    z = block_norms(task.x.double(), 1)[:, 0]
    order = z.argsort()
    x, y = task.x[order].double(), task.y[order].double()
    steps = z[order].diff()
    assert float((y.diff(dim=0).norm(dim=1) / (steps + 1e-5)).max()) < 15
    assert float(x.diff(dim=0).norm(dim=1).median()) > 3
    assert float(y.var(0).sum()) > 0.3


def test_children_of_a_seed_have_their_own_streams():
    seeds = [g.initial_seed() for key in ((), (1,), (2,), (1, 1)) for seed in (0, 5) for g in streams(seed, 5, *key)]
    assert len(set(seeds)) == len(seeds) == 40
    assert [g.initial_seed() for g in streams(5, 2, 1)] == [g.initial_seed() for g in streams(5, 5, 1)][:2]
    assert [g.initial_seed() for g in streams(5, 3)] == [16823399, 2940995229, 2290007392]  # as without keys


def test_streams_and_settings():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    small, large = (composition(n, 5, 3, 2, seed=1, n_test=4) for n in (3, 8))
    assert torch.equal(torch.get_rng_state(), state)
    assert (len(small.x), len(large.x)) == (3, 8)
    assert torch.equal(small.y_test, large.y_test)
    assert (large.x.dtype, large.y.shape, large.loss) == (torch.float32, (8, 3), "mse")
    again = composition(**large.settings)
    assert torch.equal(again.x, large.x)
    assert torch.equal(again.y, large.y)
    assert not torch.equal(composition(8, 5, 3, 2, seed=2).y, large.y)
    assert composition(3, n_test=0).x_test is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n: got 0"),
        ({"inner": 11}, ValueError, "inner: got 11, expected at most d_in = 10"),
        ({"inner": 0}, ValueError, "inner: got 0"),
        ({"frequency": 0.0}, ValueError, "frequency: got 0"),
        ({"d_out": 1.5}, TypeError, "d_out: got 1.5"),
        ({"n_test": -1}, ValueError, "n_test: got -1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        composition(**arguments)


def test_more_blocks_than_inputs():
    with pytest.raises(ValueError, match="inner: got 3, expected at most inputs = 2"):
        block_norms(torch.ones(4, 2), 3)
