"""What holds for every test: the global random generators are seeded before it and its fixtures.

Files are not forced to the disk, which takes longer than many tests: it protects from power cuts alone.
"""

import os
import random

import numpy as np
import pytest
import torch


def seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, the state that other libraries draw from
    torch.manual_seed(0)


def fsync(descriptor: int) -> None:
    """Check the descriptor, as the function of the system does first."""
    os.fstat(descriptor)


os.fsync = fsync
seed()  # networks that a module of tests draws when it is imported


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed()
