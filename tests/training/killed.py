"""Run by test_resume.py in a process of its own: train, be killed again and again, go on, in the end complete.

Prints, per kind of run, how many times it was killed before the end.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.common import RUNS, mlp, random_task, trained

KILLS = 3


def start(folder, kind):
    """Train in a process of its own; killed at any moment."""
    process = os.fork()
    if process == 0:
        try:
            trained(
                mlp(3, 12, 9, 2),
                random_task(100),
                out=folder,
                checkpoint_every=5 if "+" in kind else 1,
                progress=False,
                **RUNS[kind],
            )
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


def killed(folder, kind, number):
    """Kill it some milliseconds after it has written a few checkpoints; True if it was still at work."""
    draw = random.Random(f"{kind}/{number}")
    process, path = start(folder, kind), folder / "checkpoint.safetensors"
    seen, wanted = set(), draw.randrange(1, 6)
    while len(seen) <= wanted:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            assert status == 0, "a resumed run failed"
            return False
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.01))
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert status in (0, signal.SIGKILL), "a resumed run failed"
    return status != 0


def main():
    torch.set_num_threads(1)
    trained(mlp(3, 4, 2), random_task(10), steps=2, progress=False)  # imports, which no process then needs to repeat
    torch.set_num_threads(int(sys.argv[2]))
    counts = {}
    for kind in RUNS:
        folder = Path(sys.argv[1]) / kind
        counts[kind] = sum(killed(folder, kind, number) for number in range(KILLS))
        _, status = os.waitpid(start(folder, kind), 0)
        assert status == 0, "a resumed run failed"
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
