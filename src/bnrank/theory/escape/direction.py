"""Escape directions: their speed, and the distance of their layers from rank one and from linear."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.chain import read_chain
from bnrank.networks.mlp import MLP, from_layers
from bnrank.theory.escape import reading

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class EscapeDirection(Printed):
    """An escape direction, as :func:`bnrank.escape.find` returns it.

    Attributes
    ----------
    speed : float
        s = -L0 of ``network``, on the sphere ||theta||^2 = L, in the units of x times those of g.
    network : MLP
        float64, without biases, every layer of Frobenius norm 1.
    speeds : ndarray
        Final speed of each start: first the random ones, then those given as ``initial``. That of the best start is
        measured after polishing.
    residual : float
        min ||grad L0 + s theta|| / (s ||theta||) over the subgradients at kinks (T36) that
        :func:`bnrank.theory.escape.residual` describes. If all kinks are in one layer, it is at most the distance from
        the Clarke subdifferential. inf if the speed is 0.
    converged : bool
        Whether the residual is at most ``rtol``. This does not prove a maximum, not even a local one.
    weight_rank_one : ndarray, (L,)
        sum_{i >= 2} s_i^2 / sum_i s_i^2 of W_l; 0 for rank one.
    activation_rank_one : ndarray, (L - 1,)
        The same of sigma(Z_l), the activations of all samples; NaN where they are all 0.
    nonlinearity : ndarray, (L - 1,)
        ||sigma(Z_l) - Z_l||_F^2 / ||Z_l||_F^2; NaN where Z_l is 0.
    kinks : int
        Number of pairs of a neuron and a sample with preactivation 0 that affect the gradient; parallel neurons count
        once.
    steps : int
        Number of projected steps.
    x, g : Tensor
        The data, (N, d_in), and G, (N, d_out), float64.
    """

    speed: float
    network: MLP
    speeds: Array
    residual: float
    converged: bool
    weight_rank_one: Array
    activation_rank_one: Array
    nonlinearity: Array
    kinks: int
    steps: int
    x: Tensor = field(repr=False)
    g: Tensor = field(repr=False)

    @property
    def depth(self) -> int:
        """L."""
        return self.network.depth

    def _content(self) -> list[Part]:
        """Return the speed, the residual and a table of the layers."""
        state = "converged" if self.converged else "not converged"
        near = int((self.speeds >= self.speed * (1 - 1e-3)).sum()) if self.speed > 0 else 0
        hidden = [*zip(self.activation_rank_one, self.nonlinearity, strict=True), (None, None)]
        rows = [
            {"layer": layer, "W: beyond rank one": w, "activations: beyond rank one": a, "nonlinearity": bent}
            for layer, (w, (a, bent)) in enumerate(zip(self.weight_rank_one, hidden, strict=True), 1)
        ]
        return [
            f"escape direction of depth {self.depth}, widths {self.network.widths}: speed {self.speed:.9g}",
            f"residual {self.residual:.1e} ({state}), {self.kinks} kinks; "
            f"{near} of {len(self.speeds)} starts within 0.1 percent",
            Table("Layers: distance from rank one and from linear", rows),
        ]


def speed(net: nn.Module, x: Tensor | Array, g: Tensor | Array) -> float:
    """Return the escape speed s = -L0 = -sum(G * f(X)) of a network scaled to the sphere ||theta||^2 = L.

    On the ray through a network, L0 = -s (r / sqrt(L))^L at norm r. Gradient flow stays on the ray only for an escape
    direction, with s the rate in T37.

    Parameters
    ----------
    net : MLP or torch.nn.Sequential
        Without biases; any nonzero norm.
    x, g : Tensor or ndarray
        X, (N, d_in), and G, (N, d_out), the gradient of the loss at zero output (:func:`output_gradient`).

    Returns
    -------
    float
        Negative if the loss increases along the ray.

    Raises
    ------
    TypeError
        If the network is not a chain of linear layers with one positively homogeneous activation.
    ValueError
        If it has biases, x or g is zero, sizes differ, or ||X|| ||G|| is out of the range of float64 (RangeError).

    Notes
    -----
    Source: T36; Bantzis2025, section 2.2. On the unit sphere L0 = -s L^{-L/2} (E2).

    Examples
    --------
    >>> import bnrank, torch
    >>> x, g = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0], [0.5]])
    >>> net = bnrank.networks.from_layers([torch.tensor([[7.0, 0.0]]), torch.tensor([[7.0]])])
    >>> round(speed(net, x, g), 12)
    3.0
    """
    x_, g_ = reading.data(x, g)
    weights, slope = reading.network(net, x_.shape[1], g_.shape[1])
    x_, g_, units = reading.scaled(x_, g_)
    *_, output = preactivations(weights, x_, slope)
    return -float((output * g_.T).sum()) * units


def preactivations(weights: Sequence[Array], x: Array, slope: float) -> list[Array]:
    """Return Z_1, ..., Z_L, (n_l, N)."""
    result = [weights[0] @ x.T]
    for w in weights[1:]:
        result.append(w @ np.where(result[-1] > 0, result[-1], slope * result[-1]))
    return result


def measures(weights: Sequence[Array], x: Array, slope: float) -> dict[str, Array]:
    """Return the quantities that T38 bounds, as :class:`EscapeDirection` names them, for W_1, ..., W_L."""
    hidden = preactivations(weights, x, slope)[:-1]
    active = [np.where(z > 0, z, slope * z) for z in hidden]
    return {
        "weight_rank_one": np.array([_beyond_rank_one(w) for w in weights]),
        "activation_rank_one": np.array([_beyond_rank_one(a) for a in active]),
        "nonlinearity": np.array([_share(a - z, z) for a, z in zip(active, hidden, strict=True)]),
    }


def _beyond_rank_one(matrix: Array) -> float:
    values = np.linalg.svd(matrix, compute_uv=False)
    return _share(values[1:], values)


def _share(part: Array, whole: Array) -> float:
    size = float(np.abs(whole).max(initial=0.0))
    if size == 0:
        return float("nan")
    return float(((part / size) ** 2).sum() / ((whole / size) ** 2).sum())


def deepen(
    net: EscapeDirection | nn.Module,
    depth: int,
    x: Tensor | np.ndarray | None = None,
    g: Tensor | np.ndarray | None = None,
) -> MLP:
    """Return a deeper ReLU network with the speed of an escape direction, rank one from layer L - 1 on (T39).

    L0(theta) = Tr[G^T f_theta(X)] is the leading-order loss near the origin, where G is the gradient of the loss at
    zero output, and the speed is s = -L0 on the sphere ||theta||^2 = L. One neuron of the last hidden layer is kept,
    with W_L and W_{L-1} of norm sqrt(sum_i |W_L[:, i]| |W_{L-1}[i, :]|), followed by layers of one neuron of weight 1,
    and ||theta||^2 = ``depth``. The neuron that is kept is

    - with data, from an :class:`EscapeDirection` or as ``x`` and ``g``: the one whose contribution to L0, with its
      weights normalized, is lowest. The speed does not decrease, for any network;
    - without data: the one with the largest |W_L[:, i]| |W_{L-1}[i, :]|. At an escape direction all normalized
      contributions are equal, so no data are needed; for other networks the speed may decrease.

    Parameters
    ----------
    net : EscapeDirection, MLP or torch.nn.Sequential
        ReLU, without biases, of depth at least 2.
    depth : int
        New depth, at least that of the network.
    x, g : Tensor or ndarray, optional
        X, (N, d_in), and G, (N, d_out); both or neither.

    Returns
    -------
    MLP
        float64, widths n_0, ..., n_{L-2}, 1, ..., 1, d_out.

    Raises
    ------
    TypeError, ValueError
        If the network has biases, another activation or no hidden layer, is zero, or is deeper than ``depth``; with
        data, also if its speed is not positive. Without data the speed is unknown and not checked.

    Notes
    -----
    Source: T39 with the pair of E18; Bantzis2025, Proposition 3.2. Leaky activations are not supported: each layer of
    weight 1 would change negative values again.

    Examples
    --------
    >>> import bnrank, torch
    >>> task = bnrank.tasks.circle(dtype=torch.float64)
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]) / 2
    >>> signs = torch.tensor([[1.0, -1.0, 1.0, -1.0]]) / 2
    >>> deep = deepen(bnrank.networks.from_layers([rows, signs, -torch.ones(1, 1)]), 6)
    >>> deep.widths, round(-float((-task.y * deep(task.x)).sum().detach()), 12)
    ([2, 4, 1, 1, 1, 1, 1], 0.5)
    """
    if isinstance(net, EscapeDirection):
        x, g, net = net.x if x is None else x, net.g if g is None else g, net.network
    chain = read_chain(net)
    got = f"biases: {bool(chain.biases)}, slope {chain.slope:g}, depth {chain.depth}"
    fits = not chain.biases and chain.slope == 0 and chain.depth >= 2
    validation.expect(fits, "net", got, "a ReLU network without biases of depth at least 2")
    depth = validation.depth(depth, chain.depth)
    validation.expect((x is None) == (g is None), "x, g", "one of the two", "both or neither")
    to_sphere = (chain.depth / chain.norm) ** 0.5 if chain.norm else 1.0
    *rest, before, last = [w.cpu() * to_sphere for w in chain.weights]
    sizes = last.norm(dim=0) * before.norm(dim=1)
    if x is None or g is None:
        kept = int(sizes.argmax())
        validation.expect(float(sizes[kept]) > 0, "net", "a network that is zero", "an escape direction")
    else:
        a = validation.samples(x, "x", features=chain.weights[0].shape[1]).detach().to("cpu", torch.float64)
        at_outputs = validation.samples(g, "g", features=len(last)).detach().to("cpu", torch.float64)
        validation.expect(len(at_outputs) == len(a), "g", f"{len(at_outputs)} samples", f"as many as x has, {len(a)}")
        for weight in rest:
            a = torch.relu(a @ weight.T)
        contributions = ((at_outputs @ last) * torch.relu(a @ before.T)).sum(0)
        loss = float(contributions.sum())
        validation.expect(loss < 0, "net", f"L0 = {loss:.6g} on x and g", "it below 0")
        normalized = torch.where(sizes > 0, contributions / sizes.clamp(min=torch.finfo(torch.float64).tiny), torch.inf)
        kept = int(normalized.argmin())
    root = sizes.sum().sqrt()
    row, column = before[kept] / before[kept].norm(), last[:, kept] / last[:, kept].norm()
    ones = [torch.ones(1, 1, dtype=torch.float64)] * (depth - chain.depth)
    weights = [*rest, root * row[None], *ones, root * column[:, None]]
    scale = (depth / sum(float((w * w).sum()) for w in weights)) ** 0.5
    return from_layers([w * scale for w in weights])
