"""Cost and gradient of an ensemble of any `nn.Module`, by `torch.func`."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from bnrank.networks.functional import aliases
from bnrank.training.ensemble import Objective, Workers
from bnrank.training.losses import LOSSES

BLOCK = 1024  # samples per block


class ModuleObjective(Objective):
    """C(f_theta) and its gradient for every member of an ensemble of any module, vectorized with `vmap`.

    Parameters that do not require a gradient stay fixed. Batching changes the order of summation inside matrix
    products, so that a member agrees with a solo run to rounding (1e-6 relative in float32 per step), not bit by bit.
    """

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor, loss: str, members: int, workers: Workers) -> None:
        super().__init__(net, x, y, loss, members, workers)
        self.net = net
        self.names = [name for name, p in net.named_parameters() if p.requires_grad]
        fixed = {name: p.detach().to(x) for name, p in net.named_parameters() if not p.requires_grad}
        fixed |= {name: b.to(x) if b.is_floating_point() else b.to(x.device) for name, b in net.named_buffers()}
        self._fixed = fixed
        self._aliases = aliases(net)
        self._shared = vmap(grad_and_value(self._member_cost), in_dims=(0, None, None))
        self._own = vmap(grad_and_value(self._member_cost), in_dims=(0, 0, 0))

    def evaluate(self, batch: Tensor | None = None) -> Tensor:
        """Compute cost and gradient at ``theta``; see `Objective`."""
        n = self.x.shape[0] if batch is None else batch.shape[1]
        with self.workers.all_threads():
            for first in range(0, n, BLOCK):
                part = slice(first, min(first + BLOCK, n))
                if batch is None:
                    gradient, cost = self._shared(self.theta, self.x[part], self.y[part])
                else:
                    rows = batch[:, part]
                    gradient, cost = self._own(self.theta, self.x[rows], self.y[rows])
                weight = (part.stop - part.start) / n
                if first == 0:
                    torch.mul(gradient, weight, out=self.gradient)
                    torch.mul(cost.double(), weight, out=self.cost)
                else:
                    self.gradient.add_(gradient, alpha=weight)
                    self.cost.add_(cost.double(), alpha=weight)
        return self.cost

    def _member_cost(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parameters = dict(zip(self.names, self.split(row), strict=True))
        held = parameters | self._fixed
        held |= {alias: held[name] for alias, name in self._aliases.items()}
        return LOSSES[self.loss](functional_call(self.net, held, (x,), tie_weights=False), y)


def refuse_untrainable(net: nn.Module) -> None:
    """Raise if a layer cannot be trained in a vectorized, deterministic ensemble, naming it and the reason."""
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
