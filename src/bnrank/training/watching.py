"""Looking on while networks are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from bnrank.training.ensemble import split

__all__ = ["Watcher", "show"]


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


def show(
    watch: Watcher,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    parameters: Tensor,
    gradient: Tensor | None,
    **row: Any,
) -> None:
    """Show a row of one member to a watcher, with flat parameters and gradient, shape (size,), by their names."""

    def named(flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, split(flat.detach(), shapes), strict=True))

    known = None if gradient is None else named(gradient)
    watch.observe(parameters=named(parameters), gradient=known, **row)
