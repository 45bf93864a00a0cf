"""Drift of conserved quantities during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part
from bnrank._core.results import Printed
from bnrank._version import __version__
from bnrank.networks.functional import example as samples
from bnrank.networks.functional import unwrap
from bnrank.theory.invariants import history
from bnrank.theory.invariants.conserved import Conserved, Tensors
from bnrank.theory.invariants.linear_tail import findings_and_tail
from bnrank.theory.invariants.squares import Forms
from bnrank.theory.invariants.steps import Attachment, Remarks, lightning_callback, predicted
from bnrank.theory.invariants.track import Ledger, Track
from bnrank.theory.verdicts import Verdicts

if TYPE_CHECKING:
    import xarray as xr

OFTEN, SELDOM = 100, 1000  # steps between rows with matrices, for small and for large matrices
LARGE = 128  # matrices with more channels are large


class Monitor(Printed):
    r"""Record the drift of conserved quantities in training, and its parts due to step size and weight decay.

    Gradient flow conserves every Q = in - out that :func:`bnrank.invariants.find` returns. Steps of gradient descent,
    theta' = theta - eta (grad C + 2 lambda theta), do not (T49):

        Q(theta') - Q(theta) = eta^2 Q(grad C) + ((1 - 2 eta lambda)^2 - 1) Q(theta).

    In general, with theta' = (1 - c) theta + Delta' and c the decay of one step, the first part is Q(Delta'), the
    second ((1 - c)^2 - 1) Q(theta), and the cross term 2 (1 - c) B(theta, Delta') is the rest. It is 0 for gradient
    descent with any step sizes. A nonzero rest comes from preconditioning (Adam), step sizes or decays that differ
    between parameters, gradients changed before the step (clipping by value; clipping by norm has no effect), kinks and
    rounding. With momentum mu of `torch.optim.SGD` and a constant step size and decay, the split is also exact if later
    effects of a step are included: the size of the step contributes (1 + mu) / (1 - mu) Q(theta' - theta), 19 times as
    much for mu = 0.9, and c is eta weight_decay / (1 - mu). Pending effects are not included in the parts. Under a
    schedule the split is approximate.

    Parameters
    ----------
    net : nn.Module
        The network; never changed.
    example : Tensor
        Samples (N, ...) of the network's input; only their shape matters. At most two are used.
    every : int
        Steps between rows. Before step 3 * ``every``, rows are closer: at most a third of the step number apart. With
        1, the split is exact; otherwise the parts are assumed to change linearly between two rows (the trapezoidal
        rule), and the error is included in the rest.
    matrices_every : int, optional
        Smallest number of steps between rows that also have expensive measures: whole matrices, singular values of the
        linear tail (T48), signs and the direction of theta (T43). The first and the last row also have them. Default:
        100, or 1000 if a matrix has more than 128 channels. 0 for never.

    Notes
    -----
    Two lines in any loop::

        monitor = bnrank.invariants.Monitor(net, x[:2])
        monitor.attach(optimizer)

    and ``record=Record(watch=monitor)`` for `bnrank.train` and `bnrank.flow`, where each recorded row is one
    here.
    Quantities of kind "pair" are not recorded: they are conserved only while activation patterns agree.
    A row costs a pass over the weights for Q(theta) and one for Q(Delta'), and a copy of them unless the optimizer is
    plain SGD.
    ``time`` is the sum of the learning rates of the optimizer's first parameter group.
    An error while recording does not end the training: recording stops, with a warning and a note.
    A parameter that is frozen or unfrozen midway is followed as before. Its quantities are not conserved while it is
    frozen, and their verdicts are "not applicable".

    Raises
    ------
    TypeError, ValueError
        If the module cannot be traced on the example, a number is out of range, or nothing is conserved.

    Examples
    --------
    >>> import torch, bnrank
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    >>> x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.01)
    >>> with Monitor(net, x[:2], every=1).attach(optimizer) as monitor:
    ...     for _ in range(50):
    ...         optimizer.zero_grad()
    ...         (net(x) - y).square().mean().backward()
    ...         optimizer.step()
    >>> last = monitor.history.isel(member=0, row=-1, quantity=0)
    >>> last.quantity.item(), bool(abs(last["rest"]) < 1e-12 * last.drift)
    ('vertex 0 | 2', True)
    """

    def __init__(self, net: nn.Module, example: Tensor, *, every: int = 20, matrices_every: int | None = None) -> None:
        self.every = validation.integer(every, "every")
        self.net = unwrap(net)
        self.findings, self.tail = findings_and_tail(self.net, samples(self.net, example, name="example")[:2])
        chosen = [q for q in self.findings if q.kind in ("vertex", "layer")]
        matrices = [q for q in self.findings if q.kind == "matrix"]
        if matrices_every is None:
            matrices_every = OFTEN if all(q.size <= LARGE for q in matrices) else SELDOM
        self.matrices_every = validation.integer(matrices_every, "matrices_every", 0)
        if not chosen and not matrices:
            raise ValueError(f"net: {self.findings}")
        # of a matrix the diagonal is cheap enough for every row
        diagonals = [replace(q, name=q.name.replace("matrix", "diagonal", 1), kind="vertex") for q in matrices]
        self.quantities: tuple[Conserved, ...] = (*diagonals, *chosen, *(matrices if self.matrices_every else ()))
        self._forms = Forms([*diagonals, *chosen])
        self._matrices = Forms(matrices if self.matrices_every else [])
        self._tracks: dict[int, Track] = {}
        self._attachment: Attachment | None = None
        self._step, self._time = 0, 0.0
        self._clock = "t (sum of the step sizes)"
        self._names = {name for name, p in self.net.named_parameters() if p.requires_grad}
        self._remarks = Remarks()

    @property
    def notes(self) -> list[str]:
        """Remarks on the steps taken."""
        return self._remarks.notes

    def attach(self, optimizer: torch.optim.Optimizer) -> Monitor:
        """Return the monitor, which records from this optimizer's next step; as a context manager it detaches on exit.

        Raises
        ------
        TypeError, ValueError
            If it is no torch optimizer (then call :meth:`record` yourself), lacks parameters that enter a conserved
            quantity (they are named), or the monitor is attached already.
        """
        expected = "a torch.optim.Optimizer; for any other, call monitor.record() yourself"
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer: got {validation.describe(optimizer)}, expected {expected}")
        if self._attachment is not None:
            kind = type(self._attachment.optimizer).__name__
            raise ValueError(f"optimizer: already attached to {kind}; call detach() first")
        if missing := ", ".join(self.missing(optimizer)):
            raise ValueError(
                f"optimizer: does not hold {missing} of the module, expected all parameters that enter a conserved "
                "quantity; train them too, or set requires_grad to False before the monitor is made"
            )
        about = (self._track(0), self.every, self._remarks, self._step, self._time)
        self._attachment = Attachment(optimizer, self._own(), self._live(), *about)
        return self

    def missing(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Return the names of the parameters that enter a conserved quantity and that an optimizer does not hold."""
        groups = isinstance(optimizer, torch.optim.Optimizer)
        validation.expect(groups, "optimizer", optimizer, "a torch.optim.Optimizer", TypeError)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [name for name, p in self._live().items() if id(p) not in held]

    def callback(self) -> Any:
        """Return a callback for the Trainer of PyTorch Lightning that attaches this monitor while it trains.

        Raises
        ------
        ImportError
            If PyTorch Lightning is not installed.
        """
        return lightning_callback(self)

    def detach(self) -> None:
        """Stop recording; the current state becomes the last row. Does nothing if the monitor is not attached."""
        if self._attachment is not None:
            self._attachment.catch_up()
            self._attachment.remove()
            self._step, self._time = self._attachment.step, self._attachment.time
        self._attachment = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the optimizer: a copy is not attached."""
        own = self._attachment
        now = {} if own is None else {"_step": own.step, "_time": own.time}
        return {**self.__dict__, **now, "_attachment": None}

    def _own(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.net.named_parameters() if name in self._names}

    def _live(self) -> dict[str, Tensor]:
        """Return the parameters that enter a quantity, in the module's order."""
        entering = set(self._forms.parameters)
        return {name: p for name, p in self.net.named_parameters() if name in entering}

    def record(
        self,
        step: int | None = None,
        *,
        time: float | None = None,
        gradient: Tensors | None = None,
        lr: float | None = None,
        ridge: float = 0.0,
    ) -> None:
        """Record a row by hand, in a loop whose optimizer is not torch's.

        Parameters
        ----------
        step : int, optional
            Steps taken so far. Default: one more than at the last row.
        time : float, optional
            The sum of the step sizes so far, or the time of a flow.
        gradient : mapping, optional
            grad C by the names of the parameters, of the data cost alone.
        lr, ridge : float, optional
            eta and lambda of the step that follows, if it is one of gradient descent; the parts of T49 follow from
            them and the gradient.

        Raises
        ------
        TypeError, ValueError
            If the monitor is attached to an optimizer, or an argument is wrong.
        """
        if self._attachment is not None:
            kind = type(self._attachment.optimizer).__name__
            raise ValueError(f"record: attached to {kind}, which records by itself")
        last = self._track(0).step
        time, lr = (validation.optional(validation.number, value, name) for value, name in ((time, "time"), (lr, "lr")))
        ridge = validation.number(ridge, "ridge", 0.0)
        if gradient is not None:
            validation.expect(isinstance(gradient, Mapping), "gradient", gradient, "a mapping by parameter", TypeError)
        self.observe(
            (0 if last is None else last + 1) if step is None else step, time, self._own(), gradient, lr, ridge
        )

    @torch.no_grad()
    @np.errstate(all="ignore")
    def observe(
        self,
        step: int,
        time: float | None,
        parameters: Tensors,
        gradient: Tensors | None = None,
        lr: float | None = None,
        ridge: float = 0.0,
        member: int = 0,
    ) -> None:
        """Record a row of a member from named parameters: what `bnrank.train` and `bnrank.flow` call.

        With ``lr`` and ``time``, the following step is treated as a step of gradient descent. With ``time`` alone, it
        is treated as a flow, for which the ridge makes Q decay as exp(-4 lambda t) and no part is due to the step size.
        Without ``time`` (Adam, L-BFGS), the drift is not split.

        Raises
        ------
        TypeError, ValueError
            If parameters are missing, or rows do not come in order.
        """
        step, member = validation.integer(step, "step", 0), validation.integer(member, "member", 0)
        track = self._track(member)
        if track.step is not None and step <= track.step:
            if step == track.step:
                return
            raise ValueError(
                f"step: got {step} after {track.step} for member {member}; a monitor watches one run, make a new one"
            )
        kind = type(self.net).__name__
        own = self._own()
        given = {name: p.detach() for name, p in parameters.items() if name in own}
        missing = ", ".join(name for name in own if name not in given)
        expected = f"all that require a gradient of the {kind} the monitor was made for"
        validation.expect(not missing, "parameters", f"no {missing}", expected)
        for name, p in given.items():
            expected = f"{tuple(own[name].shape)}; the monitor was made for another {kind} than the one that is trained"
            validation.expect(p.shape == own[name].shape, "parameters", f"{name} of shape {tuple(p.shape)}", expected)
        track.add(step, math.nan if time is None else float(time), given)
        if time is None:
            self._remarks.add(unlike="the steps are not known to be ones of gradient descent")
            return
        if lr is None:
            self._clock = "t"
        elif gradient is None:
            unsure = "the gradients of the steps, and so the parts due to the step size, are not known (mini-batches)"
            self._remarks.add(unsure=unsure)
        for ledger in track.open():
            ledger.complete(predicted(ledger, gradient, lr, ridge))

    def _track(self, member: int) -> Track:
        if member not in self._tracks:
            self._tracks[member] = Track(Ledger(self._forms), Ledger(self._matrices), self.tail, self.matrices_every)
        return self._tracks[member]

    @property
    def history(self) -> xr.Dataset:
        """All rows, over (member, row, quantity).

        ``value`` is the norm ||Q_t|| over the entries of a quantity, ``drift`` ||Q_t - Q_0||, ``relative`` the drift
        over ||in + out|| (the larger of now and at the start), the scale of the terms that cancel in Q. ``by_step``,
        ``by_decay`` and ``rest`` are the components of the three parts along the drift and add up to it;
        ``norm_by_step`` and so on are their norms. NaN where something was not measured or a part does not apply; an
        unknown part is in the rest.

        ``sign_changes`` (parameter): the fraction of signs that differ from those of the previous row that has them;
        ``turned_from_last`` and ``turned_from_first``: 1 - cos of the angle between theta and theta at that row, or at
        the first one. ``ratio``, ``alignment``, ``operator`` and ``bound`` (layer) are those of T48 for the linear
        tail: ||W||_op^2 / ||W||_F^2, |<v_{j+1}, u_j>| with the next layer, ||W||_op^2 and its lower bound.

        While attached, the current state is added as a row if it is not one yet.
        """
        return history.dataset(self._recorded(), self.quantities, self.tail, self._about())

    def _recorded(self) -> dict[int, Track]:
        if self._attachment is not None:
            self._attachment.catch_up()
        found = {member: track for member, track in sorted(self._tracks.items()) if track.steps}
        if not found:
            raise ValueError("nothing recorded yet: attach an optimizer and step, or call record()")
        return found

    def _about(self) -> dict[str, Any]:
        return {
            "module": type(self.net).__name__,
            "bnrank_version": __version__,
            "every": self.every,
            "matrices_every": self.matrices_every,
            "clock": self._clock,
            "notes": "; ".join(self.notes),
        }

    def drift(self, member: int = 0) -> dict[str, float]:
        """Return the relative drift of every quantity at the last row, ``{name: ||drift|| / ||in + out||}``.

        It is NaN for quantities that the last row lacks; empty if nothing has been recorded. While attached, no row is
        added.

        Raises
        ------
        TypeError, ValueError
            If nothing has been recorded for the member, but for others.
        """
        if not any(track.steps for track in self._tracks.values()):
            return {}
        member = validation.integer(member, "member", 0)
        recorded = [m for m, track in sorted(self._tracks.items()) if track.steps]
        if member not in recorded:
            raise ValueError(f"member: got {member!r}, expected one of {', '.join(map(str, recorded))}")
        values = self._tracks[member].latest()["relative"]
        return {q.name: float(value) for q, value in zip(self.quantities, values, strict=True)}

    def parts(self, member: int = 0) -> dict[str, dict[str, Tensor]]:
        """Return "drift", "by_step", "by_decay" and "rest" at the last row, each a mapping from quantity to entries.

        Raises
        ------
        ValueError
            If nothing has been recorded for the member.
        """
        track = self._of(member)
        found: dict[str, dict[str, Tensor]] = {}
        for ledger in (track.ledger, track.matrices):
            for name, flat in ledger.vectors().items():
                found.setdefault(name, {}).update(ledger.forms.split(flat))
        return found

    def _of(self, member: int) -> Track:
        tracks = self._recorded()
        member = validation.integer(member, "member", 0)
        if member not in tracks:
            raise ValueError(f"member: got {member!r}, expected one of {', '.join(map(str, tracks))}")
        return tracks[member]

    def signs_changed_since(
        self, step: int | None = None, *, time: float | None = None, member: int = 0
    ) -> dict[str, float]:
        """Return per parameter the fraction of its entries observed to change sign after a step or a time (T43).

        Signs are compared at the rows that have ``sign_changes``, every ``matrices_every`` steps. A change counts if
        the row at which it is observed is after the step.

        Raises
        ------
        TypeError, ValueError
            If not exactly one of step and time is given, it is beyond the last row that has signs, or no signs are
            recorded.
        """
        if not self.matrices_every:
            raise ValueError("matrices_every: got 0, so no signs were recorded; make the monitor with at least 1")
        return self._of(member).signs.changed_since(step, time=time)

    def verdicts(self, rtol: float = 1e-2) -> Verdicts:
        """Return verdicts on T44 to T46 along training, up to the drift that T49 explains, and on T48 for the tail.

        Parameters
        ----------
        rtol : float
            A quantity "holds" if the drift that neither step size nor weight decay explains is below this, relative to
            in + out. Otherwise it is

            - "violated" if the parts are exact and rounding does not explain the drift (4 eps of the parameters' dtype
              per step);
            - "not applicable" if the steps are not gradient descent (with or without momentum; Adam and L-BFGS are
              not), or a parameter is frozen;
            - "inconclusive", with the reason, if the parts are not exact: rows more than a step apart, schedules with
              momentum, momentum from before the first row, decay that differs between parameters, mini-batches of
              :func:`bnrank.train`, unrecorded training, gradients clipped by value, half precision.

        Notes
        -----
        T48 is evaluated with the constants of the first row. Its bound is for gradient flow: if the conserved
        quantities drift by more than ``rtol``, the bound may fail and is then "not applicable".
        """
        rtol, tracks = validation.number(rtol, "rtol", 0.0, strict=True), self._recorded()
        found = history.judge_all(tracks, self.quantities, self.tail.names, rtol, self._remarks)
        return Verdicts(tuple(found), {**self._about(), "rtol": rtol, "members": len(tracks)})

    def plot(self, axes: Any = None, member: int = 0) -> Any:
        """Draw relative drifts with their parts, and the tail's ratios and alignments; return the axes.

        Parameters
        ----------
        axes : matplotlib axes, optional
            One per panel: two, or three with a linear tail of at least two layers. Default: new axes.
        member : int
            Ensemble member.

        Examples
        --------
        >>> import torch, bnrank
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
        >>> x, optimizer = torch.randn(20, 3).double(), torch.optim.SGD(net.parameters(), lr=0.05, weight_decay=0.01)
        >>> with Monitor(net, x[:2], every=5).attach(optimizer) as monitor:
        ...     for _ in range(100):
        ...         optimizer.zero_grad()
        ...         (net(x)[:, 0] - x[:, 0].abs()).square().mean().backward()
        ...         optimizer.step()
        >>> len(monitor.plot())
        2
        """
        self._of(member)
        return history.plot(self.history.sel(member=member), axes)

    def _content(self) -> list[Part]:
        if not any(track.steps for track in self._tracks.values()):
            return [f"monitor of {len(self.quantities)} quantities, nothing recorded yet"]
        return history.content(self._recorded(), self.quantities, self._about())

    def __repr__(self) -> str:
        return f"Monitor({type(self.net).__name__}, {len(self.quantities)} quantities, every={self.every})"
