"""L-BFGS for ensembles, with one history and line search per member."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from bnrank.training.ensemble import Objective, squared_norm
from bnrank.training.first_order import EnsembleAdam, EnsembleDescent
from bnrank.training.kronecker import KroneckerCurvature

SUFFICIENT = 1e-4  # constant of the first Wolfe condition (sufficient decrease)
CURVATURE = 0.9  # constant of the second Wolfe condition (curvature)
TRIALS = 12  # maximum number of evaluations per line search
WARM_STEPS, WARM_LR = 200, 3e-3  # steps and step size of Adam before L-BFGS
EVERY = 20  # iterations between estimates of a metric
PATIENCE = 200  # evaluations without progress after which a member counts as stalled
LESS, MORE = 0.9, 10.0  # progress is also a gradient norm below the first or above the second times the one before
CAUTION = 6  # powers of ten by which the damping of a metric may rise before a member counts as stalled


class LBFGS:
    """L-BFGS on C + lambda ||theta||^2 (Nocedal and Wright, Numerical Optimization, algorithms 7.4, 3.5 and 3.6).

    A step is one evaluation of the ensemble, which each member uses for its own line search; members do not wait for
    one another. The line search enforces the strong Wolfe conditions. Near convergence it also accepts a loss that is
    unchanged to within rounding if the slope has decreased, and at the twelfth trial it accepts any decrease. A member
    is `stalled` if it finds no descent, even along its negative gradient: it is at a kink of the loss, where the
    negative gradient need not be a descent direction, or the remaining decrease is below rounding. It is also stalled
    after 200 evaluations in which neither the loss has decreased by more than rounding nor the norm of the gradient by
    a tenth; a norm that grows tenfold, as near a saddle, is progress.

    Parameters
    ----------
    objective : Objective
        Holds the parameters, costs and gradients.
    ridge : Tensor
        lambda per member, float64.
    memory : int
        Number of pairs (s, y) kept.
    metrics : list of KroneckerCurvature, optional
        One per member, used as the initial inverse Hessian in place of a multiple of the identity.
    """

    def __init__(
        self, objective: Objective, ridge: Tensor, memory: int = 10, metrics: list[KroneckerCurvature] | None = None
    ) -> None:
        self.objective = objective
        self.searches = [
            _Search(objective.size, objective.theta, float(r), memory, metrics[i] if metrics else None)
            for i, r in enumerate(ridge.tolist())
        ]

    @property
    def stalled(self) -> Tensor:
        """Mask of the members that cannot descend further, shape (members,), bool."""
        return torch.tensor([search.stalled for search in self.searches])

    @property
    def point(self) -> Tensor:
        """Most recently accepted parameters, shape (members, size)."""
        return torch.stack([search.x for search in self.searches])

    def digest(self) -> None:
        """Process the objective's costs and gradients, with one task per member."""
        members = zip(self.objective.theta, self.objective.cost.tolist(), self.objective.gradient, strict=True)
        searches = [(search, at) for search, at in zip(self.searches, members, strict=True) if not search.stalled]
        self.objective.workers.share([functools.partial(search.advance, *at) for search, at in searches])

    def move(self, step: int) -> None:
        """Write every member's next trial point."""
        for i, search in enumerate(self.searches):
            torch.add(search.x, search.direction, alpha=search.t, out=self.objective.theta[i])

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the regularized loss and the norm of its gradient at ``point``, each of shape (members,), float64."""
        loss = torch.tensor([search.f for search in self.searches], dtype=torch.float64)
        norm = torch.stack([squared_norm(search.g).sqrt() for search in self.searches]).cpu()
        return loss, norm

    def data_gradient(self, member: int) -> Tensor:
        """Return dC/dtheta, without the ridge, at one member's ``point``, shape (size,)."""
        search = self.searches[member]
        return torch.sub(search.g, search.x, alpha=2 * search.ridge)

    def pace(self, member: int, step: int) -> tuple[float | None, float | None]:
        """Return (None, None): the line search sets the step size."""
        return None, None

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on."""
        return {"theta": self.objective.theta} | {
            f"{name}.{i}": value for i, search in enumerate(self.searches) for name, value in search.state().items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self.objective.theta.copy_(state["theta"])
        for i, search in enumerate(self.searches):
            search.load({name: state[f"{name}.{i}"] for name in search.state()})

    def keep(self, members: list[int], objective: Objective) -> None:
        """Continue with some of the members, whose rows are in a new objective."""
        self.objective = objective
        self.searches = [self.searches[i] for i in members]


class WarmStarted:
    """200 steps of Adam with step size 3e-3, then L-BFGS; other attributes are those of the current optimizer.

    Without a warm start, a curvature-aware method converges to a poor minimum. Far from a fit the cost is flat along
    most directions, and the ridge shrinks them to zero, including those that the task needs (on F1, of rank 4, it
    converged to ranks 1 and 2). A few hundred steps of Adam are enough to learn the relevant directions.
    """

    def __init__(self, objective: Objective, ridge: Tensor, then: LBFGS) -> None:
        rates = torch.full((objective.members,), WARM_LR, dtype=torch.float64)
        self.first = EnsembleAdam(objective, ridge, rates, WARM_STEPS, "constant")
        self.then = then
        self.moves = torch.zeros(1, dtype=torch.int64)

    @property
    def current(self) -> EnsembleAdam | LBFGS:
        """The optimizer of the next step."""
        return self.first if int(self.moves) < WARM_STEPS else self.then

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the current optimizer."""
        return getattr(self.current, name)

    def move(self, step: int) -> None:
        """Write the next parameters to evaluate into the objective."""
        self.current.move(step)
        self.moves += 1

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on."""
        return self.current.state() | {"moves": self.moves}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self.moves.copy_(state["moves"])
        self.current.load(state)

    def keep(self, members: list[int], objective: Objective) -> None:
        """Continue with some of the members, whose rows are in a new objective."""
        self.first.keep(members, objective)
        self.then.keep(members, objective)


Optimizer = EnsembleDescent | LBFGS | WarmStarted


class _Search:
    """State of one member: its current point x, its history, and its current line search from x."""

    SCALARS = ("f", "slope", "t", "low", "f_low", "slope_low", "high", "f_high", "slope_high", "f_mark", "norm_mark")
    COUNTS = ("trials", "iterations", "pairs", "refreshed", "refreshes", "caution", "anchor_caution", "idle")
    FLAGS = ("started", "stalled")
    TENSORS = ("x", "g", "direction", "s", "y", "rho", "anchor")

    def __init__(self, size: int, like: Tensor, ridge: float, memory: int, metric: KroneckerCurvature | None) -> None:
        self.ridge, self.memory, self.metric = ridge, memory, metric
        self.x, self.g, self.direction = (like.new_zeros(size) for _ in range(3))
        self.s, self.y = like.new_zeros(memory, size), like.new_zeros(memory, size)
        self.rho = torch.zeros(memory, dtype=torch.float64)
        self.anchor = like.new_zeros(size if metric is not None else 0)  # the point where the metric was last estimated
        self.f = self.slope = self.t = math.nan
        self.low = self.f_low = self.slope_low = self.high = self.f_high = self.slope_high = math.nan
        self.f_mark = self.norm_mark = math.nan  # the loss and the norm of its gradient at the last progress
        self.trials = self.iterations = self.pairs = self.refreshes = self.caution = self.anchor_caution = 0
        self.idle = 0  # evaluations since the last progress
        self.refreshed = -1
        self.started = self.stalled = False
        self.rounding = torch.finfo(like.dtype).eps

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on."""
        return {name: getattr(self, name) for name in self.TENSORS} | {
            "scalars": torch.tensor([getattr(self, name) for name in self.SCALARS], dtype=torch.float64),
            "counts": torch.tensor([int(getattr(self, name)) for name in self.COUNTS + self.FLAGS]),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned, and re-estimate the metric at the same point."""
        for name in self.TENSORS:
            getattr(self, name).copy_(state[name])
        for name, value in zip(self.SCALARS, state["scalars"].tolist(), strict=True):
            setattr(self, name, value)
        for name, value in zip(self.COUNTS + self.FLAGS, state["counts"].tolist(), strict=True):
            setattr(self, name, bool(value) if name in self.FLAGS else value)
        if self.metric is not None and self.refreshes:
            self.metric.refresh(self.anchor, self.refreshes, self.anchor_caution)

    def advance(self, theta: Tensor, cost: float, gradient: Tensor) -> None:
        """Accept theta or choose the next trial point; give up where there is no more progress."""
        self._try(theta, cost, gradient)
        self.idle += 1
        if self.idle > PATIENCE:
            self._stall()

    def _try(self, theta: Tensor, cost: float, gradient: Tensor) -> None:
        """Accept theta or choose the next trial point."""
        f = cost + self.ridge * float(squared_norm(theta))
        # Allocate a new tensor: the result of a BLAS dot product depends on the memory alignment of its arguments.
        gradient = torch.add(gradient, theta, alpha=2 * self.ridge)
        if not self.started:
            self.started = True
            self._accept(theta, f, gradient)
            return
        self.trials += 1
        slope = _dot(gradient, self.direction)
        noise = 4 * self.rounding * abs(self.f)
        decreased = f <= self.f + SUFFICIENT * self.t * self.slope
        flat = f <= self.f + noise and slope <= (2 * SUFFICIENT - 1) * self.slope
        if (decreased or flat) and abs(slope) <= -CURVATURE * self.slope:
            self._remember(theta, gradient)
            self._accept(theta, f, gradient)
        elif self.trials < TRIALS:
            self._narrow(f, slope, decreased)
        elif f < self.f:
            self._accept(theta, f, gradient)
        else:
            self._give_up()

    def _narrow(self, f: float, slope: float, decreased: bool) -> None:
        """Update the bracket of the minimum along the direction and choose the next t."""
        if not math.isfinite(f) or not math.isfinite(slope) or not decreased or slope >= 0:
            self.high, self.f_high, self.slope_high = self.t, f, slope
        else:
            self.low, self.f_low, self.slope_low = self.t, f, slope
        if math.isnan(self.high):
            self.t *= 2.5
            return
        width = self.high - self.low
        t = _cubic(self.low, self.f_low, self.slope_low, self.high, self.f_high, self.slope_high)
        self.t = min(max(t, self.low + 0.1 * width), self.high - 0.1 * width)

    def _accept(self, theta: Tensor, f: float, gradient: Tensor) -> None:
        self.x.copy_(theta)
        self.g.copy_(gradient)
        self.f = f
        self.iterations += 1
        size = float(squared_norm(gradient).sqrt())
        less = f < self.f_mark - 4 * self.rounding * abs(self.f_mark)
        if less or not LESS * self.norm_mark <= size <= MORE * self.norm_mark:
            self.f_mark, self.norm_mark, self.idle = f, size, 0
        self._start()

    def _stall(self) -> None:
        self.stalled = True
        self.direction.zero_()

    def _give_up(self) -> None:
        """Restart from x, first without history, then with increasing damping, until the search stalls."""
        if self.pairs == 0:
            self.caution += 1
            if self.metric is None or self.caution > CAUTION:
                self._stall()
                return
        self.pairs = 0
        self.refreshed = -1
        self._start()

    def _remember(self, theta: Tensor, gradient: Tensor) -> None:
        s, y = theta - self.x, gradient - self.g
        curvature, square = _dot(s, y), _dot(y, y)
        if curvature > 1e-10 * square > 0:  # square is 0 if gradients underflow
            slot = self.pairs % self.memory
            self.s[slot], self.y[slot], self.rho[slot] = s, y, 1 / curvature
            self.pairs += 1

    def _start(self) -> None:
        """Choose a direction from x and begin a line search along it."""
        if self.metric is not None and (self.refreshed < 0 or self.iterations - self.refreshed >= EVERY):
            if self.refreshed >= 0:
                self.caution = max(0, self.caution - 1)
            self.refreshes += 1
            self.refreshed = self.iterations
            self.anchor.copy_(self.x)
            self.anchor_caution = self.caution
            self.metric.refresh(self.x, self.refreshes, self.caution)
        self._direct()
        if not self.slope < 0:
            self.pairs = 0
            self._direct()
        self.t = 1.0
        if not self.pairs:
            self.t = min(1.0, 1 / max(float(self.g.abs().sum()), 1e-30)) if self.metric is None else 0.1
        self.low, self.f_low, self.slope_low = 0.0, self.f, self.slope
        self.high = self.f_high = self.slope_high = math.nan
        self.trials = 0
        if not self.slope < 0:
            self._stall()

    def _direct(self) -> None:
        """Compute the direction -H^{-1} g by the two-loop recursion and the slope along it."""
        q = self.direction
        torch.neg(self.g, out=q)
        known = [k % self.memory for k in range(max(0, self.pairs - self.memory), self.pairs)]
        s, ys, rho = self.s.unbind(), self.y.unbind(), self.rho.tolist()
        alphas = {}
        for k in reversed(known):
            alphas[k] = rho[k] * _dot(s[k], q)
            q.sub_(ys[k], alpha=alphas[k])
        if not known:
            q.copy_(q if self.metric is None else self.metric.solve(q))
        else:
            y = scaled = ys[known[-1]]
            if self.metric is not None:
                solved, scaled = self.metric.solve(torch.stack([q, y]))
                q.copy_(solved)
            if size := rho[known[-1]] * _dot(y, scaled):  # 0 if y underflows
                q.mul_(1 / size)
        for k in known:
            q.add_(s[k], alpha=alphas[k] - rho[k] * _dot(ys[k], q))
        self.slope = _dot(q, self.g)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a, b))


def _cubic(a: float, fa: float, da: float, b: float, fb: float, db: float) -> float:
    """Return the minimizer of the cubic interpolant (Nocedal and Wright 3.59), or the midpoint if there is none."""
    if math.isfinite(fb) and math.isfinite(db):
        d1 = da + db - 3 * (fa - fb) / (a - b)
        root = d1 * d1 - da * db
        if root >= 0:
            d2 = math.copysign(math.sqrt(root), b - a)
            if db - da + 2 * d2 != 0:
                return b - (b - a) * (db + d2 - d1) / (db - da + 2 * d2)
    return 0.5 * (a + b)
