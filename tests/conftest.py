"""What holds for every test: random numbers that a test does not seed itself are the same in every run.

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


@pytest.fixture(autouse=True)
def seeded():
    seed()
