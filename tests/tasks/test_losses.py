"""Tests of losses: Hessians with respect to the outputs."""

import pytest
import torch

from bnrank.tasks.losses import LOSSES, SAMPLE_LOSSES, output_hessians


@pytest.mark.parametrize("loss", LOSSES)
def test_the_hessians_are_those_of_autograd(loss):
    generator = torch.Generator().manual_seed(3)
    outputs = 3 * torch.randn(5, 1 if loss == "logistic" else 4, generator=generator, dtype=torch.float64)
    y = {
        "mse": torch.randn(5, 4, generator=generator, dtype=torch.float64),
        "cross_entropy": torch.tensor([0, 3, 1, 1, 2]),
        "logistic": torch.tensor([[1.0], [-1.0], [-1.0], [1.0], [1.0]], dtype=torch.float64),
    }[loss]
    weights = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2], dtype=torch.float64)
    found = output_hessians(loss, outputs, weights)
    for i in range(5):
        rows = slice(i, i + 1)
        exact = torch.func.hessian(lambda f, rows=rows: SAMPLE_LOSSES[loss](f[None], y[rows])[0])(outputs[i])
        torch.testing.assert_close(found[i], weights[i] * exact, rtol=1e-12, atol=1e-15)
