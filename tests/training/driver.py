"""Run by test_concurrency.py in a process of its own: a sweep with two workers, whose driver is killed."""

import sys
import time

import bnrank
from bnrank.training import trainer

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)


def start(folder, processes):
    """The sweep, with or without workers."""
    options = {"steps": 800, "optimizer": "adam", "checkpoint_every": 10, "record": 500, "progress": False}
    return bnrank.sweep(TASK, depths=[2, 3], grid={"width": [4]}, processes=processes, out=folder, **options)


def save_checkpoint(*arguments, save=trainer.save_checkpoint):
    """Write a checkpoint and wait to be killed."""
    save(*arguments)
    time.sleep(600)


if __name__ == "__mp_main__":  # in a worker, whose training shall not end before that of the other has a checkpoint
    trainer.save_checkpoint = save_checkpoint
if __name__ == "__main__":
    start(sys.argv[1], 2)
