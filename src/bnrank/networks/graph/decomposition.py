"""Networks unrolled into trees with weights +1 and -1 (Lemma 1 of LeJegelka2022)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.graph import drawing
from bnrank.networks.graph.wiring import Ints, Wiring, propagate

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class SignTree:
    """The network mu of Lemma 1, with f(x; w) = mu(h(x; w)): one tree per output, with weights +1 and -1.

    The value of a node is sigma_s(sum over its children of sign times value). The leaves hold the entries of h, the
    roots the outputs. Each inner node represents a path from a vertex of the graph to an output. It has the slope of
    that vertex, and its sign is the sign of the first edge of the path. A leaf is attached to the node of a complete
    path. Its sign is that of the product of the path's weights and cancels the signs in h_p = x_p prod_e w_e. The tree
    therefore depends on the weights only through their signs.

    Two trees are equal if their parents, signs, slopes and leaves are equal.

    Attributes
    ----------
    parents : ndarray
        Parent of each node, shape (nodes,); -1 for the roots. Nodes are sorted by depth.
    signs : ndarray
        Weight +1 or -1 of the edge to the parent, shape (nodes,); 1 for the roots.
    slopes : ndarray
        Slope of each node, shape (nodes,); 1 for the leaves.
    leaves : ndarray
        The node that holds h_p, for every path p, shape (paths,).
    starts : ndarray
        First node of each depth, followed by the number of nodes, shape (depths + 1,).
    labels : tuple
        The vertex at which each node's path starts; None for leaves.

    Notes
    -----
    This implementation uses sgn(0) = +1; any other choice is equally valid. If w_e = 0, every path through e has
    h_p = 0, so the node whose path starts with e has the value sigma(0) = 0, and its sign has no effect.

    sigma_s can have any slope, including negative ones: only sigma_s(c z) = c sigma_s(z) for c >= 0 is used.

    Source: LeJegelka2022, Lemma 1 and Appendix B; T42.

    Examples
    --------
    relu(-3 x) - relu(2 x) has h = (-2 x, -3 x), and mu(h) = -relu(-h_0) + relu(h_1):

    >>> import networkx as nx, torch
    >>> from bnrank.networks.graph import NeuronGraph
    >>> g = nx.DiGraph()
    >>> g.add_weighted_edges_from([("x", "u", 2.0), ("x", "v", -3.0), ("u", "y", -1.0), ("v", "y", 1.0)])
    >>> tree = NeuronGraph.from_networkx(g).decompose()
    >>> tree
    SignTree(1 outputs, 2 paths, 7 nodes)
    >>> tree.signs.tolist(), tree.parents.tolist()
    ([1, -1, 1, 1, -1, -1, -1], [-1, 0, 0, 1, 2, 3, 4])
    >>> tree(torch.tensor([[-2.0, -3.0], [2.0, 3.0]])).tolist()
    [[-2.0], [3.0]]
    """

    parents: Ints
    signs: Ints
    slopes: NDArray[np.float64]
    leaves: Ints
    starts: Ints
    labels: tuple[Hashable | None, ...]

    def __call__(self, h: Tensor | NDArray[Any]) -> Tensor:
        """Return mu(h), float64 (N, outputs), for h of shape (N, paths); gradients flow to h."""
        h = validation.samples(h, "h", features=len(self.leaves)).double()
        start = h.new_zeros(len(self), len(h)).index_copy(0, torch.from_numpy(self.leaves), h.T)
        inner = np.flatnonzero(self.parents >= 0)
        signs, slopes = torch.from_numpy(self.signs[inner]), torch.from_numpy(self.slopes)
        values = propagate(start, inner, self.parents[inner], signs, slopes, len(self.starts) - 2 - self.depths)
        return values[: self.starts[1]].T

    @property
    def depths(self) -> Ints:
        """Number of edges from every node to its root, (nodes,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def __eq__(self, other: object) -> bool:
        """Return whether another tree has the same parents, signs, slopes and leaves."""
        if not isinstance(other, SignTree):
            return NotImplemented
        names = ("parents", "signs", "slopes", "leaves")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """Return the number of nodes, including leaves."""
        return len(self.parents)

    def __repr__(self) -> str:
        return f"SignTree({self.starts[1]} outputs, {len(self.leaves)} paths, {len(self)} nodes)"

    def to_networkx(self) -> nx.DiGraph:
        """Return the trees as a networkx graph that `NeuronGraph.from_networkx` reads: mu as a network.

        Nodes keep their numbers. "input" is the index of the path, and "label" the vertex at which the node's path
        starts.
        """
        import networkx as nx

        tree = nx.DiGraph()
        for node, slope in enumerate(self.slopes.tolist()):
            tree.add_node(node, slope=slope, label=self.labels[node])
        nx.set_node_attributes(tree, {node: p for p, node in enumerate(self.leaves.tolist())}, "input")
        nx.set_node_attributes(tree, {node: node for node in range(self.starts[1])}, "output")
        for node, (parent, sign) in enumerate(zip(self.parents.tolist(), self.signs.tolist(), strict=True)):
            if parent >= 0:
                tree.add_edge(node, parent, weight=float(sign), learnable=False)
        return tree

    def draw(self, axes: Any = None) -> Axes:
        """Draw the trees from left (entries of h) to right (outputs); see `NeuronGraph.draw`."""
        columns = self.depths.max() - self.depths
        columns[self.leaves] = 0  # entries of h in one column
        rows, names = np.zeros(len(self)), list(self.labels)
        for path, leaf in enumerate(self.leaves.tolist()):
            rows[leaf], names[leaf] = -path, f"$h_{{{path}}}$"
        inner = np.flatnonzero(self.parents >= 0)
        children = np.bincount(self.parents[inner], minlength=len(self))
        for node in inner[::-1].tolist():  # children come after their parents, whose height is their mean
            rows[self.parents[node]] += rows[node] / children[self.parents[node]]
        ends = np.stack([inner, self.parents[inner]], 1)
        values = (self.signs[inner].astype(np.float64), np.ones(len(inner), bool), self.slopes)
        return drawing.draw_neurons((columns, rows), ends, *values, names, axes)


def sign_tree(wiring: Wiring, weights: NDArray[np.float64], slopes: NDArray[np.float64]) -> SignTree:
    """Return the sign tree of a graph with these weights and slopes."""
    tree = wiring.unrolled
    signs = np.where(weights < 0, -1, 1)
    own = np.append(signs, 1)[tree.edges]
    own[tree.leaves] = tree.products(torch.from_numpy(signs.astype(np.float64))).numpy().astype(np.int64)
    slopes = np.append(slopes, 1.0)[tree.vertices]
    names: tuple[Hashable | None, ...] = (*wiring.vertices, None)
    labels = tuple(names[vertex] for vertex in tree.vertices)
    return SignTree(tree.parents, cast(Ints, own.astype(np.int64)), slopes, tree.leaves, tree.starts, labels)
