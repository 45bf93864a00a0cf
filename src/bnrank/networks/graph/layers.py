"""The computation graph of a module, an operation per node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import unwrap
from bnrank.networks.reasons import Skipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bnrank.networks.graph.decomposition import SignTree
    from bnrank.networks.graph.neurons import NeuronGraph
    from bnrank.networks.graph.wiring import Vertex

__all__ = ["OPERATIONS", "LayerGraph", "Node"]

OPERATIONS = {
    "input": "the module's input",
    "linear": "W a + b along the last dimension",
    "conv": "convolution, channels along the first dimension",
    "activation": "sigma_s, entry by entry",
    "add": "sum of the inputs, each times a number",
    "diagonal": "entry by entry times a learnable vector",
    "average": "mean, sum or average pooling: fixed weights along some dimensions, the same for all others",
    "maximum": "max pooling: positively homogeneous, the same for every channel",
    "index": "entries of the inputs in another order: flatten, reshape, permute, cat, chunk, pad",
    "outside": "anything else: outside the theory",
}
"""What a node does."""


@dataclass(frozen=True)
class Node:
    """An operation and the value it gives.

    Attributes
    ----------
    name : str
        Unique, e.g. "layers_0".
    op : str
        One of `OPERATIONS`.
    inputs : tuple of str
        Names of the nodes whose values it takes, in order; the same one may come twice.
    shape : tuple of int
        Of the value of one sample, without the dimension of the samples.
    module : str
        The submodule's name, "" for a function.
    weight, bias : str
        Names of its parameters as in ``module.named_parameters()``, "" for none. A "linear" weight is (out, in) unless
        ``transposed``, a "conv" weight (out, in / groups, *kernel), a "diagonal" weight is reshaped to
        ``weight_shape`` and broadcasts against the values (N, *shape).
    transposed : bool
        Of a "linear": its weight is (in, out), as in ``a @ W``.
    weight_shape : tuple of int
        Of a "diagonal": the shape in which its weight broadcasts, e.g. (1, C, 1, 1).
    slope : float
        s of an activation sigma_s, any number: 0 is ReLU, 1 the identity, -1 the absolute value; NaN where learned
        (PReLU; then ``weight`` names it, one number or one per channel, the first dimension).
    factors : tuple of float
        Of an "add", one per input: (1, 1) is a sum, (1, -1) a difference, (2,) twice the input.
    index : ndarray or None
        Of an "index": for every entry of the value, flattened, the entry of the inputs (flattened and laid end to end)
        it is equal to, or -1 where it is 0 whatever the input.
    stride, padding, dilation, kernel : tuple of int
        Of a "conv", and of pooling with a window of its own, per spatial dimension; empty for the mean over dimensions
        and adaptive pooling, which ``windows`` describes.
    padding_mode : str
        "zeros" or "circular" of a "conv". Reflected and replicated padding, and uneven padding, are an "index" before a
        "conv" without padding.
    groups : int
        Of a "conv".
    dims : tuple of int
        Of an "average" or "maximum": the dimensions of one sample's input that it acts along; all others, the channels
        among them, are left alone.
    windows : ndarray or None
        Of an "average" or "maximum": (positions out, positions in), positions along ``dims``, flattened in order. The
        weight of every position of the input in every position of the value: for one sample's input a the value is
        ``a.movedim(dims, last).flatten(-len(dims)) @ windows.T``, reshaped; for "maximum" 1 where the position is in
        the window. None where it was too large to build (more than 2^22 entries).
    held : tuple of str
        Names of the parameters that an "outside" uses.
    text : str
        What it is called in drawings and reasons, e.g. "Linear(3, 5)".
    reason : str
        Of an "outside", why.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    module: str = ""
    weight: str = ""
    bias: str = ""
    slope: float = 1.0
    factors: tuple[float, ...] = ()
    index: np.ndarray | None = field(default=None, repr=False, compare=False)
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    padding_mode: str = "zeros"
    groups: int = 1
    windows: np.ndarray | None = field(default=None, repr=False, compare=False)
    text: str = ""
    reason: str = ""
    transposed: bool = False
    weight_shape: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of entries of the value of one sample."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class LayerGraph:
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

    nodes: tuple[Node, ...]
    output: str
    trained: frozenset[str]
    outside: tuple[Skipped, ...] = ()
    parameters: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    name: str = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> Node:
        if name not in self._by_name:
            raise KeyError(f"no node {name!r}{validation.suggest(name, self._by_name)}")
        return self._by_name[name]

    @property
    def _by_name(self) -> Mapping[str, Node]:
        if "_names" not in self.__dict__:
            object.__setattr__(self, "_names", {node.name: node for node in self.nodes})
        return self.__dict__["_names"]

    def consumers(self, name: str) -> tuple[Node, ...]:
        """Return the nodes that take the value of a node, each once."""
        return tuple(node for node in self.nodes if name in node.inputs)

    def neurons(self, net: nn.Module | None = None, limit: int = 20_000) -> NeuronGraph:
        """Return the graph with a vertex per neuron, for small networks (T42).

        Parameters
        ----------
        net : torch.nn.Module, optional
            The network to take the weights from; those it was traced with if none is given.
        limit : int
            Most edges, counted before vertices are merged.

        Raises
        ------
        ValueError
            If a node is outside the theory or takes maxima, or there are more edges than ``limit``.
        """
        from bnrank.networks.graph import expand

        held = self.parameters
        if net is not None:
            held = {name: p.detach() for name, p in unwrap(net).named_parameters()}
        return expand.neurons(self, held, limit)

    def count(self) -> int:
        """Return the number of paths from inputs to outputs, neuron by neuron, without enumerating them."""
        return self.neurons().count()

    def paths(self, limit: int = 10**6) -> tuple[tuple[Vertex, ...], ...]:
        """Return the paths from inputs to outputs, neuron by neuron; see `NeuronGraph.paths`."""
        return self.neurons().paths(limit)

    def enumerate(self, x: Tensor | np.ndarray) -> Tensor:
        """Return the path enumeration h(x; w); see `NeuronGraph.enumerate`. x is (N, inputs), flattened."""
        return self.neurons().enumerate(x)

    def decompose(self) -> SignTree:
        """Return mu, the tree of signs with f(x; w) = mu(h(x; w)) (T42); see `NeuronGraph.decompose`."""
        return self.neurons().decompose()

    def draw(self, axes: Any = None) -> Axes:
        """Draw the operations from left to right, in the order in which they run, colored by kind.

        A value that is used again later is an arc over what lies between. Below an operation stands the shape of its
        value, where it changes. Graphs of more than 9 steps have upright labels.

        Parameters
        ----------
        axes : matplotlib axes, optional
            Where to draw; new ones of a size that fits by default.

        Returns
        -------
        matplotlib axes
        """
        from bnrank.networks.graph import drawing

        return drawing.draw(self, axes)

    def __str__(self) -> str:
        """Return a table: every node, what it takes, what it gives, its parameters; then what is outside."""
        rows = [("node", "does", "takes", "gives", "parameters")]
        for node in self.nodes:
            does = node.text if node.op in ("input", "outside") else f"{node.op} {node.text}".strip()
            held = [node.weight, node.bias] if node.op != "outside" else list(node.held)
            names = ", ".join(name if name in self.trained else f"{name} (fixed)" for name in held if name)
            rows.append((node.name, does, ", ".join(node.inputs), "x".join(map(str, node.shape)) or "1", names))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [f"{self.name}: {len(self)} nodes"]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        if self.outside:
            lines += ["outside the theory:", *(f"  {o.name} ({o.type}): {o.reason}" for o in self.outside)]
        return "\n".join(lines)
