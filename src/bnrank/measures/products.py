"""The parameter Jacobian df/dtheta: matrix-free products, and its rows if they fit in memory."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from bnrank._core import validation
from bnrank.networks.functional import ExplainedError, Functional, check_real

CHUNK_ENTRIES = 2**24  # float64 numbers of the largest intermediate tensor: 128 MiB
DENSE = 32  # matrices up to this size are formed
NO_BATCHING = (RuntimeError, ValueError)  # raised for an operation without a batching rule
ITERATIONS = 3000  # restarts of the Lanczos method


class Products:
    """The parameter Jacobian J, (N d_out, P), of any module: J v and J^T u by backward passes, and the rows of J.

    Parameters
    ----------
    function : Functional
        The module; its floating-point parameters then require gradients, shared ones are counted once.
    x : Tensor
        Samples, (N, ...).
    chunk_size : int, optional
        Samples per block. The graph of a single block is reused for all products; those of several blocks are rebuilt
        for each product.
    """

    def __init__(self, function: Functional, x: Tensor, chunk_size: int | None) -> None:
        self.function, self.x, self.n, self.chunk_size = function, x, len(x), chunk_size
        check_real(function.module)
        function.whole = x
        named = {name: p for name, p in function.parameters.items() if p.is_floating_point()}
        if not named:
            raise ValueError(f"net: {type(function.module).__name__} has no parameters, expected at least one")
        self.names = list(named)
        self.parameters = [p.requires_grad_(True) for p in named.values()]
        self.count = sum(p.numel() for p in self.parameters)
        self.d_out = self._tried()
        validation.expect(self.d_out, "net", "a network without outputs", "at least one output")
        self.parts = x.split(chunk_size or max(1, CHUNK_ENTRIES // (64 * max(self.d_out, x[0].numel()))))
        self.held: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]] = []  # the graph of a single block

    def _tried(self) -> int:
        """Return d_out, after a backward pass at one sample: where that fails, torch.func would give zeros."""
        first = self.x[:1].detach()
        leaf = first.clone().requires_grad_(first.is_floating_point())  # for the parts that are checkpointed
        leaves = [*self.parameters, *([leaf] if leaf.requires_grad else [])]
        try:
            (out,) = _outputs(self.function, [leaf])
        except ExplainedError:
            raise
        except ValueError:  # where it calls x.numpy(), for example
            leaves = self.parameters
            (out,) = _outputs(self.function, [first])
        with differentiating(self.function.module):
            torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        return out.numel()

    def backward(self, u: Tensor) -> Tensor:
        """Return J^T u, (P,), for u of shape (N d_out,)."""
        total = torch.zeros(self.count, dtype=u.dtype, device=u.device)
        pieces = u.split([len(part) * self.d_out for part in self.parts])
        outputs = [out for out, _, _ in self.held] or _outputs(self.function, self.parts)
        for out, g in zip(outputs, pieces, strict=True):
            with differentiating(self.function.module):
                found = torch.autograd.grad(
                    out, self.parameters, g, retain_graph=bool(self.held), materialize_grads=True
                )
            total += torch.cat([f.flatten() for f in found])
        return total

    def forward(self, v: Tensor) -> Tensor:
        """Return J v, (N d_out,), for v of shape (P,): the derivative of u -> J^T u, applied to v."""
        pieces = v.split([p.numel() for p in self.parameters])
        directions = [d.view_as(p) for d, p in zip(pieces, self.parameters, strict=True)]
        results: list[Tensor] = []
        try:
            for _, u, gradients in self.held or self._transposes():
                pairs = [(g, d) for g, d in zip(gradients, directions, strict=True) if g.requires_grad]
                outputs, weights = zip(*pairs, strict=True)
                keep = bool(self.held)
                results += torch.autograd.grad(outputs, u, weights, retain_graph=keep, materialize_grads=True)
        except RuntimeError as error:
            raise _once_only(self.function, _reason(error)) from error
        return torch.cat(results)

    def _transposes(self) -> Iterator[tuple[Tensor, Tensor, tuple[Tensor, ...]]]:
        """Iterate over blocks of samples: the outputs, a vector u, and J^T u as a function of u."""
        for number, out in enumerate(_outputs(self.function, self.parts)):
            u = torch.zeros_like(out, requires_grad=True)
            found = torch.autograd.grad(out, self.parameters, u, create_graph=True, materialize_grads=True)
            if number == 0:
                check_connected(self.function, found)
            self.held = [(out, u, found)] if len(self.parts) == 1 else []
            yield out, u, found

    def rows(self) -> Iterator[tuple[Tensor, ...]]:
        """Iterate over df/dtheta, (k, numel) per parameter, for blocks of the N d_out pairs of sample and output.

        Rows of a block are computed together if they fit in memory and every operation has a batching rule, else one
        by one.
        """
        entries = self.d_out * self.count
        for piece in self.x.split(self.chunk_size or max(1, CHUNK_ENTRIES // entries)):
            if self.chunk_size is not None or entries <= CHUNK_ENTRIES:
                try:
                    yield self._vectorized(piece)
                    continue
                except NO_BATCHING:
                    pass
            for out in _outputs(self.function, piece.split(1)):
                for one in out:
                    with differentiating(self.function.module):
                        row = torch.autograd.grad(one, self.parameters, retain_graph=True, materialize_grads=True)
                    yield tuple(part.reshape(1, -1) for part in row)

    def _vectorized(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of a block of samples by automatic batching."""

        def output(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
            return self.function.with_parameters({**self.function.parameters, **parameters}, sample[None]).flatten()

        chosen = {name: p.detach() for name, p in zip(self.names, self.parameters, strict=True)}
        rows = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))(chosen, x)
        return tuple(rows[name].flatten(2).flatten(0, 1) for name in self.names)


def _outputs(function: Functional, parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Iterate over the flattened outputs at blocks of samples, with gradients."""
    for part in parts:
        with torch.enable_grad():
            out = function(part).flatten()
        if not out.requires_grad:
            raise ValueError(f"net: the output of {type(function.module).__name__} does not depend on its parameters")
        yield out


@contextmanager
def differentiating(net: nn.Module) -> Iterator[None]:
    """Raise ValueError, with the reason, where a backward pass through a module fails."""
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ValueError(f"net: {type(net).__name__} cannot be differentiated: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return why a backward pass failed."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == checkpoint.__file__ for frame in frames):
        if frames[-1].filename == checkpoint.__file__ and frames[-1].name == "backward":  # raised by itself
            advice = "turn it off, or pass use_reentrant=False if no parameters are inside"
            return f"torch.utils.checkpoint with use_reentrant=True gives no gradients of single tensors; {advice}"
        return "torch.utils.checkpoint runs parts of its forward again, with other parameters; turn it off"
    return str(error).partition(" Hint:")[0].removesuffix(".") or type(error).__name__


def check_connected(function: Functional, tensors: Iterable[Tensor]) -> None:
    """Raise ValueError for functions differentiable only once: their second derivatives would silently be 0."""
    nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "Error":
            raise _once_only(function, "it has a function with once_differentiable gradients")
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        nodes.extend(new)


def _once_only(function: Functional, reason: str) -> ValueError:
    return ValueError(f"net: {type(function.module).__name__} cannot be differentiated as often as needed: {reason}")


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], like: Tensor, rtol: float, seed: int) -> float:
    """Return the largest eigenvalue of a symmetric non-negative operator on vectors such as ``like``, (n,).

    Up to 32 dimensions the matrix is formed. Otherwise the implicitly restarted Lanczos method (ARPACK) runs until the
    residual of the eigenpair, which bounds the error, is at most ``rtol`` times the eigenvalue.
    """
    n = len(like)
    if n <= DENSE:
        matrix = torch.stack([apply(column) for column in torch.eye(n, dtype=like.dtype, device=like.device)])
        if not bool(torch.isfinite(matrix).all()):
            raise validation.RangeError("net, x: the Jacobian is beyond the range of floats; bring x to another scale")
        return max(0.0, float(torch.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]))

    from scipy.sparse import linalg

    def product(vector: np.ndarray) -> np.ndarray:
        there = torch.from_numpy(np.ascontiguousarray(vector.reshape(-1))).to(like.device, like.dtype)
        return apply(there).detach().cpu().double().numpy()

    start = np.random.default_rng(seed).standard_normal(n)
    if not product(start).any():  # zero on a random vector: the operator is 0
        return 0.0
    operator = linalg.LinearOperator((n, n), matvec=product, dtype=np.float64)
    try:
        values = linalg.eigsh(
            operator, 1, which="LA", v0=start, tol=rtol, maxiter=ITERATIONS, ncv=min(n, 24), return_eigenvectors=False
        )
    except linalg.ArpackNoConvergence as error:
        raise ValueError(f"rtol: got {rtol:g}, not reached in {ITERATIONS} restarts, expected a larger one") from error
    return max(0.0, float(values[-1]))


def check_samplewise(function: Functional, x: Tensor) -> int:
    """Return d_out; raise if the output for a sample depends on the other samples, as with batch statistics."""
    with torch.no_grad():
        together = function(x[:2])[:1]
        alone = function(x[:1]) if x.shape[0] > 1 else together
    validation.expect(together.numel(), "net", "a network without outputs", "at least one output")
    scale = float(together.abs().max()) + float(alone.abs().max())
    tolerance = 1e-6 if function.dtype == torch.float64 else 1e-3
    if together.shape != alone.shape or float((together - alone).abs().max()) > tolerance * scale:
        if function.is_random(x[:1]):
            raise ValueError(
                f"net: the output of {type(function.module).__name__} is random, in eval mode, too, expected a "
                "function of the sample"
            )
        raise ValueError(
            f"net: the output of {type(function.module).__name__} for one sample depends on the others in its "
            "batch, expected a function of one sample (batch normalization without running statistics?)"
        )
    return together.numel()
