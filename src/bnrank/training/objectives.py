"""Cost and gradient of an ensemble: explicit backpropagation for MLPs, `torch.func` for other modules.

For MLPs, forward and backward passes are explicit batched matrix products, without automatic differentiation. On a CPU
the work is split into tasks, one per group of members and block of samples, which fit into the cache and which the
threads process from a queue. Matrix products are stacked `numpy.matmul` calls, which loop over the stack in C. The
computation for a member and a block depends on these two only, and blocks are summed in a fixed order. A member's
gradient is therefore bitwise independent of the other members and of the number of threads.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from bnrank.networks import MLP
from bnrank.networks.functional import aliases
from bnrank.tasks.losses import LOSSES, SAMPLE_LOSSES, cost_and_gradient
from bnrank.training.ensemble import Objective, Workers, split

aten = torch.ops.aten

BLOCK = 256  # samples per block: enough for efficient products, few enough for the cache
MODULE_BLOCK = 1024  # samples per block for modules differentiated by autograd
CACHE = 1 << 22  # maximum bytes of parameters and activations of a group of several members


class MLPObjective(Objective):
    """C(f_theta) and its gradient for every member of an ensemble of MLPs with all parameters trained."""

    def __init__(
        self,
        net: MLP,
        x: Tensor,
        y: Tensor,
        loss: str,
        members: int,
        workers: Workers,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(net, x, y, loss, members, workers, weights)
        self.net = net
        self.multiply: Callable[..., Any] = np.matmul if x.device.type == "cpu" else torch.bmm
        self.batch: Tensor | None = None
        self._tasks: dict[int, list[Callable[[], None]]] = {}
        self._spaces: dict[tuple[int, int], list[_Workspace]] = {}

    def evaluate(self, batch: Tensor | None = None) -> Tensor:
        """Compute cost and gradient at ``theta``; see `Objective`."""
        self.batch = batch
        n = self.x.shape[0] if batch is None else batch.shape[1]
        if n not in self._tasks:
            self._tasks[n] = self._cut(n)
        self.workers.share(self._tasks[n])
        return self.cost

    def _cut(self, n: int) -> list[Callable[[], None]]:
        """Return the work on n samples as a list of tasks."""
        if self.x.device.type != "cpu":
            blocks, per_group = [(0, n)], self.members
        else:
            count = math.ceil(n / BLOCK)
            edges = [n * k // count for k in range(count + 1)]
            blocks = list(itertools.pairwise(edges))
            numbers = 2 * self.size + (edges[1] - edges[0]) * sum(self.net.widths)
            per_group = max(1, CACHE // (numbers * self.theta.element_size()))
            per_group = min(per_group, math.ceil(self.members / self.workers.threads))
        tasks: list[Callable[[], None]] = []
        for first in range(0, self.members, per_group):
            group = _Group(self, slice(first, min(first + per_group, self.members)), len(blocks))
            tasks += [functools.partial(group.run, index, *block, n) for index, block in enumerate(blocks)]
        return tasks

    def borrow(self, members: int, samples: int) -> _Workspace:
        """Return a workspace of this size, reusing a free one if there is any."""
        try:
            return self._spaces[members, samples].pop()
        except (KeyError, IndexError):
            return _Workspace(self, members, samples)

    def give_back(self, space: _Workspace) -> None:
        """Release a workspace for the next task."""
        self._spaces.setdefault((space.members, space.samples), []).append(space)


class _Workspace:
    """Buffers of one task for layer outputs, deltas and a gradient; reused by later tasks."""

    def __init__(self, objective: MLPObjective, members: int, samples: int) -> None:
        self.members, self.samples, self.objective = members, samples, objective
        like, widths = objective.theta, objective.net.widths[1:]
        self.outputs = [like.new_empty(members, samples, width) for width in widths]
        inner = widths[:-1]
        self.signs = [like.new_empty(members, samples, width) for width in inner] if objective.net.slope < 0 else []
        scratch = [like.new_empty(members * samples * max(inner, default=1)) for _ in range(2)]
        self.deltas = [
            scratch[i % 2][: members * samples * width].view(members, samples, width) for i, width in enumerate(inner)
        ]
        self.deltas.append(self.outputs[-1])
        self.output_operands = [_operand(z) for z in self.outputs]
        self.delta_operands = [_operand(d) for d in self.deltas]
        self.delta_transposes = [_operand(d.mT) for d in self.deltas]
        self.cost = like.new_zeros(members, dtype=torch.float64)

    @functools.cached_property
    def gradient(self) -> _Parameters:
        """Buffer for the gradient of one block."""
        return _Parameters(self.objective, self.objective.theta.new_empty(self.members, self.objective.size))


class _Parameters:
    """Rows of a parameter matrix, viewed as weights (g, n_out, n_in) and biases (g, 1, n_out)."""

    def __init__(self, objective: MLPObjective, rows: Tensor) -> None:
        self.rows = rows
        pieces = split(rows, objective.shapes)
        step = 2 if objective.net.bias else 1
        self.biases = [b.unsqueeze(1) for b in pieces[1::2]] if objective.net.bias else []
        self.weights = [_operand(w) for w in pieces[::step]]
        self.transposes = [_operand(w.mT) for w in pieces[::step]]


class _Group:
    """A group of members whose blocks of samples are summed in a fixed order."""

    def __init__(self, objective: MLPObjective, rows: slice, blocks: int) -> None:
        self.objective, self.rows, self.blocks = objective, rows, blocks
        self.parameters = _Parameters(objective, objective.theta[rows])
        self.gradient = _Parameters(objective, objective.gradient[rows])
        self.members = rows.stop - rows.start
        self.lock = threading.Lock()
        self.waiting: dict[int, _Workspace] = {}
        self.next = 0

    def run(self, index: int, first: int, last: int, n: int) -> None:
        """Compute block ``index``, samples first..last - 1 of n, and add it after all previous blocks."""
        objective = self.objective
        space = objective.borrow(self.members, last - first)
        target = self.gradient if self.blocks == 1 else space.gradient
        with np.errstate(all="ignore"):  # divergence is detected from the cost
            space.cost = self._compute(space, target, first, last, n)
        if self.blocks == 1:
            objective.cost[self.rows] = space.cost
            objective.give_back(space)
            return
        with self.lock:
            self.waiting[index] = space
            while self.next in self.waiting:
                done = self.waiting.pop(self.next)
                if self.next == 0:
                    self.gradient.rows.copy_(done.gradient.rows)
                    objective.cost[self.rows] = done.cost
                else:
                    self.gradient.rows.add_(done.gradient.rows)
                    objective.cost[self.rows] += done.cost
                objective.give_back(done)
                self.next += 1
            if self.next == self.blocks:
                self.next = 0

    def _compute(self, space: _Workspace, gradient: _Parameters, first: int, last: int, n: int) -> Tensor:
        objective, slope = self.objective, self.objective.net.slope
        multiply = objective.multiply
        if objective.batch is None:
            chosen: Any = slice(first, last)
            x, y = objective.x[chosen].expand(self.members, -1, -1), objective.y[chosen]
        else:
            chosen = objective.batch[self.rows, first:last]
            x, y = objective.x[chosen], objective.y[chosen]
        weights = None if objective.weights is None else objective.weights[chosen]
        inputs = [_operand(x), *space.output_operands[:-1]]
        last_layer = len(space.outputs) - 1
        for layer, z in enumerate(space.outputs):
            multiply(inputs[layer], self.parameters.transposes[layer], out=space.output_operands[layer])
            if self.parameters.biases:
                z += self.parameters.biases[layer]
            if layer < last_layer:
                if slope == 0:
                    torch.relu_(z)
                    continue
                if slope < 0:
                    space.signs[layer].copy_(z)
                torch.nn.functional.leaky_relu_(z, slope)
        cost = cost_and_gradient(objective.loss, space.outputs[-1], y, n, weights)
        for layer in range(last_layer, -1, -1):
            multiply(space.delta_transposes[layer], inputs[layer], out=gradient.weights[layer])
            if gradient.biases:
                torch.sum(space.deltas[layer], dim=1, keepdim=True, out=gradient.biases[layer])
            if layer == 0:
                break
            multiply(space.delta_operands[layer], self.parameters.weights[layer], out=space.delta_operands[layer - 1])
            back, a = space.deltas[layer - 1], space.outputs[layer - 1]
            if slope == 0:
                aten.threshold_backward.grad_input(back, a, 0, grad_input=back)
            elif slope > 0:
                aten.leaky_relu_backward.grad_input(back, a, slope, True, grad_input=back)
            else:
                aten.leaky_relu_backward.grad_input(back, space.signs[layer - 1], slope, False, grad_input=back)
        return cost


def _operand(stack: Tensor) -> Any:
    """Return a stack of matrices in the form that `MLPObjective.multiply` expects, sharing memory."""
    return stack.numpy() if stack.device.type == "cpu" else stack


class ModuleObjective(Objective):
    """C(f_theta) and its gradient for every member of an ensemble of arbitrary modules, vectorized with `vmap`.

    Parameters that do not require a gradient stay fixed. Batching changes the order of summation inside matrix
    products, so a member agrees with a solo run to rounding (1e-6 relative per step in float32), not bitwise.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        loss: str,
        members: int,
        workers: Workers,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(net, x, y, loss, members, workers, weights)
        self.net = net
        self.names = [name for name, p in net.named_parameters() if p.requires_grad]
        fixed = {name: p.detach().to(x) for name, p in net.named_parameters() if not p.requires_grad}
        fixed |= {name: b.to(x) if b.is_floating_point() else b.to(x.device) for name, b in net.named_buffers()}
        self._fixed = fixed
        self._aliases = aliases(net)
        data = 2 if weights is None else 3
        self._shared = vmap(grad_and_value(self._member_cost), in_dims=(0, *[None] * data))
        self._own = vmap(grad_and_value(self._member_cost), in_dims=(0, *[0] * data))
        self._known = False  # whether the network can be vectorized, which refuses random ones

    def evaluate(self, batch: Tensor | None = None) -> Tensor:
        """Compute cost and gradient at ``theta``; see `Objective`."""
        n = self.x.shape[0] if batch is None else batch.shape[1]
        with self.workers.all_threads():
            for first in range(0, n, MODULE_BLOCK):
                part = slice(first, min(first + MODULE_BLOCK, n))
                rows, function = (part, self._shared) if batch is None else (batch[:, part], self._own)
                data = [values[rows] for values in (self.x, self.y, self.weights) if values is not None]
                try:
                    if self.members > 1 or not self._known:
                        gradient, cost = function(self.theta, *data)
                        self._known = True
                    if self.members == 1:
                        gradient, cost = self._alone(*(data if batch is None else [values[0] for values in data]))
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, NotImplementedError) as error:
                    at_once = "" if self.members == 1 and self._known else " for all members at once (torch.vmap)"
                    what = f"{type(self.net).__name__} cannot be differentiated{at_once}"
                    raise ValueError(f"net: {what}: {error}") from error
                share = (part.stop - part.start) / n
                if first == 0:
                    torch.mul(gradient, share, out=self.gradient)
                    torch.mul(cost.double(), share, out=self.cost)
                else:
                    self.gradient.add_(gradient, alpha=share)
                    self.cost.add_(cost.double(), alpha=share)
        return self.cost

    def _alone(self, *data: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradient and cost of the only member, with a first dimension for it."""
        with torch.inference_mode(False), torch.enable_grad():
            row = self.theta[0].clone().detach().requires_grad_()
            cost = self._member_cost(row, *data)
            gradient = torch.autograd.grad(cost, row)[0] if cost.requires_grad else torch.zeros_like(row)
        return gradient.unsqueeze(0), cost.detach().unsqueeze(0)

    def _member_cost(self, row: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        parameters = dict(zip(self.names, split(row, self.shapes), strict=True))
        held = parameters | self._fixed
        held |= {alias: held[name] for alias, name in self._aliases.items()}
        outputs = functional_call(self.net, held, (x,), tie_weights=False)
        if weights is None:
            return LOSSES[self.loss](outputs, y)
        return (weights * SAMPLE_LOSSES[self.loss](outputs, y)).mean()


def refuse_untrainable(net: nn.Module) -> None:
    """Raise if a layer cannot be trained in a vectorized, deterministic ensemble; the error gives layer and reason."""
    for name, module in net.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"net: layer {name!r} ({kind}) mixes samples of a batch; use LayerNorm or GroupNorm")
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise ValueError(f"net: layer {name!r} ({kind}) updates running statistics; use track_running_stats=False")
        if isinstance(module, nn.RReLU) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0):
            raise ValueError(f"net: layer {name!r} ({kind}) is random: a seed would not determine the run")
    if not any(p.requires_grad for p in net.parameters()):
        raise ValueError("net: got a module without trainable parameters, expected at least one")
