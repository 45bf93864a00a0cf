"""Peak memory of training: within 1.5 times parameters, gradient and optimizer state, and activations."""

import os
import sys

import pytest

from .common import in_subprocess

DEPTH, MIB = 10, 2**20


def allowed(width, n, members, copies):
    parameters = 4 * members * DEPTH * (width * width + width)
    activations = 4 * members * n * width * DEPTH
    return 1.5 * (copies * parameters + activations) / MIB


# copies of the parameters: themselves, the gradient, and Adam's two moments, or L-BFGS' 10 pairs, point, gradient,
# direction, and where its metric was estimated with that metric (three matrices as large as the layer)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("optimizer", "copies", "width", "n", "checkpoints"),
    [("adam", 4, 100, 2000, False), ("adam", 4, 300, 200, True), ("kfac-lbfgs", 2 + 20 + 3 + 4, 150, 200, True)],
)
def test_peak_of_training(optimizer, copies, width, n, checkpoints, tmp_path):
    out = [tmp_path] if checkpoints else []
    # what is freed goes back at once, so that the peak is what is in use, not what the allocator keeps
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    used = float(in_subprocess("memory.py", width, n, 8, optimizer, *out, env=environment))
    assert used < allowed(width, n, 8, copies)
