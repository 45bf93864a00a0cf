"""First-order optimizers: Adam and gradient descent."""

import functools
import math

import torch
from torch import Tensor
from torch.optim.adam import adam

from bnrank.training.ensemble import Objective, in_range, norm, scaled_step, squared_norm

SMALL = 1 << 20  # number of parameters of an ensemble below which one thread updates faster than several


class EnsembleDescent:
    """Gradient descent theta <- theta - eta (dC/dtheta + 2 lambda theta), with a step size and a ridge per member.

    All optimizers share this interface. After every evaluation of the objective the training loop calls :meth:`digest`.
    At recorded steps it reads :attr:`point` and :meth:`statistics`. Then it calls :meth:`move`, which writes the next
    parameters to evaluate.

    Parameters
    ----------
    objective : Objective
        Holds the parameters, costs and gradients.
    ridge, lr : Tensor
        lambda and eta, shape (members,), float64.
    steps : int
        Length of the schedule.
    schedule : str
        Step size as a function of the step: "constant", "cosine" (to 0), "linear" (to 0) or "normalized". The last is
        eta ||theta|| / ||gradient||, so every step has length eta ||theta||. It follows the gradient flow in a
        reparametrized time, in which the length of the plateau around the saddle at the origin grows only like
        log(1 / initial scale) (T35).
    norm_power : float
        The step size is divided by ||theta||^norm_power.
    """

    def __init__(
        self, objective: Objective, ridge: Tensor, lr: Tensor, steps: int, schedule: str, norm_power: float = 0.0
    ) -> None:
        self.objective, self.ridge, self.lr, self.steps, self.schedule = objective, ridge, lr, steps, schedule
        self.norm_power = norm_power
        self.stalled = torch.zeros(objective.members, dtype=torch.bool)
        self.time = torch.zeros(objective.members, dtype=torch.float64)  # the sum of the step sizes

    @property
    def point(self) -> Tensor:
        """Current parameters, shape (members, size)."""
        return self.objective.theta

    def digest(self) -> None:
        """Do nothing: the gradient is used in place."""

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the regularized loss and the norm of its gradient at ``point``, each of shape (members,), float64."""
        theta, gradient = self.objective.theta, self.objective.gradient
        loss = torch.empty(len(theta), dtype=torch.float64)
        norms = torch.empty(len(theta), dtype=torch.float64)
        for i, ridge in enumerate(self.ridge.tolist()):
            loss[i] = self.objective.cost[i] + ridge * squared_norm(theta[i])
            norms[i] = squared_norm(torch.add(gradient[i], theta[i], alpha=2 * ridge)).sqrt()
        return loss, norms

    def move(self, step: int) -> None:
        """Take one step for every member, with one task per member."""
        members = range(self.objective.members)
        self.objective.workers.share([functools.partial(self._update, i, step) for i in members])

    def data_gradient(self, member: int) -> Tensor:
        """Return dC/dtheta, without the ridge, at one member's ``point``, shape (size,); valid until :meth:`move`."""
        return self.objective.gradient[member]

    def pace(self, member: int, step: int) -> tuple[float | None, float | None]:
        """Return the size of the next step and the sum of the previous step sizes."""
        gradient = self.objective.gradient[member]
        if self.schedule == "normalized":
            gradient = torch.add(gradient, self.objective.theta[member], alpha=2 * float(self.ridge[member]))
        return self._rate(member, step, gradient), float(self.time[member])

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on, and the sum of the step sizes."""
        return {"theta": self.objective.theta, "time": self.time}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def keep(self, members: list[int], objective: Objective) -> None:
        """Continue with some of the members, whose rows are in a new objective."""
        self.objective, self.ridge, self.lr = objective, self.ridge[members], self.lr[members]
        self.stalled, self.time = self.stalled[members], self.time[members]

    def _rate(self, member: int, step: int, gradient: Tensor) -> float:
        """Return the step size, given the gradient of the regularized loss."""
        rate, done = float(self.lr[member]), step / max(self.steps, 1)
        if self.schedule == "normalized":
            slope = float(squared_norm(gradient).sqrt())
            return rate * float(squared_norm(self.objective.theta[member]).sqrt()) / slope if slope > 0 else 0.0
        shares = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}
        rate *= shares[self.schedule]
        if not self.norm_power:
            return rate
        theta = self.objective.theta[member]
        return in_range(scaled_step(rate, norm(theta), self.norm_power), rate, theta, self.norm_power)

    def _update(self, member: int, step: int) -> None:
        theta, gradient = self.objective.theta[member], self.objective.gradient[member]
        gradient.add_(theta, alpha=2 * float(self.ridge[member]))
        rate = self._rate(member, step, gradient)
        theta.sub_(gradient, alpha=rate)
        self.time[member] += rate


class EnsembleAdam(EnsembleDescent):
    """Adam (Kingma and Ba 2015; beta = 0.9, 0.999, eps = 1e-8) on C + lambda ||theta||^2: coupled L2, not AdamW.

    Uses PyTorch's fused update, a single pass over the parameters.
    """

    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def __init__(self, objective: Objective, ridge: Tensor, lr: Tensor, steps: int, schedule: str) -> None:
        super().__init__(objective, ridge, lr, steps, schedule)
        self.first = torch.zeros_like(objective.theta)
        self.second = torch.zeros_like(objective.theta)

    def pace(self, member: int, step: int) -> tuple[float | None, float | None]:
        """Return the size of the next step, and None because Adam's step sizes do not sum to a time."""
        return self._rate(member, step, self.objective.gradient[member]), None

    def state(self) -> dict[str, Tensor]:
        """Return everything that the next steps depend on."""
        return {"theta": self.objective.theta, "first": self.first, "second": self.second}

    def keep(self, members: list[int], objective: Objective) -> None:
        """Continue with some of the members, whose rows are in a new objective."""
        super().keep(members, objective)
        self.first, self.second = self.first[members], self.second[members]

    def move(self, step: int) -> None:
        """Take one step, with one call per thread and group of members with the same settings."""
        alike: dict[tuple[float, float], list[int]] = {}
        for member in range(self.objective.members):
            rate = self._rate(member, step, self.objective.gradient[member])
            alike.setdefault((rate, float(self.ridge[member])), []).append(member)
        parts = self.objective.workers.threads if self.objective.theta.numel() > SMALL else 1
        tasks = [
            functools.partial(self._update_all, members[part::parts], rate, ridge, step)
            for (rate, ridge), members in alike.items()
            for part in range(min(parts, len(members)))
        ]
        self.objective.workers.share(tasks)

    def _update_all(self, members: list[int], rate: float, ridge: float, step: int) -> None:
        theta, gradient = self.objective.theta, self.objective.gradient
        adam(
            [theta[i] for i in members],
            [gradient[i] for i in members],
            [self.first[i] for i in members],
            [self.second[i] for i in members],
            [],
            [torch.full((), float(step), device=theta.device) for _ in members],
            fused=True,
            amsgrad=False,
            beta1=self.beta1,
            beta2=self.beta2,
            lr=rate,
            weight_decay=2 * ridge,
            eps=self.eps,
            maximize=False,
        )
