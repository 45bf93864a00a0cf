"""Fine-tuning at fixed size: the parameters that are left, fitted to what the module gave before."""

from __future__ import annotations

import copy

import torch

from bnrank.discovery.compression.chain import Parts, run
from bnrank.discovery.compression.judging import Judge

__all__ = ["tuned"]

INNER = 10  # iterations of L-BFGS between two judgements
PATIENCE = 4  # judgements without a better one


def tuned(judge: Judge, parts: Parts, steps: int) -> tuple[Parts, float]:
    """Minimize the mean squared difference of the outputs over the samples that fits are made on, by L-BFGS.

    Parameters
    ----------
    judge : Judge
        Has the samples; the best parameters by its measure are kept, so that the change never grows.
    parts : tuple of torch.nn.Module
        Left as they are.
    steps : int
        Iterations at most.

    Returns
    -------
    tuple of torch.nn.Module
        Copies with other parameters.
    float
        Their change.
    """
    work = tuple(copy.deepcopy(part) for part in parts)
    best, change, idle = parts, judge(parts), 0
    parameters = [p.requires_grad_(True) for part in work for p in part.parameters()]
    if not parameters:
        return best, change
    optimizer = torch.optim.LBFGS(parameters, max_iter=INNER, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (judge.rest(run(work, judge.x)) - judge.f).flatten(1).square().sum(1).mean() / judge.scale**2
        loss.backward()
        return loss

    for _ in range(0, steps, INNER):
        with torch.enable_grad():
            optimizer.step(closure)
        found = judge(work)
        idle += 1
        if found < change:
            best, change, idle = tuple(copy.deepcopy(part) for part in work), found, 0
        if idle >= PATIENCE:
            break
    for part in best:
        for p in part.parameters():
            p.grad = None
    return best, change
