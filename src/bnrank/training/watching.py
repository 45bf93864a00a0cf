"""Looking on while networks are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from bnrank.training.first_order import Optimizer

__all__ = ["Watcher", "tell"]


class Watcher(Protocol):
    """What ``bnrank.train`` and ``bnrank.flow`` with ``record=Record(watch=...)`` call at every row they record.

    A watcher changes nothing of a run: not its bits, its settings nor its checkpoints, so that a run may be resumed
    with another one or with none. Rows from before a resume are not shown again.
    """

    def observe(
        self,
        *,
        step: int,
        time: float | None,
        parameters: Mapping[str, Tensor],
        gradient: Mapping[str, Tensor] | None,
        lr: float | None,
        ridge: float,
        member: int,
    ) -> None:
        """Look at one member at one recorded step.

        An exception raised here ends the run, after a checkpoint if there is a folder for it.

        Parameters
        ----------
        step : int
            Steps taken so far.
        time : float or None
            The sum of the step sizes so far for gradient descent, t for a flow; None for other optimizers.
        parameters : mapping
            The trained parameters by their names in ``net.named_parameters()``. They are views, valid during the call
            only, and not to be written to: clone what is kept.
        gradient : mapping or None
            dC/dtheta by the same names, of the data cost alone, without the ridge; on the skipped plateau of a flow
            that of L0. None where the whole gradient is not known: with mini-batches in all rows but the last of
            ``train``.
        lr : float or None
            The step size of the step that follows, of gradient descent and Adam; None for L-BFGS and for a flow.
        ridge : float
            lambda of this member; 0 for a flow.
        member : int
            Its number in the ensemble.
        """


def tell(
    watch: Watcher,
    names: Sequence[str],
    split: Callable[[Tensor], list[Tensor]],
    optimizer: Optimizer,
    step: int,
    members: Mapping[int, int],
    ridge: Sequence[float],
    whole: bool,
) -> None:
    """Show a watcher some members of an ensemble.

    Parameters
    ----------
    watch : Watcher
        Who looks on.
    names : sequence of str
        Names of the trained parameters.
    split : callable
        Parameter matrix -> the network's trainable tensors, each (m, *shape).
    optimizer : Optimizer
        Where the members are.
    step : int
        Steps taken.
    members : mapping
        From a member's position in the optimizer to its number.
    ridge : sequence of float
        lambda by member number.
    whole : bool
        Whether the gradient is that of all samples.
    """
    point = optimizer.point

    def named(row: Tensor) -> dict[str, Tensor]:
        return {name: piece[0] for name, piece in zip(names, split(row.detach().unsqueeze(0)), strict=True)}

    for position, member in members.items():
        with torch.no_grad():
            gradient = named(optimizer.data_gradient(position)) if whole else None
            lr, time = optimizer.pace(position, step)
        watch.observe(
            step=step,
            time=time,
            parameters=named(point[position]),
            gradient=gradient,
            lr=lr,
            ridge=ridge[member],
            member=member,
        )
