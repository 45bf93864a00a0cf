"""Run by test_finish_resume.py in a process of its own: finish a network, and be killed after some checkpoints."""

import os
import signal

import bnrank
from bnrank.measures import second_order
from bnrank.training.finishing import stages


def finished(told, folder, wanted):
    """Finish a network in a folder; kill the process after so many checkpoints, or never if 0.

    Puts the numbers of evaluations of the loss and of checkpoints, the loss at the end and the residual.
    """
    task = bnrank.tasks.low_rank_map(n=30, d_in=2, d_out=2, latent=2, rank=1, width=8, seed=0)
    evaluations, written = 0, 0
    begin, write = second_order.Evaluation.__init__, stages.Stages.write

    def counted(self, *args, **options):
        nonlocal evaluations
        evaluations += 1
        begin(self, *args, **options)

    def killed(self):
        nonlocal written
        write(self)
        written += 1
        if written == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    second_order.Evaluation.__init__, stages.Stages.write, stages.EVERY = counted, killed, 0.0
    done = bnrank.finish(bnrank.MLP([2, 6, 6, 2], seed=1), task, 0.01, out=folder, progress=False)
    told.put((evaluations, written, done.loss, done.stationarity.residual))
