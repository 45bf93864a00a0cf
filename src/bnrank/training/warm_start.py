"""A first-order start, then a quasi-Newton finish."""

from __future__ import annotations

import torch
from torch import Tensor

from bnrank.training.first_order import EnsembleAdam, Objective
from bnrank.training.quasi_newton import LBFGS

__all__ = ["WarmStarted"]

STEPS, LR = 200, 3e-3


class WarmStarted:
    """200 steps of Adam with step size 3e-3, then L-BFGS.

    Started at once, a curvature-aware method goes straight to a poor minimum: far from a fit the cost is flat along
    most directions, the ridge removes them, and with them the rank that the task needs (on F1, of rank 4, it ended at
    ranks 1 and 2). After a few hundred steps of Adam the directions that matter have formed.

    Parameters
    ----------
    objective : Objective
        Where parameters and gradients are.
    ridge : Tensor
        lambda per member, float64.
    then : LBFGS
        What follows.
    """

    def __init__(self, objective: Objective, ridge: Tensor, then: LBFGS) -> None:
        rates = torch.full((objective.members,), LR, dtype=torch.float64)
        self.first = EnsembleAdam(objective, ridge, rates, STEPS, "constant")
        self.then = then
        self.moves = torch.zeros(1, dtype=torch.int64)

    @property
    def current(self) -> EnsembleAdam | LBFGS:
        """Whichever it is the turn of."""
        return self.first if int(self.moves) < STEPS else self.then

    @property
    def stalled(self) -> Tensor:
        """Which members have come to an end, shape (members,), bool."""
        return self.current.stalled

    @property
    def point(self) -> Tensor:
        """Parameters reached so far, shape (members, size)."""
        return self.current.point

    def digest(self) -> None:
        """Take in the objective's cost and gradient."""
        self.current.digest()

    def move(self, step: int) -> None:
        """Write the next parameters to evaluate into the objective."""
        self.current.move(step)
        self.moves += 1

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return regularized loss and norm of its gradient at ``point``, each (members,), float64."""
        return self.current.statistics()

    def data_gradient(self, member: int) -> Tensor:
        """Return dC/dtheta, without the ridge, at one member's ``point``, shape (size,), right after :meth:`digest`."""
        return self.current.data_gradient(member)

    def pace(self, member: int, step: int) -> tuple[float | None, float | None]:
        """Return the step size of Adam while it is its turn, and None: there is no time."""
        return self.current.pace(member, step)

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on."""
        return self.current.state() | {"moves": self.moves}

    def load(self, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`state` returned."""
        self.moves.copy_(state["moves"])
        self.current.load(state)

    def keep(self, members: list[int], objective: Objective) -> None:
        """Go on with some of the members, whose rows are in a new objective."""
        self.first.keep(members, objective)
        self.then.keep(members, objective)
