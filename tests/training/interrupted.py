"""Run by test_resume.py in a process of its own, and interrupted by SIGINT."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bnrank.training import train
from training.common import mlp, random_task

run = train(
    mlp(3, 12, 9, 2),
    random_task(100),
    out=sys.argv[1],
    optimizer="adam",
    members=2,
    steps=int(sys.argv[2]),
    record_every=10,
    checkpoint_every=20,
    progress=False,
)
print(*run.summary.status.values, int(run.history.step[-1]))
