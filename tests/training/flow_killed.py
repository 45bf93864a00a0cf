"""Run by test_flow_resume.py in a process of its own: start flows, kill them, and print how often they were at work."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.test_flow_resume import KILLED, start


def killed(folder, wanted):
    """Kill a flow after it has written a few checkpoints; True if it was still at work."""
    process = os.fork()
    if process == 0:
        start(**KILLED, out=folder, checkpoint_every=1)
        os._exit(0)
    path, seen = folder / "flow.safetensors", set()
    while len(seen) < wanted:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.0005)
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1] != 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(sum(killed(Path(sys.argv[1]), wanted) for wanted in (2, 3, 5)))
