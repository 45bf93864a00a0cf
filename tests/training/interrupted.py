"""Run by test_resume.py in a process of its own, and interrupted by SIGINT."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bnrank.training import Save, train
from training.common import mlp, random_task

run = train(
    mlp(3, 12, 9, 2),
    random_task(100),
    steps=int(sys.argv[2]),
    members=2,
    optimizer="adam",
    record=10,
    out=Save(sys.argv[1], checkpoint_every=20),
    progress=False,
)
print(*run.summary.status.values, int(run.history.step[-1]))
