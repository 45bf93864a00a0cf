"""Single steps of the integrators: embedded explicit methods, Euler's method and SciPy's implicit methods."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank.training.ensemble import in_range, norm, scaled_step
from bnrank.training.gradient_flow.fields import Plateau, Rate, System

SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
KINK = 2.0  # a kink is detected if the error decreases with the step length at an order below this
QUIET = 3  # steps of the original method after which the kink state is reset
SMALLEST = 1e-15  # smallest relative change of theta in a step; the flow is stalled below it


class StalledError(ArithmeticError):
    """The tolerance requires steps that are too small."""


@dataclass
class Move:
    """A step: its end point, its length in tau and in t, the rate at its end if known, and the next step length."""

    theta: Tensor
    tau: float
    clock: float
    rate: Rate | None
    next: float


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge-Kutta pair; ``errors`` are weight vectors of error estimates, including the rate at the end."""

    a: Any
    b: Any
    errors: tuple[Any, ...]
    order: int  # of the lower-order method: the step is scaled by error^(-1 / (order + 1))


@functools.cache
def _tableau(method: str) -> Tableau:
    """Return the pair of an explicit method; Heun's error is the difference to Euler's step, h/2 (v1 - v0)."""
    from scipy import integrate

    if method == "heun":
        return Tableau(np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0.5, 0.5]), (np.array([-0.5, 0.5, 0.0]),), 1)
    solver: Any = {"rk45": integrate.RK45, "dop853": integrate.DOP853}[method]
    errors = (solver.E,) if method == "rk45" else (solver.E5, solver.E3)
    return Tableau(solver.A, solver.B, errors, solver.error_estimator_order)


class Explicit:
    """An embedded explicit method with errors relative to ||theta||, and hence independent of the scale of theta.

    At a ReLU kink the field is discontinuous, and the error of a step decreases only linearly with its length. The
    steps of the method would become very short, permanently if the flow slides along a kink. Such a slow decrease of
    the error identifies a kink, where Heun's steps replace those of the method. They are accepted if h/2 ||v1 - v0|| is
    at most a tolerance that starts at 10 rtol, for kinks that are merely crossed, and doubles with every step up to
    ``kink_rtol``. The original method is retried at intervals. The errors of steps back and forth across a kink do not
    accumulate: the sliding flow is followed to first order in the step length.

    Parameters
    ----------
    method : str
        "rk45", "dop853" or "heun".
    rtol : float
        Maximum error of a step relative to ||theta||. If the integration variable is not t, also the maximum error of t
        relative to the elapsed time.
    kink_rtol : float
        The tolerance at kinks; 0 disables their treatment.
    """

    def __init__(self, method: str, rtol: float, kink_rtol: float) -> None:
        self.tableau = _tableau(method)
        self.rtol = rtol
        self.kink_rtol = kink_rtol if method != "heun" else 0.0
        self.level = 0  # steps taken at kinks; 0 where the field is smooth
        self.wait = 0  # steps to take at the kink before the original method is retried
        self.returns = 0  # failed attempts to return to the original method
        self.quiet = 0  # steps of the original method since the last kink

    def state(self) -> list[int]:
        """Return what the next steps depend on."""
        return [self.level, self.wait, self.returns, self.quiet]

    def load(self, state: list[int]) -> None:
        """Restore what :meth:`state` returned."""
        self.level, self.wait, self.returns, self.quiet = state

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Return a step of length ``h``, at most ``longest``, from ``theta``, where the field is ``first``.

        The step is shortened until the error is within the tolerance. ``time`` is t at its start. ``ease`` multiplies
        the tolerance on theta at kinks.
        """
        wanted, h = h, min(h, longest)
        smallest = SMALLEST * norm(theta) / first.speed if first.speed > 0 else 0.0
        before: tuple[float, float] | None = None  # length and error of the previous attempt with the same method
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
        """Return whether to switch to Heun's steps after a rejected step of the original method."""
        slow = before is not None and math.isfinite(before[1]) and error * (before[0] / h) ** KINK > before[1]
        if self.level > 0 or slow:
            self.returns = min(self.returns + 1, 4)
            self.level, self.wait, self.quiet = max(self.level, 1), 2**self.returns, 0
            return True
        return False


class Euler:
    """Steps of length ``step`` / ||theta||^norm_power in t, shortened to at most ``max_relative_step`` * ||theta||."""

    def __init__(self, step: float, norm_power: float, max_relative_step: float) -> None:
        self.step, self.norm_power, self.max_relative_step = step, norm_power, max_relative_step

    def length(self, radius: float) -> float:
        """Return the length of a step where ||theta|| = radius, before it is shortened."""
        return scaled_step(self.step, radius, self.norm_power) if self.norm_power else self.step

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Return a step, taken in place."""
        size = norm(theta)
        wanted = self.length(size)
        h = min(wanted, longest)
        if first.speed > 0:
            h = min(h, self.max_relative_step * size / first.speed)
        if self.norm_power:  # without a gradient, as where it underflows, nothing else limits the step
            in_range(h if first.speed > 0 else wanted, self.step, theta, self.norm_power)
        theta.add_(first.velocity, alpha=h)
        return Move(theta, h, h * first.clock, None, h)


class Implicit:
    """SciPy's solvers for stiff problems, in t.

    They restart when the flow is resumed and when ||theta|| has changed by a factor of 4, because their absolute
    tolerance is fixed.
    """

    def __init__(self, method: str, rtol: float) -> None:
        from scipy import integrate

        self.solver = {"lsoda": integrate.LSODA, "bdf": integrate.BDF}[method]
        self.method, self.rtol = method, rtol
        self._running: Any = None
        self._size = 0.0

    def advance(
        self, system: System, theta: Tensor, first: Rate, h: float, longest: float, time: float, ease: float = 1.0
    ) -> Move:
        """Return a step whose length the solver chooses."""
        size = norm(theta)
        if self._running is None or not self._size / 4 < size < self._size * 4:
            self._start(system, theta, first, size, longest)
        solver = self._running
        before = solver.t
        solver.t_bound = before + longest
        try:
            solver.step()
        except ValueError as error:  # of SciPy's linear algebra, where a Jacobian is not finite
            raise ValueError(f"solver: {self.method!r} cannot integrate this flow: {error}; use 'rk45'") from error
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
    """Return the end of a step, its length in t, the rate there if computed, and the error relative to the tolerance.

    The method integrates t minus a multiple of its closed form along escape directions (T37). Along such a direction
    this difference is constant, so t is exact for every h. Elsewhere the accuracy is the same as without the closed
    form.
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
    ahead = max(clock, first.clock / max(1, system.depth - 2))  # time in which theta moves by a distance ||theta||
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
    """Return the error estimate; two estimates, of orders 5 and 3, are combined as in Hairer, Norsett and Wanner."""
    if len(estimates) == 1 or estimates[0] == 0:
        return estimates[0]
    fifth, third = estimates
    return fifth**2 / math.hypot(fifth, 0.1 * third)
