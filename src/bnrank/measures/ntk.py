"""The neural tangent kernel at the samples: trace, Gram tensor, largest eigenvalue, mixed derivative."""

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.validation import Data
from bnrank.measures import products
from bnrank.measures.backward import Layers
from bnrank.measures.derivatives import CHUNK_ENTRIES, Derivatives, derivatives, finite
from bnrank.networks.chain import as_mlp
from bnrank.networks.functional import Functional, check_finite, check_unshared, example, is_plain_mlp, unwrap

__all__ = ["gram", "mixed_derivative_norm", "top_eigenvalue", "trace"]

MAX_ENTRIES = 2**28  # entries of the parameter Jacobian in gram for modules other than MLP: 2 GiB
FORMED = 256  # largest d_in d_out for which the matrix of the mixed derivative is formed


def trace(net: nn.Module, x: Data, *, chunk_size: int | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""Return Tr Theta(x_i, x_i) for every sample, without the kernel.

    Theta(x, x') = sum_p (df/dp)(x) (df/dp)(x')^T, d_out x d_out, over all parameters p, trainable or not, shared ones
    counted once; so Tr Theta(x, x) = ||df/dtheta||_F^2. MLPs in closed form (T24): sum_l (||a_{l-1}(x)||^2 + 1)
    ||J(a~_l -> f)(x)||_F^2, without the + 1 for layers without biases. Other modules: the parameter Jacobian of a few
    samples at a time.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; in eval mode, left unchanged.
    x : Tensor or ndarray
        Samples, (N, ...).
    chunk_size : int, optional
        Samples per block; by default as many as fit the cache (MLPs) or 2^24 numbers (others).
    dtype : torch.dtype
        Precision of the passes.

    Returns
    -------
    Tensor
        (N,), float64.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the module has no parameters, non-finite ones, or different ones that share
        memory, or cannot be run on x.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([3, 2], seed=0)                     # f(x) = W x + b: d_out (||x||^2 + 1)
    >>> trace(net, torch.ones(1, 3))
    tensor([8.], dtype=torch.float64)
    """
    net, x, chunk_size = _checked(net, x, chunk_size)
    return derivatives(net, x, dtype, chunk_size).traces(x)


def gram(net: nn.Module, x: Data, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the kernel between all pairs of samples, Theta(x_i, x_j).

    Over all parameters, as in :func:`trace`. MLPs: sum_l (a_{l-1}(x).a_{l-1}(x') + 1) J_l(x) J_l(x')^T with
    J_l = J(a~_l -> f), which requires N n_l d_out entries per layer. Other modules: the N d_out x P parameter Jacobian
    is formed, up to 2^28 entries.

    Parameters
    ----------
    net, x, dtype
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
    net, x, _ = _checked(net, x)
    n = len(x)
    if is_plain_mlp(net):
        layers = Layers.of(net, dtype)
        at, d_out = layers.forward(x), net.widths[-1]
        one = 1.0 if layers.biases else 0.0
        kernel = at.inputs[0].new_zeros(n, n, d_out, d_out)
        for a, g in zip(at.inputs[::-1], layers.to_output(at.slopes), strict=True):
            rows = g.expand(n, -1, -1).reshape(n * d_out, -1)
            pairs = (rows @ rows.T).reshape(n, d_out, n, d_out).permute(0, 2, 1, 3)
            kernel += (a @ a.T + one)[:, :, None, None] * pairs
        return finite(kernel).to(dtype)
    jacobian = Derivatives(Functional(net, dtype, whole=x))
    count, d_out = sum(p.numel() for p in jacobian.parameters.values()), jacobian.tried(x)
    most = MAX_ENTRIES // max(1, d_out * count)
    exceeds = f"with {d_out} outputs and {count} parameters the parameter Jacobian exceeds {MAX_ENTRIES} numbers"
    validation.expect(len(x) <= most, "x", f"{len(x)} samples, {exceeds}", f"at most {most} samples")
    rows = torch.cat([torch.cat(rows, 1) for rows in jacobian.rows(x, d_out)])  # (N d_out, P)
    kernel = (rows @ rows.T).reshape(n, d_out, n, d_out).permute(0, 2, 1, 3)
    return finite(kernel).to(dtype).contiguous()


def top_eigenvalue(
    net: nn.Module,
    x: Data,
    *,
    normalized: bool = False,
    rtol: float = 1e-10,
    chunk_size: int | None = None,
    seed: int = 0,
) -> float:
    """Return the largest eigenvalue of Theta(X, X), the (N d_out) x (N d_out) matrix, without forming it (T26, E14).

    It is ||J||_op^2 for the parameter Jacobian J, (N d_out) x P, over all parameters as in :func:`trace`. Lanczos
    iterations on J J^T or J^T J, whichever is smaller, by backward passes and their derivative. In float64.

    At parameters that fit the data exactly, twice the normalized value is the largest eigenvalue of the Hessian of
    C = (1/N) sum_i ||f(x_i) - y_i||^2; gradient descent with step eta is stable there only if (2/N) ||J||_op^2 <= 2 /
    eta.

    Parameters
    ----------
    net, x
        As in :func:`trace`.
    normalized : bool
        Divide by N.
    rtol : float
        Relative accuracy: the iteration ends when the residual of the eigenpair, a bound on the error of the
        eigenvalue, is at most ``rtol`` times the eigenvalue. The actual error is usually far smaller.
    chunk_size : int, optional
        Samples per block.
    seed : int
        Random seed of the starting vector.

    Returns
    -------
    float
        The eigenvalue.

    Raises
    ------
    TypeError, ValueError
        As :func:`trace`; if the module cannot be differentiated twice, the output for one sample depends on the
        others, or the accuracy is not reached.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.MLP([2, 1], bias=False)                 # f(x) = w.x: ||X||_op^2
    >>> round(top_eigenvalue(net, torch.diag(torch.tensor([3.0, 4.0]))), 9)
    16.0
    """
    net, x, chunk_size = _checked(net, x, chunk_size)
    normalized, rtol = validation.flag(normalized, "normalized"), validation.rtol(rtol)
    seed = validation.seed(seed, bits=128)
    function = Functional(net)
    jacobian = products.Products(function, x.to(function.device), chunk_size)
    like = jacobian.leaves[0].detach()
    rows = jacobian.n * jacobian.d_out

    def apply(vector: Tensor) -> Tensor:
        few = rows <= jacobian.count
        return jacobian.forward(jacobian.backward(vector)) if few else jacobian.backward(jacobian.forward(vector))

    value = products.largest_eigenvalue(apply, like.new_zeros(min(rows, jacobian.count)), rtol, seed)
    return value / jacobian.n if normalized else value


def mixed_derivative_norm(
    net: nn.Module, x: Data, *, rtol: float = 1e-10, chunk_size: int | None = None, seed: int = 0
) -> Tensor:
    """Return ||d^2_{xy} Theta(x_i, x_i)||_op for every sample (T25).

    Theta_ab(x, y) is differentiated by x_i and y_j and taken at y = x: a (d_in d_out) x (d_in d_out) matrix with rows
    (i, a) and columns (j, b). It is M M^T for M = d^2 f_a / dx_i dtheta_p with rows (i, a) and columns p, so the norm
    is ||M||_op^2, over all parameters. In closed form,
    sum_l J a_{l-1}^T J a_{l-1} (x) J(a~_l -> f) J(a~_l -> f)^T, (x) the Kronecker product, to which biases do not
    contribute; the matrix is formed up to d_in d_out = 256, else Lanczos iterations are used. In float64; at a kink,
    the one-sided value that PyTorch uses.

    At least L ||Jf(x)||_op^{2 - 2/L} for ReLU and linear networks of depth L.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        A chain of linear layers, as for :func:`bnrank.networks.as_mlp`.
    x : Tensor or ndarray
        Samples, (N, ...), floating point.
    rtol : float
        Relative accuracy of Lanczos iterations, as in :func:`top_eigenvalue`.
    chunk_size : int, optional
        Samples per block.
    seed : int
        Random seed of the starting vectors.

    Returns
    -------
    Tensor
        (N,), float64.

    Raises
    ------
    TypeError, ValueError
        As :func:`trace`, or if x is not floating point, the module is not a chain, or the accuracy is not reached.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = bnrank.networks.LinearNetwork([1, 1, 1, 1])    # f(x) = 2 * 2 * 2 x: L s^{2 - 2/L} = 3 * 8^{4/3}
    >>> for weight in net.weights:
    ...     _ = weight.data.fill_(2.0)
    >>> mixed_derivative_norm(net, torch.ones(1, 1))
    tensor([48.], dtype=torch.float64)
    """
    net, x, chunk_size = _checked(net, x, chunk_size)
    check_unshared(net)
    validation.expect(x.is_floating_point(), "x", f"dtype {x.dtype}", "floating point to differentiate by", TypeError)
    rtol = validation.rtol(rtol)
    seed = validation.seed(seed, bits=128)
    layers = Layers.of(as_mlp(net), torch.float64)
    d_in, d_out = layers.widths[0], layers.widths[-1]
    size = d_in * d_out
    formed = size <= FORMED
    numbers = sum(layers.widths) * (d_in + d_out) + len(layers.weights) * (d_in**2 + d_out**2) + size**2 * formed
    norms = []
    for part in x.flatten(1).split(chunk_size or max(1, CHUNK_ENTRIES // (4 * numbers))):
        slopes = layers.forward(part).slopes
        inner, outer = (
            torch.stack([(a @ a.mT).expand(len(part), -1, -1) for a in products], 1)
            for products in (layers.from_input(slopes), [*layers.to_output(slopes)][::-1])
        )
        if formed:
            matrix = torch.einsum("nlij,nlab->niajb", inner, outer).reshape(-1, size, size)
            norms.append(torch.linalg.eigvalsh(matrix)[:, -1].clamp(min=0.0))
            continue
        for left, right in zip(inner, outer, strict=True):

            def apply(v: Tensor, left: Tensor = left, right: Tensor = right) -> Tensor:
                return (left @ v.view(d_in, d_out) @ right).sum(0).flatten()

            norms.append(outer.new_tensor([products.largest_eigenvalue(apply, outer.new_zeros(size), rtol, seed)]))
    return finite(torch.cat(norms))


def _checked(net: nn.Module, x: Data, chunk_size: int | None = None) -> tuple[nn.Module, Tensor, int | None]:
    net = unwrap(net)
    chunk_size = validation.optional(validation.integer, chunk_size, "chunk_size")
    x = example(net, x).detach()
    check_finite(net)
    return net, x, chunk_size
