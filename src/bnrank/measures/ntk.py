"""The neural tangent kernel at the samples: trace and Gram tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from bnrank import _validate
from bnrank.measures.jacobian import CHUNK_ENTRIES, mlp_forward
from bnrank.networks.functional import Functional, example, is_plain_mlp
from bnrank.networks.mlp import MLP

__all__ = ["gram", "trace"]

MAX_ENTRIES = 2**28  # of the parameter Jacobian held by gram for modules other than MLP: 2 GiB


def trace(
    module: nn.Module,
    x: Tensor | np.ndarray,
    *,
    chunk: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    r"""Return Tr Theta(x_i, x_i) for every sample, without the kernel.

    Theta(x, x') = sum_p (df/dp)(x) (df/dp)(x')^T, d_out x d_out, over all parameters p, trainable or not; so
    Tr Theta(x, x) = ||df/dtheta||_F^2. MLPs in closed form (T24):
    sum_l (||a_{l-1}(x)||^2 + 1) ||J(a~_l -> f)(x)||_F^2, without the + 1 where there are no biases. Other modules: the
    parameter Jacobian of a few samples at a time.

    Parameters
    ----------
    module : torch.nn.Module
        Any module; in eval mode, left as it was.
    x : Tensor or ndarray
        Samples, (N, ...).
    chunk : int, optional
        Samples at a time; by default as many as keep a tensor within 2^24 numbers.
    dtype : torch.dtype
        Precision.

    Returns
    -------
    Tensor
        (N,), in ``dtype``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the module has no parameters or cannot be run on x.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 2], seed=0)                     # f(x) = W x + b: d_out (||x||^2 + 1)
    >>> trace(net, torch.ones(1, 3))
    tensor([8.], dtype=torch.float64)
    """
    x = example(module, x)
    if chunk is not None:
        chunk = _validate.integer(chunk, "chunk")
    if is_plain_mlp(module):
        chunk = chunk or max(1, CHUNK_ENTRIES // (max(module.widths) * module.widths[-1]))
        traces = []
        for part in x.split(chunk):
            inputs, back = _mlp_factors(module, part, dtype)
            one = 1.0 if module.bias else 0.0
            traces.append(sum(((a * a).sum(1) + one) * (g * g).sum((1, 2)) for a, g in zip(inputs, back, strict=True)))
        return torch.cat([torch.as_tensor(t) for t in traces])
    function = _with_gradients(module, dtype)
    return torch.cat([(rows * rows).sum((1, 2)) for rows in _parameter_jacobians(function, x, chunk)])


def gram(module: nn.Module, x: Tensor | np.ndarray, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the kernel between all pairs of samples, Theta(x_i, x_j).

    Over all parameters, as in :func:`trace`. MLPs: sum_l (a_{l-1}(x).a_{l-1}(x') + 1) J_l(x) J_l(x')^T with
    J_l = J(a~_l -> f), which needs N n_l d_out numbers per layer. Other modules: the N d_out x P parameter Jacobian is
    held, up to 2^28 numbers.

    Parameters
    ----------
    module, x, dtype
        As in :func:`trace`.

    Returns
    -------
    Tensor
        (N, N, d_out, d_out), in ``dtype``.

    Raises
    ------
    TypeError, ValueError
        As :func:`trace`, or if the parameter Jacobian is too large.

    Examples
    --------
    >>> import torch, bnrank
    >>> gram(bnrank.MLP([2, 1], bias=False), torch.eye(2)).squeeze()
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    x = example(module, x)
    if is_plain_mlp(module):
        inputs, back = _mlp_factors(module, x, dtype)
        one = 1.0 if module.bias else 0.0
        n, d_out = x.shape[0], module.widths[-1]
        kernel = torch.zeros(n, n, d_out, d_out, dtype=dtype, device=inputs[0].device)
        for a, g in zip(inputs, back, strict=True):
            rows = g.reshape(n * d_out, -1)
            products = (rows @ rows.T).reshape(n, d_out, n, d_out).permute(0, 2, 1, 3)
            kernel += (a @ a.T + one)[:, :, None, None] * products
        return kernel
    function = _with_gradients(module, dtype)
    d_out, count = _sizes(function, x)
    if x.shape[0] * d_out * count > MAX_ENTRIES:
        raise ValueError(
            f"x: got {x.shape[0]} samples, with {d_out} outputs and {count} parameters the parameter Jacobian exceeds "
            f"{MAX_ENTRIES} numbers, expected at most {MAX_ENTRIES // (d_out * count)} samples"
        )
    rows = torch.cat(list(_parameter_jacobians(function, x, None))).flatten(0, 1)  # (N d_out, P)
    return (rows @ rows.T).reshape(x.shape[0], d_out, x.shape[0], d_out).permute(0, 2, 1, 3).contiguous()


def _mlp_factors(net: MLP, x: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return a_{l-1}(x), (n, n_{l-1}), and J(a~_l -> f)(x), (n, d_out, n_l), for l = 1..L."""
    inputs, slopes = mlp_forward(net, x, dtype)
    d_out = net.widths[-1]
    back = [torch.eye(d_out, dtype=dtype, device=inputs[0].device).expand(len(x), d_out, d_out)]
    for weight, d in zip(net.weights[:0:-1], slopes[::-1], strict=True):
        back.append((back[-1] @ weight.detach().to(dtype)) * d[:, None, :])
    return inputs, back[::-1]


def _with_gradients(module: nn.Module, dtype: torch.dtype) -> Functional:
    function = Functional(module, dtype)
    floating = {name: p.requires_grad_(True) for name, p in function.parameters.items() if p.is_floating_point()}
    if not floating:
        raise ValueError(f"module: {type(module).__name__} has no parameters, expected at least one")
    return function


def _sizes(function: Functional, x: Tensor) -> tuple[int, int]:
    """Return d_out and the number of parameters."""
    with torch.no_grad():
        return function(x[:1]).numel(), sum(p.numel() for p in function.parameters.values() if p.requires_grad)


def _parameter_jacobians(function: Functional, x: Tensor, chunk: int | None) -> Iterator[Tensor]:
    """Iterate over df/dtheta at the samples, (n, d_out, P)."""
    d_out, count = _sizes(function, x)
    parameters = [p for p in function.parameters.values() if p.requires_grad]

    def backward(out: Tensor, direction: Tensor) -> Tensor:
        gradients = torch.autograd.grad(out, parameters, direction, retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in gradients])

    directions = torch.eye(d_out, dtype=function.dtype, device=function.device)
    for piece in x.split(chunk or max(1, CHUNK_ENTRIES // (d_out * count))):
        try:
            yield _vectorised(function, piece)
        except (RuntimeError, ValueError):  # an operation without a batching rule: the same numbers, one by one
            rows = []
            for i in range(piece.shape[0]):
                with torch.enable_grad():
                    out = function(piece[i : i + 1]).flatten()
                if not out.requires_grad:
                    name = type(function.module).__name__
                    raise ValueError(f"module: the output of {name} does not depend on its parameters") from None
                rows.append(torch.stack([backward(out, direction) for direction in directions]))
            yield torch.stack(rows)


def _vectorised(function: Functional, x: Tensor) -> Tensor:
    names = [name for name, p in function.parameters.items() if p.requires_grad]

    def output(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        everything = {**function.parameters, **parameters}
        return function.with_parameters(everything, sample[None]).flatten()

    chosen = {name: function.parameters[name].detach() for name in names}
    rows = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))(chosen, x)
    return torch.cat([rows[name].flatten(2) for name in names], -1)
