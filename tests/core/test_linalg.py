"""Numbers computed from singular values, and the tolerance of ranks."""

import math

import numpy as np
import pytest
import torch

from bnrank._core import linalg


def test_ranks_of_batches_with_padding_zeros_and_nothing():
    values = torch.tensor([[[2.0, 1.0, 1e-7], [0.0, 0.0, 0.0]], [[1e-9, 5.0, math.nan], [3.0, 3.0, 3.0]]])
    assert linalg.rank(values).tolist() == [[2, 0], [1, 3]]
    assert linalg.rank(values, 1e-8).tolist() == [[3, 0], [1, 3]]
    assert linalg.rank(values, atol=1.0).tolist() == [[1, 0], [1, 3]]
    assert linalg.rank(np.zeros((4, 0))).tolist() == [0, 0, 0, 0]
    assert linalg.counted(values)[0].tolist() == [[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="rtol: got 1"):
        linalg.rank(values, 1.0)
    with pytest.raises(ValueError, match=r"values: got .* non-negative"):
        linalg.counted([1.0, -1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_values_equal_to_the_absolute_tolerance_do_not_count(dtype):
    values = torch.tensor([1.0, 0.1], dtype=dtype)
    assert linalg.rank(values, 0.0, atol=0.1) == 1
    assert [linalg.rank(values, 0.0, atol=atol) for atol in (0.0, 0.09, 1e300, float("inf"))] == [2, 2, 0, 0]


def test_values_in_lists_are_of_double_precision():
    assert linalg.rank([1.0, 1.0 + 1e-12], rtol=1.0 - 1e-11) == 2
    assert linalg.counted([0.1]).dtype == torch.float64
    assert linalg.counted(torch.ones(2)).dtype == torch.float32


def test_sums_over_values():
    values = torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64)
    assert linalg.tails(values).tolist() == [13.0, 4.0, 0.0, 0.0]
    assert linalg.stable_rank(values).item() == pytest.approx(13 / 9)
    assert math.isnan(linalg.stable_rank(torch.zeros(2)))
    assert linalg.schatten(values, 4).item() == pytest.approx(3**0.5 + 2**0.5)
    assert linalg.log_pseudo_determinant(values).item() == pytest.approx(math.log(6))
    assert linalg.log_pseudo_determinant(values, 3).item() == -math.inf
    assert linalg.log_pseudo_determinant(torch.zeros(2, 3)).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="rank: got 4, expected at most"):
        linalg.log_pseudo_determinant(values, 4)
