"""Run by test_memory.py in a process of its own: prints by how many MiB a training adds to the peak."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bnrank.training import Save, train
from training.common import mlp, random_task


def peak():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def run(width, n, members, **arguments):
    task = random_task(n, width, width)
    net = mlp(*[width] * 11)
    before = peak()
    train(net, task, steps=2, members=members, seed=0, record=2, progress=False, **arguments)
    return peak() - before


width, n, members, optimizer, *out = sys.argv[1:]
for size in ((20, 300, 2), (int(width), int(n), int(members))):  # the first imports what any training needs
    folder = Save(Path(out[0]) / str(size[0]), checkpoint_every=2) if out else None
    added = run(*size, optimizer=optimizer, out=folder)
print(added)
