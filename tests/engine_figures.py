"""Figures of trainings of milliseconds, in a module that the processes of a pool can import."""

import functools
import multiprocessing
import os
import signal

import bnrank
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Outcome
from bnrank.figures.harness.training import train_recorded


def one(folder, seed):
    """Train a network; the process that does it first for seed 1 is killed."""
    if seed == 1 and multiprocessing.parent_process() is not None and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    task = bnrank.tasks.low_rank_map(n=20, d_in=3, d_out=2, latent=2, rank=1, seed=seed)
    run = train_recorded(bnrank.MLP([3, 4, 2]), task, folder / str(seed), False, steps=6, seed=seed)
    (folder / f"by-{os.getpid()}").touch()
    return run


def make(settings, folder, progress):
    folder.mkdir(exist_ok=True)
    calls = [functools.partial(one, folder, seed) for seed in range(settings.width)]
    ahead(calls, progress)
    losses = [float(call().summary.loss[0]) for call in calls]
    return Outcome(claims=tuple(Claim(f"loss {i}", True, loss, "any") for i, loss in enumerate(losses)))


def fails(folder):
    raise OSError("no such luck")


def make_failing(settings, folder, progress):
    ahead([functools.partial(fails, folder)], progress)
    return Outcome()
