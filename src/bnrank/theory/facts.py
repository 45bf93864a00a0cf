"""What statements are about: a network and data, with everything they need measured once and in float64."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures import jacobian, ntk
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, check_unshared, example, unwrap
from bnrank.networks.mlp import MLP
from bnrank.theory.localized import Deeper, Localized, localized, one_deeper
from bnrank.theory.verdict import NotApplicable
from bnrank.training.losses import gradient_at_zero

if TYPE_CHECKING:
    from bnrank.theory.invariants.finding import Findings
    from bnrank.theory.invariants.tail import Tail

__all__ = ["Facts"]

SMALLEST = 1e-290
BESIDE = 1e-9  # of its terms: a preactivation that is smaller may have either sign
FEW = 100  # samples for what holds on any data
CHUNK = 2**12  # samples at a time for the gradient of the loss


class Facts:
    """A network, data and a ridge, and what is measured of them, each when first asked for and then kept.

    Parameters
    ----------
    module : torch.nn.Module
        Any module with finite parameters. What needs a chain of linear layers asks for :meth:`chain`.
    x : Tensor or ndarray
        Samples, (N, ...).
    y : Tensor or ndarray, optional
        Targets, (N, d_out), floating point, for the mean squared error of theory.md section 0; or class numbers, (N,),
        integers, for the cross-entropy.
    ridge : float, optional
        lambda of the loss C + lambda ||theta||^2 that the network is said to be a minimum of.
    rtol : float
        Singular values above ``rtol`` times the largest count for a rank.
    seed : int
        Of whatever is drawn at random (searches, pairs of samples).
    max_samples : int, optional
        Of more samples than this, evenly spaced rows stand for all, except in the loss and its gradient. A statement
        about every sample may be checked on any of them.

    Attributes
    ----------
    module, ridge, rtol, seed
        As given.
    x : Tensor
        The samples looked at, in float64 (integers stay integers).
    y : Tensor or None
        Their targets, (n, d_out), in float64; None for class numbers and where none are given.
    samples : int
        N, how many were given.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Any,
        y: Any = None,
        ridge: float | None = None,
        *,
        rtol: float = 1e-6,
        seed: int = 0,
        max_samples: int | None = None,
    ) -> None:
        self._taken: dict[str, Any] = {}
        self.module = unwrap(net)
        check_finite(self.module)
        check_unshared(self.module)
        self.ridge = None if ridge is None else validation.number(ridge, "ridge", 0.0)
        self.rtol = validation.number(rtol, "rtol", 0.0)
        self.seed = validation.integer(seed, "seed", 0)
        self._all_x = example(self.module, x).detach()
        self.samples = len(self._all_x)
        limit = self.samples if max_samples is None else validation.integer(max_samples, "max_samples")
        rows = torch.linspace(0, self.samples - 1, min(limit, self.samples)).round().long()
        self.x: Tensor = self._all_x[rows]
        if self.x.is_floating_point():
            self.x = self.x.to(torch.float64)
        self.function = Functional(self.module)
        self._all_y = None if y is None else self._targets(y)
        self.y: Tensor | None = None
        self._y = None if self._all_y is None else self._all_y[rows]
        if self._y is not None and self._y.is_floating_point():
            self.y = self._y

    def _targets(self, y: Any) -> Tensor:
        """Return targets (N, d_out) in float64, or class numbers (N,), after checking that they fit."""
        if isinstance(y, np.ndarray):
            y = torch.from_numpy(y)
        outputs = self.outputs.shape[1]
        if isinstance(y, Tensor) and y.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            if y.ndim != 1 or y.numel() == 0 or int(y.min()) < 0 or int(y.max()) >= outputs:
                raise ValueError(
                    f"y: got {validation.describe(y)}, expected class numbers (N,) from 0 to {outputs - 1}"
                )
            targets = y.detach().long()
        else:
            targets = validation.samples(y, "y", ndim=None).detach().to(torch.float64).flatten(1)
            if targets.shape[1] != outputs:
                raise ValueError(f"y: got {targets.shape[1]} columns, expected {outputs}, the network's outputs")
        if len(targets) != self.samples:
            raise ValueError(f"y: got {len(targets)} samples, expected as many as x has, {self.samples}")
        return targets

    def altered(self, **values: Any) -> Facts:
        """Return a copy that takes the given values for measured, e.g. ``altered(parameter_norm=0.0)``: what if."""
        measured = {name for name in dir(type(self)) if isinstance(getattr(type(self), name), cached_property)}
        unknown = [name for name in values if name not in measured]
        if unknown:
            raise ValueError(f"got {', '.join(unknown)}, expected some of {', '.join(sorted(measured))}")
        other = copy.copy(self)
        other._taken = {**self._taken, **values}
        for name in measured:
            vars(other).pop(name, None)  # measured again, from what is taken
        vars(other).update(other._taken)
        return other

    # The function ------------------------------------------------------------------------------------------------

    @cached_property
    def outputs(self) -> Tensor:
        """f(x_i), (N, d_out)."""
        with torch.no_grad():
            return self.function(self.x).flatten(1)

    @cached_property
    def jacobian_values(self) -> Tensor:
        """Singular values of Jf(x_i), (N, min(d_in, d_out)), descending; NotApplicable where f has no Jacobian."""
        try:
            return jacobian.singular_values(self.module, self.x, kink_rtol=None)
        except validation.RangeError:
            raise
        except (TypeError, ValueError) as error:
            raise NotApplicable("f can be differentiated in x, sample by sample", str(error)) from error

    @cached_property
    def beside_kinks(self) -> Tensor:
        """Which samples lie within 1e-9 (relative) of a kink, (n,), bool: the Jacobian there is that of one side."""
        return jacobian.near_kinks(self.module, self.x, BESIDE)

    @cached_property
    def ranks(self) -> Tensor:
        """Rank of Jf(x_i), (N,)."""
        return (self.jacobian_values > self.rtol * self.jacobian_values[:, :1]).sum(1)

    @cached_property
    def rank(self) -> int:
        """The largest rank of the Jacobian over the samples, k = max_i rank Jf(x_i), a lower bound on Rank_J."""
        return int(self.ranks.max())

    @cached_property
    def log_pseudo_determinants(self) -> Tensor:
        """The numbers log |Jf(x_i)|_+ of the rank found at x_i, (N,)."""
        return jacobian.log_pseudo_determinant_of(self.jacobian_values, None, self.rtol)

    # The parameters ----------------------------------------------------------------------------------------------

    @cached_property
    def parameter_norm(self) -> float:
        """||theta||^2, over all parameters."""
        total = sum(float((p * p).sum()) for p in self.function.parameters.values())
        if total < SMALLEST and any(bool((p != 0).any()) for p in self.function.parameters.values()):
            raise validation.RangeError(f"net: its squared norm is below {SMALLEST:g}, where float64 loses digits")
        return total

    @cached_property
    def ntk_trace(self) -> Tensor:
        """Tr Theta(x_i, x_i) over all parameters, (N,)."""
        return ntk.trace(self.module, self.x)

    # The chain ---------------------------------------------------------------------------------------------------

    @cached_property
    def _chain(self) -> MLP | str:
        try:
            return as_mlp(self.module)
        except TypeError as error:
            return str(error).removeprefix("net: ")

    @property
    def chain(self) -> MLP:
        """The module as an MLP in float64; raises NotApplicable where it is no chain of linear layers."""
        if isinstance(self._chain, str):
            raise NotApplicable("the network is a chain of linear layers with one activation", self._chain)
        return self._chain

    @cached_property
    def depth(self) -> int:
        """L."""
        return self.chain.depth

    @cached_property
    def weights(self) -> list[Tensor]:
        """W_1, ..., W_L."""
        return [w.detach() for w in self.chain.weights]

    @cached_property
    def biases(self) -> list[Tensor]:
        """b_1, ..., b_L, or nothing."""
        return [b.detach() for b in self.chain.biases]

    @cached_property
    def slope(self) -> float:
        """The slope s."""
        return self.chain.slope

    @cached_property
    def _forward(self) -> tuple[list[Tensor], list[Tensor]]:
        return jacobian.mlp_forward(self.chain, self.x.flatten(1), torch.float64)

    @cached_property
    def inputs(self) -> list[Tensor]:
        """a_0, ..., a_{L-1} at the samples, each (N, n_l)."""
        return self._forward[0]

    @cached_property
    def slopes(self) -> list[Tensor]:
        """The diagonals of D_1, ..., D_{L-1} at the samples, each (N, n_l); s at a kink."""
        return self._forward[1]

    @cached_property
    def beside_parameter_kinks(self) -> Tensor:
        """Which samples have a preactivation within 1e-9 (relative) of 0, (n,), bool: there f has a kink in theta.

        It need have none in x: a preactivation may be 0 all over a region, by cancellation.
        """
        found = torch.zeros(len(self.x), dtype=torch.bool, device=self.inputs[0].device)
        if self.slope == 1:
            return found
        for i, (a, weight) in enumerate(zip(self.inputs[:-1], self.weights[:-1], strict=True)):
            bias = self.biases[i] if self.biases else weight.new_zeros(len(weight))
            z, terms = a @ weight.T + bias, a.abs() @ weight.abs().T + bias.abs()
            found |= ((z.abs() <= BESIDE * terms) & (terms > 0)).any(1)
        return found

    # The loss ----------------------------------------------------------------------------------------------------

    @property
    def targets(self) -> Tensor:
        """Y at the samples looked at, (n, d_out); raises NotApplicable without."""
        if self._all_y is None:
            raise NotApplicable("targets y are given")
        if self.y is None:
            raise NotApplicable("the loss is the mean squared error", "y holds class numbers")
        return self.y

    @cached_property
    def output_gradient(self) -> Tensor:
        """G = grad C at zero output, of every sample, (N, d_out) (T34); raises NotApplicable without targets."""
        if self._all_y is None:
            raise NotApplicable("targets y are given")
        loss = "mse" if self._all_y.is_floating_point() else "cross_entropy"
        return gradient_at_zero(loss, self._all_y, self.outputs.shape[1])

    @cached_property
    def localized(self) -> Localized:
        """The localized loss of a bias-free ReLU chain over all samples: its speed, how near rank one each layer is."""
        if self.biases:
            raise NotApplicable("no biases", "the loss near the origin is homogeneous only without them")
        if self.slope != 0:
            raise NotApplicable("a ReLU network", f"slope {self.slope:g}")
        if not self._all_x.is_floating_point():
            raise NotApplicable("the inputs are vectors", f"dtype {self._all_x.dtype}")
        return localized(self.weights, self._all_x.flatten(1), self.output_gradient)

    @cached_property
    def deeper(self) -> Deeper:
        """What T39 says of the network with one layer more that it makes of this one, over all samples."""
        self.localized  # noqa: B018  (raises where the construction does not apply)
        return one_deeper(self.chain, self._all_x.flatten(1), self.output_gradient)

    @property
    def all_x(self) -> Tensor:
        """Every sample given, as it came, (N, ...)."""
        return self._all_x

    @property
    def penalty(self) -> float:
        """The ridge lambda; raises NotApplicable without one."""
        if not self.ridge:
            raise NotApplicable("a ridge > 0 is given")
        return self.ridge

    @cached_property
    def data_loss(self) -> float:
        """The cost C over all samples: mean squared error of theory.md section 0, or cross-entropy."""
        return self._loss_and_gradient[0]

    @cached_property
    def gradient_norm(self) -> float:
        """||grad C + 2 lambda theta||, over all samples and parameters."""
        _, gradient, parameters = self._loss_and_gradient
        return float((gradient + 2 * self.penalty * parameters).norm())

    @cached_property
    def stationarity(self) -> float:
        """||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||), in [0, 1]; 0 at a stationary point."""
        _, gradient, parameters = self._loss_and_gradient
        size = float(gradient.norm() + 2 * self.penalty * parameters.norm())
        return self.gradient_norm / size if size else 0.0

    @cached_property
    def _loss_and_gradient(self) -> tuple[float, Tensor, Tensor]:
        """C, its gradient and theta, both (P,)."""
        if self._all_y is None:
            raise NotApplicable("targets y are given")
        parameters = {n: p.clone().requires_grad_(p.is_floating_point()) for n, p in self.function.parameters.items()}
        held = [p for p in parameters.values() if p.requires_grad]
        if not held:
            raise NotApplicable("the network has parameters")
        theta = torch.cat([p.detach().flatten() for p in held])
        cost, gradient = 0.0, torch.zeros_like(theta)
        for x, y in zip(self._all_x.split(CHUNK), self._all_y.split(CHUNK), strict=True):
            with torch.enable_grad():
                out = self.function.with_parameters(parameters, x).flatten(1)
                y = y.to(out.device)
                if y.is_floating_point():
                    loss = ((out - y) ** 2).sum() / self.samples
                else:
                    loss = torch.nn.functional.cross_entropy(out, y, reduction="sum") / self.samples
                parts = torch.autograd.grad(loss, held, allow_unused=True, materialize_grads=True)
            cost += float(loss.detach())
            gradient += torch.cat([g.flatten() for g in parts])
        return cost, gradient, theta

    # What training keeps -----------------------------------------------------------------------------------------

    @cached_property
    def _kept(self) -> tuple[Findings, Tail] | str:
        from bnrank.theory import kept

        return kept.findings_and_tail(self.module, self._all_x[:1])

    def _of_graph(self) -> tuple[Findings, Tail]:
        if isinstance(self._kept, str):
            raise NotApplicable("the computation graph of the network is known", self._kept)
        return self._kept

    @cached_property
    def findings(self) -> Findings:
        """What gradient flow conserves; raises NotApplicable where the module cannot be traced."""
        return self._of_graph()[0]

    @cached_property
    def tail(self) -> Tail:
        """The linear layers that the network ends in; raises NotApplicable where the module cannot be traced."""
        return self._of_graph()[1]

    @cached_property
    def few(self) -> tuple[Tensor, Tensor | None]:
        """A hundred of the samples looked at, evenly spaced, and their targets: for what holds on any data."""
        rows = torch.linspace(0, len(self.x) - 1, min(FEW, len(self.x))).round().long()
        return self.x[rows], None if self._y is None else self._y[rows]

    @property
    def loss(self) -> tuple[str, Tensor, str]:
        """A loss at those, what it compares outputs with, and its formula; mean ||f||^2 without targets."""
        from bnrank.theory import kept

        return kept.loss_of(*self.few, self.outputs.shape[1])

    @cached_property
    def patterns(self) -> dict[str, Tensor]:
        """Which channels have the same activation pattern on those, (n, n), by the findings' names; of four of them."""
        from bnrank.theory import kept

        return kept.patterns(self.findings, self.module, self.few[0])

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        """The gradient of that loss by the parameters' names, float64."""
        from bnrank.theory import kept

        loss, y, _ = self.loss
        return kept.gradient(self.module, self.few[0], y, loss)
