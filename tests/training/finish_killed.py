"""Run by test_finish_resume.py in a process of its own: finish a network, and be killed after some checkpoints.

Arguments: the folder, and the number of checkpoints after which the process kills itself; 0 for never. Prints the
number of evaluations of the loss and the loss at the end.
"""

import os
import signal
import sys

import bnrank
from bnrank.measures import second_order
from bnrank.training.finishing import stages


def main(folder, wanted):
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
    print(evaluations, written, repr(done.loss), done.stationarity.residual)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
