"""Peak memory of training against what has to be kept, and of profiles as the samples grow.

``python -m benchmarks.memory train|profile NUMBERS...`` is what runs in a process of its own.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import bnrank
from benchmarks.rows import Row, Spread, skipped

__all__ = ["measure"]

BYTES = 4  # float32
CHUNK = 4096  # samples in a chunk of a profile
TRAINED = ((4, 8, 500, 4000), (4, 6, 1000, 500))  # members, depth, width, N: mostly activations, mostly parameters
PROFILED = (16_384, 131_072)  # samples, a few chunks and many


def measure(quick: bool) -> Iterator[Row]:
    """Measure `train` on two large ensembles and `profile` on few and on many samples."""
    if not Path("/proc/self/clear_refs").exists():
        yield from skipped("memory", "peak memory", "what has to be kept", "needs Linux's /proc")
        return
    for members, depth, width, n in TRAINED[1:] if quick else TRAINED:
        kept, parts = _kept(members, depth, width, n)
        ratio = _peak("train", members, depth, width, n) / kept
        yield Row(
            "memory",
            f"train, {members} × depth {depth} × width {width}, N {n}",
            "parameters, optimizer state, activations",
            Spread(ratio, ratio, ratio),
            at_most=1.5,
            note=parts,
        )
    few, many = (_peak("profile", n) for n in PROFILED)
    ratio = many / few
    growth = PROFILED[1] // PROFILED[0]
    yield Row(
        "memory",
        f"profile, {growth} times the samples, chunk {CHUNK}",
        "its own peak",
        Spread(ratio, ratio, ratio),
        at_most=1.2,
        note=f"{few / 2**20:.0f} and {many / 2**20:.0f} MiB besides the data",
    )


def _kept(members: int, depth: int, width: int, n: int) -> tuple[float, str]:
    """Return the bytes of parameters, Adam's two moments, and outputs of all layers; and these in words."""
    widths = _widths(depth, width)
    parameters = members * sum((a + 1) * b for a, b in itertools.pairwise(widths)) * BYTES
    activations = members * n * sum(widths[1:]) * BYTES
    parts = f"{parameters / 2**20:.0f} + {2 * parameters / 2**20:.0f} + {activations / 2**20:.0f} MiB"
    return 3 * parameters + activations, parts


def _widths(depth: int, width: int) -> list[int]:
    return [20, *[width] * (depth - 1), 20]


def _peak(*arguments: object) -> float:
    """Return the bytes by which the peak memory of a fresh process grew."""
    command = [sys.executable, "-m", "benchmarks.memory", *map(str, arguments)]
    root = Path(__file__).resolve().parent.parent
    return float(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def started() -> int:
    """Let the peak of the resident memory start anew, and return what is resident now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(key: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def _growth(kind: str, numbers: list[int]) -> int:
    """Run and return by how much the peak exceeds what was in use before, libraries warmed up."""
    small = bnrank.tasks.low_rank_map(n=64, n_test=0)
    bnrank.train(bnrank.MLP([20, 8, 20]), small, steps=2, members=2, seed=0, optimizer="adam", progress=False)
    bnrank.profile(bnrank.MLP([20, 8, 20]), small.x, small.y)
    if kind == "train":
        members, depth, width, n = numbers
        task = bnrank.tasks.low_rank_map(n=n, n_test=0)
        net = bnrank.MLP(_widths(depth, width))
    else:
        x = torch.randn(numbers[0], 20)
        net = bnrank.MLP(_widths(6, 200))
    before = started()
    if kind == "train":
        bnrank.train(net, task, steps=3, members=members, seed=0, ridge=1e-3, optimizer="adam", progress=False)
    else:
        bnrank.profile(net, x, chunk_size=CHUNK)
    return status("VmHWM") - before


if __name__ == "__main__":
    print(_growth(sys.argv[1], [int(number) for number in sys.argv[2:]]))
