"""Products with the parameter Jacobian df/dtheta, and the largest eigenvalue of a symmetric operator."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank.measures.derivatives import CHUNK_ENTRIES, Derivatives, differentiating, reason
from bnrank.networks.functional import Functional

DENSE = 32  # matrices up to this size are formed
ITERATIONS = 3000  # restarts of the Lanczos method


class Products(Derivatives):
    """The parameter Jacobian J, (N d_out, P), of any module: J v and J^T u, by backward passes.

    Parameters
    ----------
    function : Functional
        The module; shared parameters are counted once.
    x : Tensor
        Samples, (N, ...).
    chunk_size : int, optional
        Samples per block. The graph of a single block is reused for all products; those of several blocks are rebuilt
        for each product.

    Raises
    ------
    ValueError
        If the output for one sample depends on the others, or a backward pass fails.
    """

    def __init__(self, function: Functional, x: Tensor, chunk_size: int | None) -> None:
        super().__init__(function, chunk_size)
        function.whole = x
        self.n, self.leaves = len(x), list(self.parameters.values())
        self.count = sum(p.numel() for p in self.leaves)
        self.tried(x)
        self.d_out = self.outputs(x)
        self.parts = x.split(chunk_size or max(1, CHUNK_ENTRIES // (64 * max(self.d_out, x[0].numel()))))
        self.held: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]] = []  # the graph of a single block

    def _outputs(self) -> Iterator[Tensor]:
        """Iterate over the flattened outputs at blocks of samples, with gradients."""
        for part in self.parts:
            with torch.enable_grad():
                out = self.differentiable(part, self.parameters).flatten()
            yield out

    def backward(self, u: Tensor) -> Tensor:
        """Return J^T u, (P,), for u of shape (N d_out,)."""
        total = torch.zeros(self.count, dtype=u.dtype, device=u.device)
        pieces = u.split([len(part) * self.d_out for part in self.parts])
        outputs = [out for out, _, _ in self.held] or self._outputs()
        for out, g in zip(outputs, pieces, strict=True):
            with differentiating(self.function.module):
                found = torch.autograd.grad(out, self.leaves, g, retain_graph=bool(self.held), materialize_grads=True)
            total += torch.cat([f.flatten() for f in found])
        return total

    def forward(self, v: Tensor) -> Tensor:
        """Return J v, (N d_out,), for v of shape (P,): the derivative of u -> J^T u, applied to v."""
        pieces = v.split([p.numel() for p in self.leaves])
        directions = [d.view_as(p) for d, p in zip(pieces, self.leaves, strict=True)]
        results: list[Tensor] = []
        try:
            for _, u, gradients in self.held or self._transposes():
                pairs = [(g, d) for g, d in zip(gradients, directions, strict=True) if g.requires_grad]
                outputs, weights = zip(*pairs, strict=True)
                keep = bool(self.held)
                results += torch.autograd.grad(outputs, u, weights, retain_graph=keep, materialize_grads=True)
        except RuntimeError as error:
            raise _once_only(self.function, reason(error)) from error
        return torch.cat(results)

    def _transposes(self) -> Iterator[tuple[Tensor, Tensor, tuple[Tensor, ...]]]:
        """Iterate over blocks of samples: the outputs, a vector u, and J^T u as a function of u."""
        for number, out in enumerate(self._outputs()):
            u = torch.zeros_like(out, requires_grad=True)
            found = torch.autograd.grad(out, self.leaves, u, create_graph=True, materialize_grads=True)
            if number == 0:
                check_connected(self.function, found)
            self.held = [(out, u, found)] if len(self.parts) == 1 else []
            yield out, u, found


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


def _once_only(function: Functional, why: str) -> ValueError:
    return ValueError(f"net: {type(function.module).__name__} cannot be differentiated as often as needed: {why}")


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
