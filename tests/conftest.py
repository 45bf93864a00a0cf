"""What holds for every test: random numbers that a test does not seed itself are the same in every run."""

import random

import numpy as np
import pytest
import torch


def seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002, the state that other libraries draw from
    torch.manual_seed(0)


seed()  # networks that a module of tests draws when it is imported


@pytest.fixture(autouse=True)
def seeded():
    seed()
