"""What statements are about: a network and data, with everything they need measured once and in float64."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.measures import jacobian, ntk
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, example, unwrap
from bnrank.networks.mlp import MLP
from bnrank.theory.verdict import NotApplicable

__all__ = ["Facts"]


class Facts:
    """A network, data and a ridge, and what is measured of them, each when first asked for and then kept.

    Parameters
    ----------
    module : torch.nn.Module
        Any module with finite parameters. What needs a chain of linear layers asks for :meth:`chain`.
    x : Tensor or ndarray
        Samples, (N, ...).
    y : Tensor or ndarray, optional
        Targets, (N, d_out), floating point.
    ridge : float, optional
        lambda of the loss C + lambda ||theta||^2 that the network is a minimum of, C the mean squared error of
        theory.md section 0.
    rtol : float
        Singular values above ``rtol`` times the largest count for a rank.
    seed : int
        Of whatever is drawn at random (searches, pairs of samples).

    Attributes
    ----------
    module, x, y, ridge, rtol, seed
        As given; x and y in float64, y flattened to (N, d_out).
    """

    def __init__(
        self,
        module: nn.Module,
        x: Any,
        y: Any = None,
        ridge: float | None = None,
        *,
        rtol: float = 1e-6,
        seed: int = 0,
    ) -> None:
        self.module = unwrap(module)
        check_finite(self.module)
        samples = example(self.module, x).detach()
        self.x: Tensor = samples.to(torch.float64) if samples.is_floating_point() else samples
        self.y: Tensor | None = None
        if y is not None:
            self.y = _validate.samples(y, "y", ndim=None).detach().to(torch.float64).flatten(1)
            if len(self.y) != len(self.x):
                raise ValueError(f"y: got {len(self.y)} samples, expected as many as x has, {len(self.x)}")
        self.ridge = None if ridge is None else _validate.number(ridge, "ridge", 0.0)
        self.rtol = _validate.number(rtol, "rtol", 0.0)
        self.seed = _validate.integer(seed, "seed", 0)
        self._taken: dict[str, Any] = {}
        self.function = Functional(self.module)
        if self.y is not None and self.y.shape[1] != self.outputs.shape[1]:
            raise ValueError(
                f"y: got {self.y.shape[1]} columns, expected the network's {self.outputs.shape[1]} outputs"
            )

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
        """Singular values of Jf(x_i), (N, min(d_in, d_out)), descending."""
        return jacobian.singular_values(self.module, self.x)

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
        return sum(float((p * p).sum()) for p in self.function.parameters.values())

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
            return str(error).removeprefix("module: ")

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

    # The loss ----------------------------------------------------------------------------------------------------

    @property
    def targets(self) -> Tensor:
        """Y, (N, d_out); raises NotApplicable without one."""
        if self.y is None:
            raise NotApplicable("targets y are given")
        return self.y

    @property
    def penalty(self) -> float:
        """Lambda; raises NotApplicable without one."""
        if not self.ridge:
            raise NotApplicable("a ridge > 0 is given")
        return self.ridge

    @cached_property
    def data_loss(self) -> float:
        """C = (1/N) sum_i ||f(x_i) - y_i||^2."""
        return float(((self.outputs - self.targets) ** 2).sum(1).mean())

    @cached_property
    def stationarity(self) -> float:
        """||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||), in [0, 1]; 0 at a stationary point."""
        parameters = {n: p.clone().requires_grad_(p.is_floating_point()) for n, p in self.function.parameters.items()}
        with torch.enable_grad():
            out = self.function.with_parameters(parameters, self.x).flatten(1)
            loss = ((out - self.targets) ** 2).sum(1).mean()
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        first = torch.cat([g.flatten() for g in gradients])
        second = 2 * self.penalty * torch.cat([p.detach().flatten() for p in parameters.values()])
        size = float(first.norm() + second.norm())
        return float((first + second).norm()) / size if size else 0.0
