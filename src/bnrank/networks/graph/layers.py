"""The computation graph of a module, an operation per node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from bnrank.networks.functional import unwrap
from bnrank.networks.graph import drawing, expand
from bnrank.networks.graph.decomposition import SignTree
from bnrank.networks.graph.neurons import PATH_LIMIT, NeuronGraph
from bnrank.networks.graph.nodes import Graph
from bnrank.networks.graph.wiring import Vertex

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class LayerGraph(Graph):
    """The computation graph of a module, in an order in which every node comes after those it takes values from.

    Attributes
    ----------
    nodes : tuple of Node
        The first is the only "input". Nodes that do not reach the output are left out.
    output : str
        The node whose value the module returns.
    trained : frozenset of str
        Names of the parameters that require a gradient; the others are fixed numbers.
    outside : tuple of Skipped
        What is outside the theory; its nodes have the operation "outside".
    parameters : mapping of str to Tensor
        The module's parameters when it was traced, detached: the same memory, not copies.
    name : str
        The module's class.
    """

    def neurons(self, net: nn.Module | None = None, max_edges: int = expand.EDGE_LIMIT) -> NeuronGraph:
        """Return the graph with a vertex per neuron, for small networks (theory.md T42).

        Parameters
        ----------
        net : torch.nn.Module, optional
            The network to take the weights from. Default: the weights it was traced with.
        max_edges : int
            Limit on the edges, counted before vertices are merged.

        Raises
        ------
        ValueError
            If a node is outside the theory or takes maxima, or there are more edges than ``max_edges``.
        """
        held = self.parameters
        if net is not None:
            held = {name: p.detach() for name, p in unwrap(net).named_parameters()}
        return expand.neurons(self, held, max_edges)

    def count(self) -> int:
        """Return the number of paths from inputs to outputs, neuron by neuron, without enumerating them."""
        return self.neurons().count()

    def paths(self, max_paths: int = PATH_LIMIT) -> tuple[tuple[Vertex, ...], ...]:
        """Return the paths from inputs to outputs, neuron by neuron; see `NeuronGraph.paths`."""
        return self.neurons().paths(max_paths)

    def enumerate(self, x: Tensor | np.ndarray) -> Tensor:
        """Return the path enumeration h(x; w); see `NeuronGraph.enumerate`. x is (N, inputs), flattened."""
        return self.neurons().enumerate(x)

    def decompose(self) -> SignTree:
        """Return mu, the tree of signs with f(x; w) = mu(h(x; w)) (theory.md T42); see `NeuronGraph.decompose`."""
        return self.neurons().decompose()

    def draw(self, axes: Any = None) -> Axes:
        """Draw the operations from left to right, in the order of execution, colored by kind.

        A value that is used again later is drawn as an arc. The shape of a value is below its operation, where it
        changes. Graphs of more than 9 steps have upright labels.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Default: new axes.

        Returns
        -------
        matplotlib axes
        """
        return drawing.draw(self, axes)
