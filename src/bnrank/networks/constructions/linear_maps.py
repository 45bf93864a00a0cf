"""Linear maps: linear and diagonal networks of minimum norm, and ReLU networks on completely positive domains."""

import math

import numpy as np
import torch
from torch import Tensor

from bnrank._core import linalg, validation
from bnrank.networks.chain import Chain
from bnrank.networks.constructions import cones
from bnrank.networks.mlp import MLP

NEGATIVE = 1e-12  # cosines of at least minus this value count as non-negative
ISOMETRY = 1e-10  # entries of O^T O - P up to this value count as 0
MAX_POINTS = 300  # maximum number of samples among the candidates for rows of an isometry
MAX_RAYS = 60  # maximum number of facets whose pairwise sums are also candidates
MIXTURES = 2000  # number of random combinations of facets among the candidates


def linear(a: Tensor | np.ndarray, depth: int, *, rtol: float | None = None) -> MLP:
    """Return the linear network x -> A x of minimum norm, ||theta||^2 = L sum_i s_i(A)^(2/L).

    With A = U S V^T of rank k, W_1 = S^(1/L) V^T, W_l = S^(1/L) and W_L = U S^(1/L). The hidden width is k (1 if
    A = 0), and the kernels of the representations are x^T (A^T A)^(l/L) y, a straight line in log space. At depth 1 the
    weight is A.

    Parameters
    ----------
    a : Tensor or ndarray
        A, shape (d_out, d_in).
    depth : int
        L.
    rtol : float, optional
        Singular values up to ``rtol`` times the largest count as 0. Default: max(d_out, d_in) times the machine epsilon
        of the precision of ``a``. Without a threshold, tiny values would contribute to the norm: at depth 40 a singular
        value of 1e-16 contributes 0.16 times as much as a singular value of 1.

    Returns
    -------
    LinearNetwork
        Without biases, in the precision of ``a``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T32, T2, T8; Jacot2023a section 1, Jacot2023b section 2.

    Examples
    --------
    >>> import torch
    >>> net = linear(torch.tensor([[8.0, 0.0], [0.0, 0.0]]), 3)
    >>> net.widths, net(torch.tensor([[1.0, 5.0]])).tolist()
    ([2, 1, 1, 2], [[8.0, 0.0]])
    >>> sum(float((p * p).sum().detach()) for p in net.parameters())     # 3 * 8^(2/3)
    12.0
    """
    matrix, depth = validation.array(a, "a", "(d_out, d_in)", 2), validation.integer(depth, "depth")
    validation.allocation(depth * (256 + matrix.numel()), "depth", depth)
    u, s, vh = spectrum(matrix, rtol)
    if depth == 1:
        return Chain([matrix.to(torch.float64)], [], 1.0, matrix.dtype, matrix.device).network()
    if len(s) == 0:
        u, s, vh = u.new_zeros(len(u), 1), s.new_zeros(1), vh.new_zeros(1, vh.shape[1])
    root = s ** (1 / depth)
    weights = [root[:, None] * vh, *[torch.diag(root)] * (depth - 2), u * root]
    return Chain(weights, [], 1.0, matrix.dtype, matrix.device).network()


def spectrum(matrix: Tensor, rtol: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the singular value decomposition in float64, without the singular values that count as 0."""
    if rtol is None:
        rtol = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    rtol = validation.number(rtol, "rtol", 0.0)
    u, s, vh = torch.linalg.svd(matrix.to(torch.float64), full_matrices=False)
    k = int(linalg.rank(s, rtol))
    return u[:, :k], s[:k], vh[:k]


def diagonal(w: Tensor | np.ndarray, depth: int) -> MLP:
    """Return the diagonal linear network x -> w^T x of minimum norm, ||theta||^2 = L sum_i |w_i|^(2/L).

    W_1 = ... = W_{L-1} = diag(|w_i|^(1/L)), and W_L is the row with entries sign(w_i) |w_i|^(1/L).

    Parameters
    ----------
    w : Tensor or ndarray
        The vector w, shape (d,).
    depth : int
        L.

    Returns
    -------
    LinearNetwork
        With hidden width d, without biases, in the precision of ``w``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Notes
    -----
    Source: T32, T2; Jacot2023a section 1.

    Examples
    --------
    >>> import torch
    >>> net = diagonal(torch.tensor([4.0, -9.0]), 2)
    >>> net(torch.ones(1, 2)).item(), net.weights[1].tolist()
    (-5.0, [[2.0, -3.0]])
    """
    vector, depth = validation.array(w, "w", "(d,)", 1), validation.integer(depth, "depth")
    validation.allocation(depth * (256 + vector.numel()), "depth", depth)
    root = vector.to(torch.float64).abs() ** (1 / depth)
    weights = [*[torch.diag(root)] * (depth - 1), (vector.to(torch.float64).sign() * root)[None]]
    return Chain(weights, [], 1.0, vector.dtype, vector.device).network()


def completely_positive(
    a: Tensor | np.ndarray,
    depth: int,
    x: Tensor | np.ndarray,
    *,
    inner: Tensor | np.ndarray | None = None,
    outer: Tensor | np.ndarray | None = None,
    slope: float = 0.0,
    rtol: float | None = None,
) -> MLP:
    """Return a network with activations that equals x -> A x on a completely positive domain, with norm k L + O(1).

    The domain Omega is the cone generated by the rows of x: all sum_i c_i x_i with c_i >= 0. On it all hidden
    preactivations are non-negative, so activations act as the identity. Let P project onto Im A^T, and k = rank A. If
    P Omega and A Omega are completely positive, there are linear isometries into non-negative orthants: O_in with
    O_in^T O_in = P and O_in Omega >= 0, and O_out with O_out^T O_out = A A^+ and O_out A Omega >= 0. Then
    B_l = (sqrt(1 - p) O_in ; sqrt(p) O_out A), p = l/L, satisfies B_l^T B_l = (1 - p) P + p A^T A and B_l Omega >= 0.
    With B_0 = I and B_L = A the layers are W_l = B_l B_{l-1}^+. The representations are a_l = B_l x, and

        ||theta||^2 = sum_i sum_l v_i(l) / v_i(l-1),   v_i(l) = 1 + (l/L) (s_i(A)^2 - 1),

    which is kL + 2 log|A|_+ + (1/2L) sum_i (s_i - 1/s_i)^2 + ..., so R0 and R1 are attained.

    Parameters
    ----------
    a : Tensor or ndarray
        A, shape (d_out, d_in).
    depth : int
        L.
    x : Tensor or ndarray
        Generators of the cone, shape (N, d_in): samples, or ``torch.eye(d_in)`` for R^d_+.
    inner, outer : Tensor or ndarray, optional
        O_in, shape (m, d_in), and O_out, shape (m, d_out), checked on x. By default the first of these that applies:
        the identity, if coordinates are non-negative; a simplex around the axis, for cones within arcsin(1/sqrt k) of
        it; a combination, by non-negative least squares, of vectors that are non-negative on the cone (samples, and up
        to k = 5 its facets and mixtures of them); the result of a search as in :func:`bnrank.cost.completely_positive`.
        All may fail although an isometry exists.
    slope : float
        Slope s of the activation; it has no effect on the domain, where no hidden preactivation is negative.
    rtol : float, optional
        As in :func:`linear`.

    Returns
    -------
    MLP
        Without biases, in the higher precision of ``a`` and ``x``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, a given matrix is not an isometry or has negative values on x, P Omega or
        A Omega contains two points with a negative inner product (so it is not completely positive), or no isometry is
        found.

    Notes
    -----
    Source: T32, T7 (kernels in the direction of E11); Jacot2023b, Theorem 11.

    Examples
    --------
    >>> import torch
    >>> a = torch.tensor([[2.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> net, x = completely_positive(a, 20, torch.eye(2)), torch.rand(100, 2, dtype=torch.float64)
    >>> torch.allclose(net(x), x @ a.T), net.widths == [2, *[4] * 19, 2]
    (True, True)
    """
    matrix, depth = validation.array(a, "a", "(d_out, d_in)", 2), validation.integer(depth, "depth")
    validation.allocation(depth * (256 + matrix.numel()), "depth", depth)
    domain, slope = validation.samples(x, "x", features=matrix.shape[1]).detach(), validation.slope(slope, linear=True)
    dtype = torch.promote_types(matrix.dtype, domain.dtype)
    u, s, vh = spectrum(matrix, rtol)
    domain, matrix = domain.to(matrix.device, torch.float64), matrix.to(torch.float64)
    o_in = _isometry(domain, vh.T, "P x", "inner", inner)
    o_out = _isometry(domain @ matrix.T, u, "A x", "outer", outer)
    shares = [layer / depth for layer in range(1, depth)]
    factors = [torch.cat([math.sqrt(1 - p) * o_in, math.sqrt(p) * o_out @ matrix]) for p in shares]
    factors.append(matrix)
    weights = factors[:1]
    for p, before, after in zip(shares, factors[:-1], factors[1:], strict=True):
        weights.append(after @ ((vh.T / (1 - p + p * s**2)) @ vh @ before.T))
    return Chain(weights, [], slope, dtype, matrix.device).network()


def _isometry(points: Tensor, basis: Tensor, what: str, name: str, given: Tensor | np.ndarray | None) -> Tensor:
    """Return O, (m, n), with O^T O = U U^T for the basis U, (n, k), and O points >= 0."""
    if given is None:
        if basis.shape[1] == 0:
            return basis.new_zeros(1, len(basis))
        return _found(points @ basis, basis, what) @ basis.T
    o = validation.array(given, name, f"(m, {len(basis)})", 2).to(points.device, torch.float64)
    validation.expect(o.shape[1] == len(basis), name, f"shape {tuple(o.shape)}", f"(m, {len(basis)})")
    off = float((o.T @ o - basis @ basis.T).abs().max())
    validation.expect(off <= ISOMETRY, name, f"O with O^T O off the projection by {off:.2g}", f"at most {ISOMETRY:g}")
    values = points @ o.T
    low, large = float(values.min()), float(values.abs().max())
    validation.expect(low >= -NEGATIVE * large, name, f"O with an entry {low:.3g} of O {what}", "none below 0")
    return o


def _found(points: Tensor, basis: Tensor, what: str) -> Tensor:
    """Return O, (m, k), with O^T O = I and O z >= 0 for the rows z of points."""
    norms = points.norm(dim=1)
    z = points[norms > NEGATIVE * norms.max()]
    if len(z) == 0:
        return basis
    z = z / z.norm(dim=1, keepdim=True)
    axis = z.sum(0) / z.sum(0).norm()
    for plain in (basis, _simplex(axis)):
        if float((z @ plain.T).min()) >= -NEGATIVE:
            return plain
    if min(float((part @ z.T).min()) for part in z.split(1000)) < -NEGATIVE:
        raise ValueError(f"x: two points have {what} of negative inner product, expected a completely positive domain")
    isometry = _combined(z, axis, basis)
    isometry = _searched(z) if isometry is None else isometry
    if isometry is None:
        raise ValueError(
            f"x: found no isometry of {what} (dimension {points.shape[1]}) into a non-negative orthant; pass inner and "
            "outer if you know them"
        )
    return isometry


def _simplex(axis: Tensor) -> Tensor:
    """Return an orthonormal basis whose vectors all have the angle arccos(1/sqrt k) with the axis."""
    eye = torch.eye(len(axis)).to(axis)
    mirror = torch.full_like(axis, 1 / math.sqrt(len(axis))) - axis
    length = float(mirror.norm())
    return eye if length < NEGATIVE else eye - 2 * torch.outer(mirror / length, mirror / length)


def _combined(z: Tensor, axis: Tensor, basis: Tensor) -> Tensor | None:
    """Return an isometry whose rows are multiples of candidate vectors of the dual cone, or None.

    Non-negative least squares selects the rows. The candidates are the coordinate vectors projected onto the span, with
    both signs, the axis, points, normals of facets in 3 to 5 dimensions, and sums of two and random mixtures of these
    normals, with mostly unequal weights.
    """
    from scipy.optimize import nnls

    eye, rays = torch.eye(len(axis)).to(z), _facets(z, axis)
    sums = [r + t for i, r in enumerate(rays[:MAX_RAYS]) for t in rays[:i]]
    draws = torch.rand(MIXTURES, len(rays), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixtures = list((1 - draws).log().square().to(z) @ torch.stack(rays)) if rays else []
    candidates = torch.stack([*basis, *-basis, axis, *z[:MAX_POINTS], *rays, *sums, *mixtures])
    size = candidates.norm(dim=1)
    candidates = candidates[size > NEGATIVE] / size[size > NEGATIVE, None]
    candidates = torch.cat([part[(part @ z.T).min(1).values >= -NEGATIVE] for part in candidates.split(1000)])
    squares = (candidates[:, :, None] * candidates[:, None, :]).flatten(1)
    try:
        shares = torch.from_numpy(nnls(squares.T.cpu().numpy(), eye.flatten().cpu().numpy())[0]).to(z)
    except RuntimeError:  # its limit of iterations
        return None
    o = shares[shares > 0].sqrt()[:, None] * candidates[shares > 0]
    if float((o.T @ o - eye).abs().max()) > 1e-8:
        return None
    values, vectors = torch.linalg.eigh(o.T @ o)
    return o @ (vectors / values.sqrt()) @ vectors.T


def _facets(z: Tensor, axis: Tensor) -> list[Tensor]:
    """Return the inner normals of the cone's facets, in 3 to 5 dimensions, if it has interior points."""
    from scipy.spatial import ConvexHull, QhullError

    if not 3 <= len(axis) <= cones.MAX_HULL:
        return []
    across = torch.linalg.svd(axis[None])[2][1:]  # orthonormal, orthogonal to the axis
    section = (z @ across.T) / (z @ axis)[:, None]
    try:
        equations = torch.from_numpy(ConvexHull(section.cpu().numpy()).equations).to(z)
    except (QhullError, ValueError):  # flat
        return []
    return list(-(equations[:, :-1] @ across) - equations[:, -1:] * axis)


def _searched(z: Tensor) -> Tensor | None:
    """Return an isometry found by :func:`cones.search`, extended by the identity outside the span of z, or None."""
    _, values, rows = np.linalg.svd(z.cpu().numpy())
    rank = int((values > NEGATIVE * values[0]).sum())
    rays = cones.extreme_rays(z.cpu().numpy() @ rows[:rank].T)
    isometry, _, _ = cones.search(rays, NEGATIVE, np.random.default_rng(0))
    return None if isometry is None else torch.from_numpy(np.vstack([isometry @ rows[:rank], rows[rank:]])).to(z)
