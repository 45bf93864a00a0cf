import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bnrank
from bnrank.measures import bottleneck, spectra


def planted(rank, depth, start, end, width=8, small=0.02):
    """Spectra with ``rank`` values near 1 in layers start..end and a slow decay elsewhere."""
    rows = np.tile(np.linspace(3.0, 0.15, width), (depth, 1))
    rows[start - 1 : end] = small
    rows[start - 1 : end, :rank] = np.linspace(1.3, 0.9, rank) if rank else 0
    return rows


@settings(max_examples=50, deadline=None)
@given(data=st.data(), rank=st.integers(0, 7), depth=st.integers(2, 20))
def test_a_planted_bottleneck_is_found(data, rank, depth):
    start = data.draw(st.integers(1, depth - 1))
    end = data.draw(st.integers(start + 1, depth))
    found = bottleneck.detect(planted(rank, depth, start, end))
    assert (found.rank, found.start, found.end) == (rank, start, end)
    assert found.gap == pytest.approx((0.9 if rank > 1 else 1.3 if rank else 1.0) / 0.02)
    assert found.values == tuple(sorted(planted(rank, depth, start, end)[start - 1], reverse=True))
    assert found.counts[start - 1] == rank
    assert (found.threshold, found.near, found.min_layers, found.reason) == (0.1, (0.5, 2.0), 2, "")


def test_noise_is_undetermined_and_says_why():
    found = bottleneck.detect(spectra.weight_singular_values(bnrank.MLP([10, 50, 50, 50, 10], seed=0)))
    assert (found.rank, found.start, found.gap) == (None, None, None)
    assert "1 layer(s), expected 2" in found.reason  # the last, whose 10 values happen to be all near 1
    assert "no layer has a clear gap" in bottleneck.detect(np.full((3, 2), 0.3)).reason
    one = bottleneck.detect(planted(2, 6, 3, 3))
    assert one.rank is None
    assert "1 layer(s), expected 2" in one.reason
    assert bottleneck.detect(planted(2, 6, 3, 3), min_layers=1).rank == 2


def test_a_collapsed_network_has_rank_zero():
    found = bottleneck.detect(spectra.weight_singular_values(bnrank.MLP([5, 8, 8, 5], init=1e-4)))
    assert (found.rank, found.start, found.end) == (0, 1, 3)
    assert found.gap > 1000
    assert bottleneck.detect(np.zeros((3, 4))).gap == float("inf")


def test_the_longest_run_wins_and_of_equal_ones_the_narrowest():
    rows = np.concatenate([planted(3, 4, 1, 4), planted(1, 3, 1, 3)])
    assert bottleneck.detect(rows).rank == 3
    assert bottleneck.detect(rows[1:]).rank == 1
    assert bottleneck.detect(rows[1:]).start == 4


def test_the_tolerances_decide():
    rows = np.array([[1.25, 1.2, 0.46, 0.01]] * 3)
    assert bottleneck.detect(rows).rank is None
    assert bottleneck.detect(rows, near=(0.4, 2.0)).rank == 3
    assert bottleneck.detect(rows, threshold=0.47).rank == 2
    assert bottleneck.detect(rows, near=(0.4, 1.1)).rank is None


def test_padding_missing_layers_and_full_rank():
    rows = np.full((5, 4), np.nan)
    rows[1:4, :2] = [1.1, 0.9]
    found = bottleneck.detect(rows)
    assert (found.rank, found.start, found.end, found.gap) == (2, 2, 4, float("inf"))
    rows[2] = np.nan
    assert bottleneck.detect(rows).rank is None
    ragged = [[1.0, 0.01], torch.tensor([1.0, 0.01, 0.0]), np.array([1.0])]
    assert bottleneck.detect(ragged).rank == 1


def test_histories_keep_their_leading_dimensions():
    history = np.stack([np.stack([planted(k, 6, 2, 5), np.full((6, 8), 0.3)]) for k in (0, 1, 2)])
    assert np.array_equal(bottleneck.ranks(history), [[0, np.nan], [1, np.nan], [2, np.nan]], equal_nan=True)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"values: got shape \(2, 3, 4\)"):
        bottleneck.detect(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match="negative"):
        bottleneck.detect(-np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"near: got \(0.05, 2.0\)"):
        bottleneck.detect(np.ones((2, 3)), near=(0.05, 2.0))
    with pytest.raises(TypeError, match="near: got 3"):
        bottleneck.detect(np.ones((2, 3)), near=3)
    with pytest.raises(ValueError, match="min_layers: got 0"):
        bottleneck.detect(np.ones((2, 3)), min_layers=0)
    with pytest.raises(ValueError, match="at least one layer"):
        bottleneck.detect([])
