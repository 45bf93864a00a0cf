"""One step at a time: explicit embedded methods, Euler, and SciPy's implicit ones."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.training.gradient_flow.fields import Plateau, Rate, System, norm

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
KINK = 2.0  # order of decrease of the error below which there is a kink
QUIET = 3  # steps of the method itself after which a kink is forgotten
SMALLEST = 1e-15  # a step that moves theta by less than this, relatively, leads nowhere


class StalledError(ArithmeticError):
    """The steps that the tolerance requires have become too small."""


@dataclass
class Move:
    """A step: where it leads, its length in tau and on the clock, the rate there if known, and the next length."""

    theta: Tensor
    tau: float
    clock: float
    rate: Rate | None
    next: float


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta pair; ``errors`` are the rows of the error estimate, the rate at the end included."""

    a: Any
    b: Any
    errors: tuple[Any, ...]
    order: int  # of the lower method: the step goes with the error's power -1 / (order + 1)


@functools.cache
def _tableau(method: str) -> Tableau:
    """Return the pair of an explicit method; Heun's error is the difference to Euler's step, h/2 (g1 - g0)."""
    from scipy import integrate

    if method == "heun":
        return Tableau(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0.5, 0.5]), (np.array([-0.5, 0.5, 0.0]),), 1)
    solver: Any = {"rk45": integrate.RK45, "dop853": integrate.DOP853}[method]
    errors = (solver.E,) if method == "rk45" else (solver.E5, solver.E3)
    return Tableau(solver.A, solver.B, errors, solver.error_estimator_order)


class Explicit:
    """An embedded explicit method; the error is measured against ||theta||, so that its scale does not matter.

    Where a ReLU has its kink the field jumps, and shortening a step makes its error smaller in proportion only: the
    method would crawl, for good where the flow slides along a kink. This slow decrease identifies a kink. Heun's
    steps are taken there, accepted if h/2 ||v1 - v0|| is at most a tolerance that begins at 10 rtol, for a kink that is
    just crossed, and doubles with every step up to ``kink_rtol``; now and then the method itself is tried again.
    Stepping to and fro across a kink does not add up: the sliding flow is followed to first order in the length of the
    steps.

    Parameters
    ----------
    method : str
        "rk45", "dop853" or "heun".
    rtol : float
        Error of a step: at most so much of ||theta||, and of the time passed where the clock is not tau itself.
    kink_rtol : float
        The tolerance at kinks; 0 for none.
    """

    def __init__(self, method: str, rtol: float, kink_rtol: float) -> None:
        self.tableau, self.rtol, self.kink_rtol = _tableau(method), rtol, kink_rtol if method != "heun" else 0.0
        self.level = 0  # steps taken at kinks; 0 where all is smooth
        self.wait = 0  # steps to take at the kink before the method itself is tried again
        self.returns = 0  # failed attempts to return to the method itself
        self.quiet = 0  # steps of the method since

    def state(self) -> list[int]:
        """Return what the next steps depend on."""
        return [self.level, self.wait, self.returns, self.quiet]

    def load(self, state: list[int]) -> None:
        """Restore what :meth:`state` returned."""
        self.level, self.wait, self.returns, self.quiet = state

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Take a step of about length ``h``, at most ``longest``, from ``theta``, where the field is ``first``.

        It is shortened until the error is within the tolerance. ``time`` has passed on the clock before it. The error
        in theta that is allowed at kinks is ``ease`` times as large.
        """
        wanted, h = h, min(h, longest)
        smallest = SMALLEST * norm(theta) / first.speed if first.speed > 0 else 0.0
        before: tuple[float, float] | None = None  # length and error of the attempt before, with the same method
        while True:
            at_kink = self.wait > 0
            table = _tableau("heun") if at_kink else self.tableau
            rtol = min(self.kink_rtol, 10 * self.rtol * 2.0 ** min(self.level, 60)) if at_kink else self.rtol
            eased = ease if table.order == 1 else 1.0
            end, clock, rate, error = _attempt(table, rtol, eased, system, theta, first, h, time)
            factor = SAFETY * error ** (-1 / (table.order + 1)) if error > 0 else GROW
            if error <= 1:
                self._accepted(at_kink)
                factor = min(factor, GROW if before is None else 1.0)
                return Move(end, h, clock, rate, max(h * factor, wanted if h < wanted and factor >= 1 else 0.0))
            if self.kink_rtol and not at_kink and self._is_kink(before, h, error):
                before = None
                continue
            before = (h, error)
            h *= max(factor, SHRINK) if math.isfinite(error) else SHRINK
            if h <= smallest:
                raise StalledError

    def _accepted(self, at_kink: bool) -> None:
        if at_kink:
            self.level += 1
            self.wait -= 1
        elif self.level:
            self.quiet += 1
            if self.quiet == QUIET:
                self.level = self.returns = 0

    def _is_kink(self, before: tuple[float, float] | None, h: float, error: float) -> bool:
        """Return whether to switch to Heun's steps, after the method's own was rejected."""
        slow = before is not None and math.isfinite(before[1]) and error * (before[0] / h) ** KINK > before[1]
        if self.level > 0 or slow:
            self.returns = min(self.returns + 1, 4)
            self.level, self.wait, self.quiet = max(self.level, 1), 2**self.returns, 0
            return True
        return False


class Euler:
    """Steps of a fixed length in t, or shorter: none is longer than ``max_relative_step`` times ||theta||."""

    def __init__(self, step: float, max_relative_step: float) -> None:
        self.step, self.max_relative_step = step, max_relative_step

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Take a step in place."""
        h = min(self.step, longest)
        if first.speed > 0:
            h = min(h, self.max_relative_step * norm(theta) / first.speed)
        theta.add_(first.velocity, alpha=h)
        return Move(theta, h, h * first.clock, None, h)


class Implicit:
    """SciPy's solvers for stiff problems, in t.

    Restarted when ||theta|| has changed, as their tolerance is fixed, and when the flow is resumed.
    """

    def __init__(self, method: str, rtol: float) -> None:
        from scipy import integrate

        self.solver, self.rtol = {"lsoda": integrate.LSODA, "bdf": integrate.BDF}[method], rtol
        self._running: Any = None
        self._size = 0.0

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Take a step of the solver's choice."""
        size = norm(theta)
        if self._running is None or not self._size / 4 < size < self._size * 4:
            self._start(system, theta, first, size, longest)
        solver = self._running
        before = solver.t
        solver.t_bound = before + longest
        solver.step()
        if solver.status == "failed":
            raise StalledError
        solver.status = "running"
        end = torch.from_numpy(np.array(solver.y)).to(theta)
        return Move(end, solver.t - before, solver.t - before, None, h)

    def _start(self, system: System, theta: Tensor, first: Rate, size: float, longest: float) -> None:
        def velocity(_: float, y: Any) -> Any:
            return system.rate(torch.from_numpy(np.array(y)).to(theta)).velocity.numpy()

        self._size = size
        atol = self.rtol * size / math.sqrt(theta.numel()) or self.rtol
        h = min(0.01 * (size or 1.0) / first.speed if first.speed > 0 else longest, longest)
        self._running = self.solver(
            velocity, 0.0, theta.double().numpy(), longest, rtol=self.rtol, atol=atol, first_step=h
        )


Stepper = Explicit | Euler | Implicit


def _attempt(
    table: Tableau, rtol: float, ease: float, system: System, theta: Tensor, first: Rate, h: float, time: float
) -> tuple[Tensor, float, Rate | None, float]:
    """Return the end of a step, its length on the clock, the rate there if computed, and the error over the tolerance.

    The clock is t less its closed form along an escape direction (T37), weighted so that it is constant there: t is
    exact along such a direction whatever h is, and just as exact elsewhere as without.
    """
    rates = [first]
    for row in table.a[1:]:
        rates.append(system.rate(_combined(theta, rates, row, h)))
    end, rate = _combined(theta, rates, table.b, h), None
    if any(row[-1] for row in table.errors):
        rate = system.rate(end)
        rates.append(rate)
    clocks = [r.clock * (1 - first.cosine * r.slope * r.cosine / first.slope) for r in rates]
    size, before = norm(end), norm(theta)
    clock = h * float(np.dot(table.b, clocks[: len(table.b)]))
    if isinstance(system, Plateau) and first.cosine:
        clock += first.cosine * first.clock * system.closed_form(size / before)
    in_theta, in_clock = [], []
    for row in table.errors:
        error = _combined(None, rates, row, h)
        if not system.radial:
            error -= end * (float(torch.dot(error, end)) / size**2)
        in_theta.append(norm(error))
        in_clock.append(abs(h * float(np.dot(row[: len(clocks)], clocks))))
    scale = max(size, before)
    errors = [_error(in_theta) / (scale * ease) if scale > 0 else 0.0]
    ahead = max(
        clock, first.clock / max(1, system.depth - 2)
    )  # time to come before theta has gone as far as it is long
    errors.append(_error(in_clock) / (time + ahead) if clock > 0 else math.inf)
    worst = max(errors) if all(math.isfinite(e) for e in errors) and math.isfinite(size) else math.inf
    return end, clock, rate, worst / rtol


def _combined(theta: Tensor | None, rates: list[Rate], weights: Any, h: float) -> Tensor:
    """Return theta + h sum_i weights[i] v_i."""
    result = torch.zeros_like(rates[0].velocity) if theta is None else theta.clone()
    for rate, weight in zip(rates, weights, strict=False):
        if weight:
            result.add_(rate.velocity, alpha=h * float(weight))
    return result


def _error(estimates: list[float]) -> float:
    """Return the error estimate; of two (orders 5 and 3) as Hairer, Norsett and Wanner put them together."""
    if len(estimates) == 1 or estimates[0] == 0:
        return estimates[0]
    fifth, third = estimates
    return fifth**2 / math.hypot(fifth, 0.1 * third)
