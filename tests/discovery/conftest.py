"""Tables that several tests of the estimators share."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def bent():
    """x in R^6, y in R^5 a bent function of two combinations of x."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(160, 6))
    z = x[:, :2]
    inner = np.stack([np.abs(z[:, 0]), np.maximum(z[:, 1], 0) - 0.5 * z[:, 0]], axis=1)
    return x, inner @ generator.normal(size=(2, 5)) + 0.05 * generator.normal(size=(160, 5))
