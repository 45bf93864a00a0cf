"""Main loop of a flow: skip the plateau around the origin, then follow the true flow; record, stop, save."""

import math
import threading
import time as clock
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from bnrank._core import linalg
from bnrank.training.ensemble import BatchOrder, norm
from bnrank.training.gradient_flow.fields import Cost, Origin, Plateau, Rate, System, TrueFlow
from bnrank.training.gradient_flow.record import FlowRecorder, Handover, Row
from bnrank.training.gradient_flow.steppers import Euler, Explicit, Implicit, Move, StalledError, Stepper
from bnrank.training.history import show
from bnrank.training.options import ADAPTIVE, Limits, Watcher
from bnrank.training.settings import FlowSettings

ENOUGH = 1.1  # hand over if ||theta|| can grow by less than this factor before the criterion is violated
AIM = 0.98  # fraction of the growth possible before the criterion is violated that a step aims at
ASIDE = 1e-6  # sine of the angle between theta and grad L0 below which the direction has converged
EASE = 300.0  # maximum factor on the error tolerance at kinks in the middle of the plateau
NEAR = 1.2  # like ENOUGH, after a step that violates the criterion
SHORTEST = 1e-4  # hand over instead of taking a shorter step on the plateau, in units of ||theta||
COARSE = 0.01  # tolerance of Heun's steps on the plateau if the true flow uses Euler's method
STATE = ("step", "time", "since", "passed", "arc", "h", "skipped", "seconds", "recent")  # stored as they are
FIRST = 0.01  # length of the first step, relative to ||theta||


Goal = tuple[float, float, Limits]  # t_end, t_after and further limits


class Driver:
    """Integration of one flow; see :func:`bnrank.flow` for the method."""

    def __init__(
        self, plan: FlowSettings, cost: Cost, origin: Origin | None, record: FlowRecorder, goal: Goal, theta: Tensor
    ) -> None:
        self.plan, self.cost, self.origin, self.record = plan, cost, origin, record
        self.t_end, self.t_after, self.limits = goal
        self.watch: tuple[Watcher, list[str]] | None = None  # the watcher and the parameter names
        sizes = {"flow": plan.batch_size, "plateau": plan.plateau_batch_size}
        self.batches = {phase: BatchOrder([plan.seed], len(cost.x), size) for phase, size in sizes.items() if size}
        self.flow = TrueFlow(cost, plan.time)
        self.stepper = _stepper(plan.method, plan)
        self.step, self.seconds = 0, 0.0
        self.time = 0.0  # t at the hand-over, or the current t before it
        self.since = 0.0  # t since the hand-over
        self.passed = 0.0  # t since the last row
        self.arc = self.h = 0.0
        self.skipped = 0.0  # steps that Euler's method would have taken on the skipped plateau
        self.handover: Handover | None = None
        self.plateau: Plateau | None = None
        self.recent = [0.0, 0]  # sum and number of costs since the last row
        self.status = "running"
        self.theta = theta = self._placed(theta)
        if origin is not None:
            radius = norm(theta)
            batch = self._batch("plateau")
            if origin.exceeds(theta, math.log(radius), batch, plan.handover_rtol):
                self._hand_over(theta, math.log(radius), batch, at_once=True)
            else:
                self.plateau = origin.plateau
                self.plateau.log_radius = math.log(radius)
                self.theta = theta / radius
        self.first = self._rate()
        self._restart()

    def run(self, interrupted: threading.Event, show: Callable[[Row], None], save: Callable[[bool], None]) -> None:
        """Take steps until the flow ends, then complete the last row."""
        began = clock.perf_counter() - self.seconds
        while True:
            row = self._row()
            if not all(map(math.isfinite, (row.loss, row.parameter_norm, row.gradient_norm))):
                self.status = "diverged"
                break
            just_left = self.handover is not None and self.handover.row == len(self.record.rows)
            if self.step % self.plan.record_every == 0 or just_left:
                if not self._is_recorded():
                    self._add(row)
                    show(row)
                    try:
                        self._show(row)
                    except Exception:
                        save(True)
                        raise
                if self.limits.stop is not None and self.limits.stop(row):
                    self.status = "stopped"
            self.seconds = clock.perf_counter() - began
            self.status = self._end(interrupted) if self.status == "running" else self.status
            if self.status != "running":
                break
            try:
                if self.plateau is None:
                    self._advance_flow()
                else:
                    self._advance_plateau(self.plateau)
            except StalledError:
                self.status = "stalled"
                break
            save(False)
        save(True)
        if self.status != "diverged":
            if not self._is_recorded():
                row = self._row()
                self._add(row)
                self._show(row)
            self.record.close(self.true_theta())
        self.seconds = clock.perf_counter() - began

    def _end(self, interrupted: threading.Event) -> str:
        """Return the reason to stop, or "running"."""
        if (self.time if self.handover is None else self.since) >= self._left():
            return "finished"
        if self.first.speed == 0 and (self.plateau is not None or self.plan.time == "arc"):
            return "stationary"
        if self.plateau is not None and math.sqrt(max(0.0, 1 - self.first.cosine**2)) < ASIDE and self.first.cosine < 0:
            return "no escape"
        if self.cost.evaluations >= (self.limits.max_evaluations or math.inf):
            return "evaluations used up"
        if self.seconds >= 60 * (self.limits.max_minutes or math.inf):
            return "time is up"
        return "interrupted" if interrupted.is_set() else "running"

    def _left(self) -> float:
        """Return the end time, measured from the hand-over if there was one."""
        if self.handover is None:
            return self.t_end
        return self.t_after if math.isfinite(self.t_after) else self.t_end - self.handover.time

    def _advance_flow(self) -> None:
        since, end = self.since, self._left()
        left = end - since
        longest = left / self.first.clock if isinstance(self.stepper, Euler) or self.plan.time == "t" else math.inf
        radius = norm(self.theta)
        before = self.theta
        move = self._move(self.flow, self.stepper, longest, since, left)
        if since + move.clock == since:
            raise StalledError
        moved = self.first.speed * move.tau if move.theta is before else norm(move.theta - before)  # Euler: in place
        self.arc += moved / radius if radius > 0 else 0.0
        self.theta, self.h = move.theta, move.next
        self.since = end if move.clock >= left * (1 - 1e-12) else since + move.clock
        self.passed += move.clock
        if self.handover is None:
            self.time = self.since
        self.step += 1
        self.first = self._rate(move.rate)

    def _advance_plateau(self, plateau: Plateau) -> None:
        origin, batch = self.origin, self._batch("plateau")
        assert origin is not None
        room = origin.room(self.theta, plateau.log_radius, batch, self.plan.handover_rtol)
        if room < ENOUGH:
            self._leave(plateau)
            return
        longest = math.log(min(AIM * room, self.plan.max_growth))
        stepper = self.stepper  # the plateau is not stiff, and no fixed step size suits it
        if isinstance(stepper, Implicit):
            stepper = _stepper("rk45", self.plan)
        elif isinstance(stepper, Euler):
            stepper = Explicit("heun", COARSE, 0.0)
        left = self.t_end - self.time
        before, pace = self.theta, self._pace(plateau)
        # errors at kinks decay while ||theta|| grows, except errors of the time and those near the hand-over
        passing = self.first.clock / self.time if self.time > 0 else math.inf  # d log t / du
        ease = min(max(1.0, min(1 / passing, room**2)), EASE)
        move = self._move(plateau, stepper, longest, self.time, left, ease)
        size = norm(move.theta)
        log_radius = plateau.log_radius + math.log(size)
        if origin.exceeds(move.theta, log_radius, batch, self.plan.handover_rtol):  # outputs grew faster than predicted
            self.theta = before
            self.h = 0.5 * move.tau
            if room < NEAR or self.h < SHORTEST:
                self._leave(plateau)
            return
        plateau.log_radius = log_radius
        self.theta = move.theta.div_(size)
        self.time = self.t_end if move.clock >= left * (1 - 1e-12) else self.time + move.clock
        self.passed += move.clock
        self.arc += move.tau
        self.h = move.next
        self.step += 1
        if move.rate is not None:
            move.rate.velocity.div_(size)
            move.rate.speed /= size
        self.first = self._rate(move.rate)
        self.skipped += move.tau * (pace + self._pace(plateau)) / 2

    def _pace(self, plateau: Plateau) -> float:
        """Return the number of Euler's steps per arc length at this point of the plateau; 0 for other methods."""
        if not isinstance(self.stepper, Euler):
            return 0.0
        length = self.stepper.length(linalg.exp(plateau.log_radius))
        return min(self.first.clock / length, 1e300)  # finite, for checkpoints

    def _move(
        self, system: System, stepper: Stepper, longest: float, time: float, left: float, ease: float = 1.0
    ) -> Move:
        """Return a step that does not exceed the remaining time ``left``."""
        result = stepper.advance(system, self.theta, self.first, self.h, longest, time, ease)
        for _ in range(20):
            if result.clock <= left * (1 + 1e-9):
                break
            h = result.tau * left / result.clock
            result = stepper.advance(system, self.theta, self.first, h, h, time, ease)
        return result

    def _leave(self, plateau: Plateau) -> None:
        """Switch to the true flow."""
        log_radius = plateau.log_radius
        self.plateau = None
        self.theta = self._placed(self.theta * math.exp(log_radius))
        self._hand_over(self.theta, log_radius, self._batch("plateau"), at_once=False)
        self.first = self._rate()
        self._restart()

    def _placed(self, theta: Tensor) -> Tensor:
        """Return the parameters; for Euler's method, in the cost's own buffer, where no copy is needed to evaluate."""
        return self.cost.theta.copy_(theta) if isinstance(self.stepper, Euler) else theta.to(self.cost.theta)

    def _hand_over(self, theta: Tensor, log_radius: float, batch: Tensor | None, *, at_once: bool) -> None:
        assert self.origin is not None
        criterion, outputs = self.origin.measured(theta, log_radius, batch)
        row = len(self.record.rows) - self._is_recorded()
        self.record.pin(row, theta)
        self.handover = Handover(
            time=self.time,
            radius=math.exp(log_radius),
            criterion=criterion,
            bound=self.origin.bound(log_radius, batch),
            outputs=outputs,
            row=row,
            evaluations=self.cost.evaluations,
            at_once=at_once,
            skipped_steps=self.skipped if isinstance(self.stepper, Euler) else None,
        )

    def state(self) -> dict[str, Any]:
        """Return everything that the next steps depend on, except theta and the velocity, as plain values."""
        return {name: getattr(self, name) for name in STATE} | {
            "log_radius": None if self.plateau is None else self.plateau.log_radius,
            "handover": None if self.handover is None else asdict(self.handover),
            "stepper": self.stepper.state() if isinstance(self.stepper, Explicit) else [],
            "evaluations": self.cost.evaluations,
            "rate": {name: value for name, value in vars(self.first).items() if name != "velocity"},
        }

    def restore(self, theta: Tensor, velocity: Tensor, state: dict[str, Any]) -> None:
        """Resume from a stored state."""
        self.handover = None if state["handover"] is None else Handover(**state["handover"])
        self.plateau = None if self.origin is None or self.handover is not None else self.origin.plateau
        if self.plateau is not None:
            self.plateau.log_radius = state["log_radius"]
        self.theta = self._placed(theta) if self.plateau is None else theta.to(self.cost.theta)
        self.first = Rate(velocity.to(self.cost.theta), **state["rate"])
        for name in STATE:
            setattr(self, name, state[name])
        self._system().batch = self._batch(self._phase())
        if isinstance(self.stepper, Explicit):
            self.stepper.load(state["stepper"])
        self.record.pinned = None if self.handover is None else self.handover.row
        self.cost.evaluations = state["evaluations"]

    def check_end(self, folder: Path) -> None:
        """Raise if the flow, restored from a folder, is beyond its end."""
        if (self.time if self.handover is None else self.since) <= self._left():
            return
        name, end, at = "t_end", self.t_end, self._row().time
        if math.isfinite(self.t_after):
            name, end, at = "t_after", self.t_after, self.since
        raise ValueError(f"{name}: got {end}, but the flow in {str(folder)!r} is at {at}")

    def _restart(self) -> None:
        """Set the length of the first step."""
        if self.plateau is not None:
            self.h = FIRST
        else:
            self.h = FIRST * (norm(self.theta) or 1.0) / self.first.speed if self.first.speed > 0 else math.inf
        self.h = min(self.h, 1e300)  # a checkpoint requires a finite value

    def _rate(self, known: Rate | None = None) -> Rate:
        rate = known
        if rate is None or self.batches:
            self._system().batch = self._batch(self._phase())
            rate = self._system().rate(self.theta)
        self.recent[0] += rate.cost
        self.recent[1] += 1
        return rate

    def _system(self) -> System:
        return self.flow if self.plateau is None else self.plateau

    def _phase(self) -> str:
        return "flow" if self.plateau is None else "plateau"

    def _batch(self, phase: str) -> Tensor | None:
        return self.batches[phase].at(self.step).to(self.cost.x.device) if phase in self.batches else None

    def _is_recorded(self) -> bool:
        return bool(self.record.steps) and self.record.steps[-1] == self.step

    def _row(self) -> Row:
        radius = norm(self.theta) if self.plateau is None else math.exp(self.plateau.log_radius)
        waiting = self.origin is not None and self.handover is None
        return Row(
            step=self.step,
            evaluations=self.cost.evaluations,
            time=self.time if self.handover is None else self.time + self.since,
            since_handover=-math.inf if waiting else self.since,
            loss=self.recent[0] / self.recent[1] if self.batches and self.recent[1] else self.first.cost,
            gradient_norm=self.first.gradient_norm,
            parameter_norm=radius**2,
            phase=self._phase(),
        )

    def _add(self, row: Row) -> None:
        self.record.record(row, self.passed, self.arc, self.true_theta())
        self.passed = 0.0
        self.recent = [0.0, 0]

    def _show(self, row: Row) -> None:
        if self.watch is None:
            return
        gradient = None
        if not self.batches:  # the velocity is a negative multiple of grad C, or of grad L0 on the plateau
            scale = self.first.gradient_norm / self.first.speed if self.first.speed > 0 else 0.0
            gradient = self.first.velocity * -scale
        watcher, names = self.watch
        about = {"step": row.step, "time": row.time, "lr": None, "ridge": 0.0, "member": 0}
        show(watcher, names, self.cost.shapes, self.true_theta(), gradient, **about)

    def true_theta(self) -> Tensor:
        """Return the parameters scaled to their true norm."""
        return self.theta if self.plateau is None else self.theta * math.exp(self.plateau.log_radius)


def _stepper(method: str, plan: FlowSettings) -> Stepper:
    if method == "euler":
        return Euler(plan.step or math.inf, plan.norm_power, plan.max_relative_step or 0.05)
    kink_rtol = 1e-4 if plan.kink_rtol is None else plan.kink_rtol
    return Explicit(method, plan.rtol, kink_rtol) if method in ADAPTIVE else Implicit(method, plan.rtol)
