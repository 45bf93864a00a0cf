"""Measurements of a network on data, for the statements of the theory: each computed once, in float64."""

from __future__ import annotations

import copy
import math
import warnings
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import linalg, validation
from bnrank._core.sampling import evenly_spaced
from bnrank.measures import ntk, subgradients
from bnrank.measures.backward import Forward, Layers
from bnrank.measures.derivatives import differentiating
from bnrank.measures.jacobian import Jacobian
from bnrank.measures.second_order import Problem
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import (
    Functional,
    check_classified,
    check_finite,
    check_real,
    check_unshared,
    example,
    unwrap,
)
from bnrank.networks.mlp import MLP
from bnrank.tasks.losses import cost_and_gradient, gradient_at_zero
from bnrank.tasks.task import Task
from bnrank.theory.constructions import line_interpolant
from bnrank.theory.escape.localized import Localized, localized, one_deeper
from bnrank.theory.invariants import conserved
from bnrank.theory.invariants.finding import Findings
from bnrank.theory.invariants.linear_tail import Tail, findings_and_tail
from bnrank.theory.invariants.patterns import same_patterns
from bnrank.theory.path import Path
from bnrank.theory.stability import RankOne, exactly_rank_one, tour
from bnrank.theory.symmetry import narrowest_layer
from bnrank.theory.tours import TourBound
from bnrank.theory.verdicts import NotApplicable, assume, assuming

SMALLEST = 1e-290  # squared norm below which float64 loses digits
KINK_RTOL = 1e-9  # a preactivation that is smaller, relative to its terms, may have either sign
FEW = 100  # samples for statements that hold on any data
MOST_KINKS = 1000  # kinks above which the gradient is the one that PyTorch takes
DIFFERENTIABLE = "PyTorch can differentiate the network"
CHUNK = 2**12  # samples in a block of the gradient of the loss


class Facts:
    """A network, data and a ridge, with their measurements, computed lazily and cached.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with finite parameters. Statements about a chain of linear layers use :attr:`chain`.
    x : Tensor or ndarray
        Samples, (N, ...).
    y : Tensor or ndarray, optional
        Targets, (N, d_out), floating point, for the mean squared error; or class indices, (N,), integers, for the
        cross-entropy of outputs (N, C).
    ridge : float, optional
        lambda of the loss C + lambda ||theta||^2 that the network was trained with.
    rtol : float
        A rank is the number of singular values above ``rtol`` times the largest.
    seed : int
        Random seed of searches and pairs of samples.
    max_samples : int, optional
        Largest number of samples on which statements are checked, evenly spaced. The loss and its gradient use all
        samples. Default: all.

    Attributes
    ----------
    net, ridge, rtol, seed
        As given.
    all_x : Tensor
        All samples as given, (N, ...).
    x : Tensor
        The samples on which statements are checked, (n, ...), in float64 (integers remain integers).
    y : Tensor or None
        Their targets, (n, d_out), in float64; None if class indices or no targets are given.
    samples : int
        N, the number of samples given.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.from_layers([torch.eye(2), 3 * torch.eye(2)])
    >>> facts = bnrank.theory.Facts(net, torch.ones(5, 2))
    >>> facts.depth, facts.rank, round(float(facts.parameter_norm), 9)
    (2, 2, 20.0)
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
        self.net = unwrap(net)
        check_finite(self.net)
        check_real(self.net)
        check_unshared(self.net)
        self.ridge = None if ridge is None else validation.number(ridge, "ridge", 0.0)
        self.rtol = validation.rtol(rtol)
        self.seed = validation.seed(seed)
        self.function = Functional(self.net)
        self.all_x = example(self.net, x).detach().to(self.function.device)
        self.samples = len(self.all_x)
        limit = self.samples if max_samples is None else validation.integer(max_samples, "max_samples")
        rows = evenly_spaced(self.samples, limit)
        kept = self.all_x[rows]
        self.x: Tensor = kept.to(torch.float64) if kept.is_floating_point() else kept
        self._all_y = None if y is None else self._read_targets(y)
        self._y = None if self._all_y is None else self._all_y[rows]
        self.y: Tensor | None = self._y if self._y is not None and self._y.is_floating_point() else None

    def _read_targets(self, y: Any) -> Tensor:
        """Return targets (N, d_out) in float64, or class indices (N,), after checking that they fit."""
        outputs = self.outputs.shape[1]
        y = validation.targets(validation.from_array(y, "y") if isinstance(y, np.ndarray) else y, outputs)
        if isinstance(y, Tensor) and not y.is_floating_point():
            targets = validation.classes(y, "y", outputs)
            check_classified(self.function, self.all_x)
        else:
            targets = validation.samples(y, "y", ndim=None).detach().to(torch.float64).flatten(1)
            expected = f"{outputs}, the network's outputs"
            validation.expect(targets.shape[1] == outputs, "y", f"{targets.shape[1]} columns", expected)
        count = len(targets)
        validation.expect(count == self.samples, "y", f"{count} samples", f"as many as x has, {self.samples}")
        return targets.to(self.function.device)

    def altered(self, **values: Any) -> Facts:
        """Return a copy with some measurements replaced, e.g. ``altered(parameter_norm=0.0)``; the rest is recomputed.

        What is given to :class:`Facts`, such as ``x`` and ``y``, is not replaced: make new facts.
        """
        measured = {name for name in dir(type(self)) if isinstance(getattr(type(self), name), cached_property)}
        public = ", ".join(sorted(name for name in measured if not name.startswith("_")))
        for name in values:
            validation.expect(name in measured, "altered", name, f"measurements (others need new Facts): {public}")
        other = copy.copy(self)
        other._taken = self._taken | values
        kept = {name: value for name, value in vars(other).items() if name not in measured}
        other.__dict__ = kept | other._taken
        return other

    # The function ------------------------------------------------------------------------------------------------

    @cached_property
    def outputs(self) -> Tensor:
        """f(x_i), (n, d_out)."""
        with torch.no_grad():
            outputs = self.function(self.x).flatten(1)
        floating = outputs.is_floating_point()
        validation.expect(floating, "net", f"outputs of {outputs.dtype}", "floating-point ones", TypeError)
        if not bool(torch.isfinite(outputs).all()):
            warnings.warn("net: its outputs have NaN or infinite entries", stacklevel=2)
        return outputs

    @cached_property
    def jacobian_values(self) -> Tensor:
        """Singular values of Jf(x_i), (n, min(d_in, d_out)), descending; raises NotApplicable if f has no Jacobian."""
        self._real_inputs()
        with assuming("f can be differentiated in x, sample by sample"):
            return Jacobian(self.net, self.x, kink_rtol=None).singular_values

    @cached_property
    def counted_values(self) -> Tensor:
        """The singular values of Jf(x_i), set to 0 if they do not count toward its rank, (n, min(d_in, d_out))."""
        return linalg.counted(self.jacobian_values, self.rtol)

    @cached_property
    def near_kinks(self) -> Tensor:
        """Whether each sample is within 1e-9 (relative) of a kink, (n,), bool; the Jacobian is one-sided there."""
        self._real_inputs()
        return Jacobian(self.net, self.x).near_kinks(KINK_RTOL)

    def _real_inputs(self) -> None:
        if not self.x.is_floating_point():
            raise NotApplicable("x is real, so that f can be differentiated in x; it has integers, such as tokens")

    @cached_property
    def ranks(self) -> Tensor:
        """Rank of Jf(x_i), (n,)."""
        return linalg.rank(self.jacobian_values, self.rtol)

    @cached_property
    def rank(self) -> int:
        """The largest rank of the Jacobian over the samples, max_i rank Jf(x_i), a lower bound on Rank_J."""
        return int(self.ranks.max())

    @cached_property
    def log_pseudo_determinants(self) -> Tensor:
        """Log |Jf(x_i)|_+ for the rank at x_i, (n,)."""
        return linalg.log_pseudo_determinant(self.jacobian_values, None, self.rtol)

    @cached_property
    def largest_rank(self) -> int:
        """The largest rank that Jf can have by its shape and, for a chain, the widths."""
        with suppress(NotApplicable):
            return min(self.chain.widths)
        return self.jacobian_values.shape[1]

    # The parameters ----------------------------------------------------------------------------------------------

    @cached_property
    def parameter_norm(self) -> float:
        """||theta||^2, over all parameters."""
        parameters = self.function.parameters.values()
        total = sum(float((p * p).sum()) for p in parameters)
        if total < SMALLEST and any(bool(p.any()) for p in parameters):
            raise validation.RangeError(f"net: its squared norm is below {SMALLEST:g}, where float64 loses digits")
        return total

    @cached_property
    def ntk_trace(self) -> Tensor:
        """Tr Theta(x_i, x_i) over all parameters, (n,); of a chain in closed form."""
        with suppress(NotApplicable):
            count = sum(p.numel() for p in self.function.parameters.values())
            if sum(p.numel() for p in self.chain.parameters()) == count:
                return ntk.trace(self.chain, self.x.flatten(1))
        return ntk.trace(self.net, self.x)

    # The chain ---------------------------------------------------------------------------------------------------

    @cached_property
    def chain(self) -> MLP:
        """The network as an MLP in float64; raises NotApplicable if it is not a chain of linear layers."""
        with assuming("the network is a chain of linear layers with one activation"):
            return as_mlp(self.net)

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
        """b_1, ..., b_L; empty without biases."""
        return [b.detach() for b in self.chain.biases]

    @cached_property
    def slope(self) -> float:
        """The slope s of the activation, in (-1, 1), or 1 for a linear network."""
        return self.chain.slope

    @cached_property
    def _forward(self) -> Forward:
        return Layers.of(self.chain, torch.float64).forward(self.x.flatten(1))

    @cached_property
    def inputs(self) -> list[Tensor]:
        """a_0, ..., a_{L-1} at the samples, each (n, n_l)."""
        return self._forward.inputs

    @cached_property
    def slopes(self) -> list[Tensor]:
        """The diagonals of D_1, ..., D_{L-1} at the samples, each (n, n_l); s at a kink."""
        return self._forward.slopes

    @cached_property
    def biased(self) -> Tensor:
        """1 for each layer with a bias, 0 for the others, (L,)."""
        layers = [layer for layer in self.net.modules() if isinstance(layer, nn.Linear)]
        return torch.tensor([float(layer.bias is not None) for layer in layers]).to(self.weights[0])

    @cached_property
    def squared_inputs(self) -> Tensor:
        """||a_{l-1}(x_i)||^2, plus 1 if layer l has a bias, (n, L)."""
        return torch.stack([(a * a).sum(1) for a in self.inputs], 1) + self.biased

    @cached_property
    def paths(self) -> list[Path]:
        """The linear maps that the chain applies at each sample, see :class:`~bnrank.theory.path.Path`."""
        return [Path(self.weights, [d[i] for d in self.slopes]) for i in range(len(self.x))]

    def log_volume(self, row: int, k: int) -> float:
        """Return log |Jf(x_row)|_+ of the first k singular values."""
        row = validation.integer(row, "row", 0, len(self.x) - 1)
        k = validation.integer(k, "k", 0, self.jacobian_values.shape[1])
        return float(linalg.log_pseudo_determinant(self.jacobian_values[row], k))

    @cached_property
    def near_parameter_kinks(self) -> Tensor:
        """Whether each sample has a preactivation within 1e-9 (relative) of 0, (n,), bool: a kink of f in theta.

        It need not be a kink in x: a preactivation may cancel to 0 in a whole region.
        """
        found = torch.zeros(len(self.x), dtype=torch.bool, device=self.inputs[0].device)
        biases = self.biases or [weight.new_zeros(len(weight)) for weight in self.weights]
        for a, weight, bias in zip(self.inputs[:-1], self.weights, biases, strict=False):
            z, terms = a @ weight.T + bias, a.abs() @ weight.abs().T + bias.abs()
            found |= ((z.abs() <= KINK_RTOL * terms) & (terms > 0)).any(1)
        return found & (self.slope != 1)

    @cached_property
    def rank_one(self) -> RankOne:
        """The chain with its weights of rank one, up to ``rtol``, made exactly so; NotApplicable if there are none."""
        found = exactly_rank_one(self.chain, self.rtol)
        if not found.layers:
            layer, ratio = narrowest_layer(self.weights)
            raise NotApplicable("BN-rank 1: a weight of rank one", f"s_2 / s_1 >= {ratio:.3g}, in layer {layer}")
        return found

    @cached_property
    def tour(self) -> TourBound:
        """The bounds from the shortest path through the outputs of :attr:`rank_one` (T13, T26)."""
        return tour(self.rank_one.network, self.x.flatten(1))

    @cached_property
    def interpolant(self) -> MLP:
        """A network of rank one through the samples and targets, of the depth and slope of the chain (T12)."""
        with assuming("a rank-one network of this depth fits the data"):
            return line_interpolant(self.x.flatten(1), self.targets, self.depth, self.seed, slope=self.slope)

    # The loss ----------------------------------------------------------------------------------------------------

    @property
    def _targets_and_loss(self) -> tuple[Tensor, str]:
        """All targets and the name of their loss."""
        if self._all_y is None:
            raise NotApplicable("targets y are given")
        return self._all_y, "mse" if self._all_y.is_floating_point() else "cross_entropy"

    @property
    def targets(self) -> Tensor:
        """Y at the samples of :attr:`x`, (n, d_out); raises NotApplicable without targets for the squared error."""
        if self._targets_and_loss[1] != "mse" or self.y is None:
            raise NotApplicable("the loss is the mean squared error", "y holds class indices")
        return self.y

    @cached_property
    def output_gradient(self) -> Tensor:
        """G = grad C at zero output, for all samples, (N, d_out) (T34); raises NotApplicable without targets."""
        y, loss = self._targets_and_loss
        return gradient_at_zero(loss, y, self.outputs.shape[1])

    @cached_property
    def localized(self) -> Localized:
        """The quantities of T38 over all samples; raises NotApplicable unless it is a bias-free ReLU chain."""
        assume(not self.biases, "no biases", "the loss near the origin is homogeneous only without them")
        assume(self.slope == 0, "a ReLU network", f"slope {self.slope:g}")
        assume(self.all_x.is_floating_point(), "the inputs are vectors", f"dtype {self.all_x.dtype}")
        return localized(self.weights, self.all_x.flatten(1), self.output_gradient)

    @cached_property
    def deeper(self) -> Localized:
        """The quantities of T38 for the network of T39, one layer deeper, over all samples."""
        self.localized  # noqa: B018  (raises where the construction does not apply)
        return one_deeper(self.chain, self.all_x.flatten(1), self.output_gradient)

    @property
    def penalty(self) -> float:
        """The ridge lambda; raises NotApplicable without one."""
        if not self.ridge:
            raise NotApplicable("a ridge > 0 is given")
        return self.ridge

    @cached_property
    def data_loss(self) -> float:
        """The cost C over all samples: mean squared error, summed over outputs, or cross-entropy."""
        return self._loss_and_gradient[0]

    @cached_property
    def problem(self) -> Problem:
        """The loss C + lambda ||theta||^2 of the chain over all samples."""
        targets, loss = self._targets_and_loss
        x, classes = self.all_x.double().flatten(1), self.outputs.shape[1] if loss == "cross_entropy" else None
        return Problem.of(self.chain, Task(x, targets, loss=loss, classes=classes), self.penalty)

    @cached_property
    def subgradient(self) -> subgradients.Subgradient | None:
        """The subgradient of least norm of the loss of a chain; None for other modules, or with too many kinks."""
        try:
            problem, layers = self.problem, self.problem.layers(self.chain)
        except NotApplicable:
            return None
        with suppress(ValueError, np.linalg.LinAlgError), np.errstate(over="ignore", invalid="ignore"):
            found = subgradients.least(problem, layers, KINK_RTOL, MOST_KINKS)
            return found if math.isfinite(found.best.relative_gradient) else None
        return None

    @cached_property
    def gradient_norm(self) -> float:
        """||grad C + 2 lambda theta||, over all samples and parameters; at kinks of a chain the least subgradient."""
        if self.subgradient is not None:
            return float(np.linalg.norm(self.subgradient.best.gradient))
        _, gradient, parameters = self._loss_and_gradient
        return float((gradient + 2 * self.penalty * parameters).norm())

    @cached_property
    def stationarity(self) -> float:
        """||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||), in [0, 1]; 0 at a stationary point."""
        if self.subgradient is not None:
            return self.subgradient.best.relative_gradient
        _, gradient, parameters = self._loss_and_gradient
        size = float(gradient.norm() + 2 * self.penalty * parameters.norm())
        return self.gradient_norm / size if size else 0.0

    @cached_property
    def _loss_and_gradient(self) -> tuple[float, Tensor, Tensor]:
        """C, its gradient and theta, both (P,)."""
        targets, loss = self._targets_and_loss
        parameters = {n: p.clone().requires_grad_(p.is_floating_point()) for n, p in self.function.parameters.items()}
        trained = [p for p in parameters.values() if p.requires_grad]
        assume(len(trained) > 0, "the network has parameters")
        theta = torch.cat([p.detach().flatten() for p in trained])
        cost, gradient = 0.0, torch.zeros_like(theta)
        for x, y in zip(self.all_x.split(CHUNK), targets.split(CHUNK), strict=True):
            with torch.enable_grad():
                out = self.function.with_parameters(parameters, x).flatten(1)
            slope = out.detach().clone()[None]
            cost += float(cost_and_gradient(loss, slope, y.to(out.device), self.samples))
            if out.requires_grad:  # else they do not depend on the parameters
                with assuming(DIFFERENTIABLE), differentiating(self.net):
                    parts = torch.autograd.grad(out, trained, slope[0], allow_unused=True, materialize_grads=True)
                gradient += torch.cat([g.flatten() for g in parts])
        return cost, gradient, theta

    # Conserved quantities ----------------------------------------------------------------------------------------

    @cached_property
    def _of_graph(self) -> tuple[Findings, Tail] | NotApplicable:
        try:
            with assuming("the computation graph of the network is known"):
                return findings_and_tail(self.net, self.all_x[:1], verify=False)
        except NotApplicable as reason:  # cached: tracing takes long
            return reason

    @property
    def _conserved(self) -> tuple[Findings, Tail]:
        if isinstance(self._of_graph, NotApplicable):
            raise self._of_graph
        return self._of_graph

    @cached_property
    def findings(self) -> Findings:
        """The conserved quantities of gradient flow; raises NotApplicable if the module cannot be traced."""
        return self._conserved[0]

    @cached_property
    def tail(self) -> Tail:
        """The last linear layers of the network; raises NotApplicable if the module cannot be traced."""
        return self._conserved[1]

    @cached_property
    def few(self) -> tuple[Tensor, Tensor | None]:
        """At most 100 evenly spaced samples and their targets, for statements that hold on any data."""
        rows = evenly_spaced(len(self.x), FEW)
        return self.x[rows], None if self._y is None else self._y[rows]

    @property
    def loss(self) -> tuple[str, Tensor, str]:
        """A loss for the samples of :attr:`few`, its targets, and its formula; mean ||f||^2 without targets."""
        return conserved.loss_of(*self.few, self.outputs.shape[1])

    @cached_property
    def patterns(self) -> dict[str, Tensor]:
        """For up to four pairs, by name: which channels have the same pattern on the samples of :attr:`few`, (n, n)."""
        with assuming("the activations are those of the computation graph"):
            return same_patterns(self.findings, self.net, self.few[0])

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        """The gradient of :attr:`loss` by parameter name, float64."""
        loss, y, _ = self.loss
        assume(any(p.is_floating_point() for p in self.net.parameters()), "the network has parameters")
        with assuming(DIFFERENTIABLE):
            return conserved.gradient(self.net, self.few[0], lambda out: conserved.cost(out.flatten(1), y, loss))[1]
