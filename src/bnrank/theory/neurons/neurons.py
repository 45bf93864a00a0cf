"""Feedforward networks as weighted DAGs with one vertex per neuron (T42)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank.networks.graph.layers import LayerGraph
from bnrank.theory.neurons import drawing
from bnrank.theory.neurons.expansion import expand
from bnrank.theory.neurons.wiring import Edge, Ints, Origin, Vertex, Wiring

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

_DIGRAPH = "a networkx.DiGraph; keep parallel edges apart by a vertex of slope 1 in between"
CHUNK_ENTRIES = 2**24  # maximum number of (edges, samples) entries evaluated at once
EDGE_LIMIT = 20_000
PATH_LIMIT = 10**6


@dataclass(frozen=True, eq=False)
class NeuronGraph:
    """A feedforward network as a weighted DAG.

    The value of a vertex v is sigma_s(sum over its in-edges (u, v) of w_uv times the value of u), with sigma_s(z) = z
    for z > 0 and s z otherwise. An input has the value sigma_s(x_i), or sigma_s(1) if it is the constant from which
    biases come. A path leads from an input (or the constant) to an output.

    Vertices from which no output is reachable are kept, but no path contains them.

    Attributes
    ----------
    vertices : tuple
        Distinct hashable names.
    edges : tuple of (source, target)
        Distinct edges without cycles.
    weights : array_like
        Finite weights, shape (edges,); stored as a read-only float64 array.
    slopes : array_like
        Finite slope s of every vertex, shape (vertices,): 1 linear, 0 ReLU, -1 absolute value.
    inputs : mapping
        Maps every vertex without in-edges to a coordinate of x or to "constant".
    outputs : tuple
        Vertices whose values the network returns, in order; they can have out-edges.
    learnable : array_like of bool, optional
        Whether each weight is trained, shape (edges,). Default: all.
    origins : tuple of (parameter name, flat index) or None, optional
        The parameter entry of each weight. Edges with the same origin share their weight, as in a convolution.
    wiring : Wiring
        Order, levels and path counts; computed.

    Raises
    ------
    TypeError, ValueError
        If there is a cycle (named in the error), an edge with an unknown vertex, a non-finite weight or slope, an input
        with in-edges, a vertex without in-edges that is not an input, no output, or edges with the same origin and
        different weights.

    Examples
    --------
    >>> import networkx as nx, torch
    >>> g = nx.DiGraph()
    >>> g.add_weighted_edges_from([("x1", "h", 2.0), ("x2", "h", -3.0), ("h", "y", -0.5), ("x1", "y", 1.0)])
    >>> graph = NeuronGraph.from_networkx(g)
    >>> x = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    >>> graph(x).tolist()
    [[1.0], [1.5]]
    >>> graph.count(), graph.paths()
    (3, (('x1', 'y'), ('x1', 'h', 'y'), ('x2', 'h', 'y')))
    >>> graph.enumerate(x).tolist()
    [[1.0, -1.0, 1.5], [3.0, -3.0, 1.5]]
    >>> graph.decompose()(graph.enumerate(x)).tolist()
    [[1.0], [1.5]]

    Source: LeJegelka2022, section 2 and Definition 4; T42.
    """

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]
    weights: NDArray[np.float64]
    slopes: NDArray[np.float64]
    inputs: Mapping[Vertex, int | str]
    outputs: tuple[Vertex, ...]
    learnable: NDArray[np.bool_] = field(default=cast(Any, None))
    origins: tuple[Origin | None, ...] = ()
    wiring: Wiring = field(default=cast(Any, None), repr=False)

    def __post_init__(self) -> None:
        """Check everything and freeze the arrays."""
        put = object.__setattr__
        put(self, "vertices", tuple(self.vertices))
        put(self, "edges", tuple((u, v) for u, v in self.edges))
        put(self, "outputs", tuple(self.outputs))
        put(self, "inputs", MappingProxyType(dict(self.inputs)))
        put(self, "weights", _frozen(self.weights, "weights", len(self.edges), "edge"))
        put(self, "slopes", _frozen(self.slopes, "slopes", len(self.vertices), "vertex"))
        learnable = np.ones(len(self.edges)) if self.learnable is None else self.learnable
        put(self, "learnable", _frozen(learnable, "learnable", len(self.edges), "edge", np.bool_))
        put(self, "origins", tuple(self.origins) or (None,) * len(self.edges))
        if self.wiring is None:
            put(self, "wiring", Wiring(self.vertices, self.edges, self.inputs, self.outputs))
        self._check_origins()

    @classmethod
    def from_operations(cls, graph: LayerGraph, max_edges: int = EDGE_LIMIT) -> NeuronGraph:
        """Return the weighted DAG of the neurons of a layer graph, with its current weights (T42).

        The vertices are entries of values, named (node, flat index), and "constant", the source of the biases. Entries
        of parameters become edges with their origin, learnable if the parameter is trained. Sums, averages and
        reorderings become fixed edges. A vertex that only copies a value is merged with its neighbor: a layer and the
        activation after it form one vertex, named after the layer. Entries that are 0 for every input, and entries from
        which no output is reachable, are omitted. Parallel edges are separated by a vertex (node, flat index, k) of
        slope 1. Learned slopes (PReLU) become fixed numbers.

        Parameters
        ----------
        graph : LayerGraph
            What `bnrank.graph.trace` returns.
        max_edges : int
            Maximum number of edges before vertices are merged.

        Raises
        ------
        ValueError
            If a node is outside the theory or computes maxima (the error names it), if a parameter is missing or not
            finite, or if there are more than ``max_edges`` edges.

        Examples
        --------
        >>> import bnrank, torch
        >>> operations = bnrank.graph.trace(bnrank.MLP([2, 3, 1], seed=0), torch.zeros(1, 2))
        >>> graph = NeuronGraph.from_operations(operations)
        >>> graph
        NeuronGraph(7 vertices, 13 edges, 13 learnable)
        >>> graph.count()  # 2 * 3 from the inputs, 3 + 1 from the biases
        10

        Source: LeJegelka2022, section 2; T42.
        """
        expected = "a bnrank.graph.LayerGraph"
        validation.expect(isinstance(graph, LayerGraph), "graph", validation.describe(graph), expected, TypeError)
        return cls(**expand(graph, validation.integer(max_edges, "max_edges")))

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph) -> NeuronGraph:
        """Return the network described by a networkx graph.

        Vertex attributes: "slope" (default 0, or 1 for inputs and outputs), "input" (a coordinate of x, or "constant")
        and "output" (index in the output). Edge attributes: "weight" (default 1), "learnable" (default True) and
        "origin" (parameter name and flat index). Other attributes are ignored.

        If no vertex has "input", the inputs are the vertices without in-edges. If no vertex has "output", the outputs
        are the vertices without out-edges. Both are sorted by name (x2 before x10).

        Raises
        ------
        TypeError, ValueError
            As for the class; also for undirected graphs and multigraphs.
        """
        import networkx as nx

        validation.expect(isinstance(graph, nx.Graph), "graph", validation.describe(graph), _DIGRAPH, TypeError)
        kind = "a multigraph" if graph.is_multigraph() else "an undirected graph"
        validation.expect(graph.is_directed() and not graph.is_multigraph(), "graph", kind, _DIGRAPH)
        inputs = _numbered(graph, "input", graph.in_degree())
        places = _numbered(graph, "output", graph.out_degree())
        order = sorted(validation.integer(place, f"output of vertex {v!r}", 0) for v, place in places.items())
        expected = f"0 to {len(order) - 1}, each once"
        validation.expect(order == list(range(len(order))), "output", f"the places {order}", expected)
        slopes = {v: a.get("slope", float(v in inputs or v in places)) for v, a in graph.nodes(data=True)}
        edges = {(u, v): attributes for u, v, attributes in graph.edges(data=True)}
        for edge, attributes in edges.items():
            learnable = attributes.get("learnable", True)
            fits = isinstance(learnable, bool | np.bool_)
            validation.expect(fits, f"learnable of edge {edge!r}", repr(learnable), "True or False", TypeError)
        return cls(
            vertices=tuple(graph.nodes),
            edges=tuple(edges),
            weights=np.array([_number(a.get("weight", 1.0), f"weight of edge {edge!r}") for edge, a in edges.items()]),
            slopes=np.array([_number(slope, f"slope of vertex {v!r}") for v, slope in slopes.items()]),
            inputs=inputs,
            outputs=tuple(sorted(places, key=places.__getitem__)),
            learnable=np.array([a.get("learnable", True) for a in edges.values()], dtype=bool),
            origins=tuple(a.get("origin") for a in edges.values()),
        )

    def to_networkx(self) -> nx.DiGraph:
        """Return the network as a networkx graph with all attributes, the inverse of `from_networkx`."""
        import networkx as nx

        result = nx.DiGraph()
        result.add_nodes_from(zip(self.vertices, ({"slope": slope} for slope in self.slopes.tolist()), strict=True))
        nx.set_node_attributes(result, dict(self.inputs), "input")
        nx.set_node_attributes(result, {vertex: i for i, vertex in enumerate(self.outputs)}, "output")
        columns = zip(self.edges, self.weights.tolist(), self.learnable.tolist(), self.origins, strict=True)
        for edge, weight, learnable, origin in columns:
            result.add_edge(*edge, weight=weight, learnable=learnable, **({"origin": origin} if origin else {}))
        return result

    def with_weights(self, weights: object) -> NeuronGraph:
        """Return the same graph with other weights.

        Parameters
        ----------
        weights : array_like or mapping
            One weight per edge, shape (edges,), or a mapping from edges to numbers or from parameter names (as in
            ``origins``) to tensors. With a mapping, other weights are unchanged.
        """
        if not isinstance(weights, Mapping):
            return replace(self, weights=_array(weights))
        changed, names = self.weights.copy(), {origin[0] for origin in self.origins if origin is not None}
        for key, value in weights.items():
            if not isinstance(key, str):
                changed[self._edge(key, "weights")] = float(cast(Any, value))
                continue
            near = validation.suggest(key, names)
            validation.expect(key in names, "weights", f"the name {key!r}", f"a parameter of this graph{near}")
            flat, places = _array(value).reshape(-1), {e: o[1] for e, o in enumerate(self.origins) if o and o[0] == key}
            got = f"{len(flat)} entries, the graph uses entry {max(places.values())}"
            validation.expect(max(places.values()) < len(flat), f"weights[{key!r}]", got, "all of them")
            changed[list(places)] = flat[list(places.values())]
        return replace(self, weights=changed)

    def __call__(self, x: Tensor | NDArray[Any], weights: Tensor | None = None) -> Tensor:
        """Return f(x; w), float64 (N, outputs).

        Parameters
        ----------
        x : Tensor or ndarray
            One sample per row, shape (N, coordinates), or (N, ...) with the same number of entries.
        weights : Tensor, optional
            Weights used instead of those of the graph, shape (edges,); gradients flow to them.
        """
        x, weights, slopes = self._points(x), self._factors(weights), torch.tensor(self.slopes)
        parts = x.split(max(1, CHUNK_ENTRIES // max(1, len(self.edges))))
        return torch.cat([self.wiring.evaluate(part, weights, slopes) for part in parts])

    def count(self, output: Vertex | None = None) -> int:
        """Return the exact number of paths to all outputs or to one output, by dynamic programming."""
        if output is None:
            return sum(self.wiring.ending[v] for v in self.wiring.outputs.tolist())
        outputs = ", ".join(map(repr, self.outputs[:8]))
        validation.expect(output in self.outputs, "output", repr(output), f"one of {outputs}")
        return self.wiring.ending[self.wiring.position[output]]

    def through(self, edge: Edge) -> int:
        """Return the exact number of paths that contain an edge, by dynamic programming."""
        e = self._edge(edge, "edge")
        return self.wiring.ending[self.wiring.sources[e]] * self.wiring.reaching[self.wiring.targets[e]]

    def paths(self, max_paths: int = PATH_LIMIT) -> tuple[tuple[Vertex, ...], ...]:
        """Return all paths in the order of `enumerate`, each as a tuple of vertices from input to output.

        Raises
        ------
        ValueError
            If there are more than ``max_paths`` paths.
        """
        self._check_count(max_paths)
        tree, paths = self.wiring.unrolled, []
        for node in tree.leaves:
            path = []
            while (node := tree.parents[node]) >= 0:
                path.append(self.vertices[tree.vertices[node]])
            paths.append(tuple(path))
        return tuple(paths)

    def enumerate(self, x: Tensor | NDArray[Any], weights: Tensor | None = None, max_paths: int = PATH_LIMIT) -> Tensor:
        """Return the path enumeration h(x; w), float64 (N, paths): the path's input times the product of its weights.

        Parameters
        ----------
        x, weights
            As for calling the graph.
        max_paths : int
            Limit on the number of paths.

        Raises
        ------
        ValueError
            If there are more than ``max_paths`` paths.

        Source: LeJegelka2022, Definition 4.
        """
        self._check_count(max_paths)
        x, tree = self._points(x), self.wiring.unrolled
        coordinates = self.wiring.coordinates[tree.vertices[tree.parents[tree.leaves]]]
        ones = torch.cat([x, x.new_ones(len(x), 1)], 1)
        return ones[:, torch.from_numpy(coordinates)] * tree.products(self._factors(weights))

    def decompose(self, max_paths: int = PATH_LIMIT) -> SignTree:
        """Return the network mu with weights +1 and -1 such that f(x; w) = mu(h(x; w)), with h as in `enumerate`.

        The construction unrolls the graph into a tree and moves absolute values toward the inputs. The result depends
        on the weights only through their signs.

        Raises
        ------
        ValueError
            If there are more than ``max_paths`` paths.

        Source: LeJegelka2022, Lemma 1; T42.
        """
        self._check_count(max_paths)
        tree, signs = self.wiring.unrolled, np.where(self.weights < 0, -1, 1)
        own = np.append(signs, 1)[tree.edges]
        own[tree.leaves] = tree.products(torch.from_numpy(signs)).numpy()
        inner = np.flatnonzero(tree.depths)
        names = (*self.vertices, None)
        return SignTree(
            vertices=tuple(range(len(own))),
            edges=tuple(zip(inner.tolist(), tree.parents[inner].tolist(), strict=True)),
            weights=own[inner],
            slopes=np.append(self.slopes, 1.0)[tree.vertices],
            inputs={leaf: path for path, leaf in enumerate(tree.leaves.tolist())},
            outputs=tuple(range(len(self.outputs))),
            learnable=np.zeros(len(inner), bool),
            parents=tree.parents,
            signs=own,
            leaves=tree.leaves,
            starts=np.searchsorted(tree.depths, np.arange(tree.depths.max() + 2)),
            labels=tuple(names[vertex] for vertex in tree.vertices),
        )

    def is_cut(self, edges: Iterable[Edge]) -> bool:
        """Return whether every path, including those from the constant, contains exactly one of the edges.

        T46 needs this; Definition 7 of LeJegelka2022 requires less (E20).
        """
        return self.wiring.is_cut({self._edge(edge, "edges") for edge in edges})

    def cuts(self) -> tuple[frozenset[Edge], ...]:
        """Return nested cuts of learnable edges, from the inputs to the outputs.

        The k-th cut consists of the edges from levels below k to levels k and above. The level of a vertex is the
        length of the longest path to it, after contracting fixed edges and the cycles that this creates. For a fully
        connected network with biases, the l-th cut is therefore W_l, b_l, b_{l+1}, ..., b_L. The result is empty if
        fixed edges lead from an input to an output. Edges on no path are omitted.

        Source: T46, in place of Definition 7 (E20).
        """
        return self.wiring.level_cuts(self.learnable)

    def layer_invariant(self, cut_a: Iterable[Edge], cut_b: Iterable[Edge]) -> float:
        """Return the difference of the squared norms of two cuts, which is conserved under gradient flow (T46).

        The value is the sum of squared weights of ``cut_a`` minus that of ``cut_b``. A weight shared by several edges
        counts once, and all of its edges on paths must be in the cut, as for a convolution.

        Raises
        ------
        ValueError
            If either set is not a cut, or contains an edge that is not learnable or shares its weight with an edge
            outside the cut.
        """
        return self._squares(cut_a, "cut_a") - self._squares(cut_b, "cut_b")

    def _squares(self, cut: Iterable[Edge], name: str) -> float:
        """Return the sum of squared weights of a cut."""
        chosen = sorted({self._edge(edge, name) for edge in cut})
        fixed = [self.edges[e] for e in chosen if not self.learnable[e]]
        validation.expect(not fixed, name, f"the edge {fixed[:1]}, which is not learnable", "learnable edges")
        crossed = self.wiring.is_cut(set(chosen))
        validation.expect(crossed, name, f"{len(chosen)} edges that not every path crosses exactly once", "a cut")
        once = {self.origins[e] or e: e for e in chosen}
        for e, origin in enumerate(self.origins):
            if origin in once and e not in chosen and self.through(self.edges[e]):
                shared = f"{origin} with {self.edges[once[origin]]!r}"
                raise ValueError(f"{name}: the edge {self.edges[e]!r} is not in it, but shares {shared}")
        return float(np.sum(self.weights[list(once.values())] ** 2))

    def vertex_invariants(self) -> dict[Vertex, float]:
        """Return sums of squared in-weights minus squared out-weights, conserved under gradient flow (T44), per vertex.

        Includes the vertices that are neither inputs nor outputs and whose edges are all learnable and do not share
        their weights; a bias counts as an in-edge. Conserved quantities of shared weights, as in convolutions, are not
        included.
        """
        wiring, size = self.wiring, self.weights**2
        values = np.bincount(wiring.targets, size, len(self)) - np.bincount(wiring.sources, size, len(self))
        kept = wiring.coordinates < -1
        kept[wiring.outputs] = False
        held = ~self.learnable | self.shared
        kept[wiring.sources[held]] = kept[wiring.targets[held]] = False
        return {self.vertices[v]: float(values[v]) for v in np.flatnonzero(kept)}

    def draw(self, axes: Any = None) -> Axes:
        """Draw the network from left (inputs) to right, with vertices placed by their longest path from an input.

        Edges with positive weights are blue and edges with negative weights orange. Fixed edges are dashed, and the
        line width increases with |w|. Small graphs show names and weights.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Default: new axes.

        Raises
        ------
        ValueError
            If there are more than 2000 edges.
        """
        return drawing.draw_neurons(self.wiring, self.weights, self.learnable, self.slopes, self.vertices, axes)

    def __eq__(self, other: object) -> bool:
        """Return whether another graph has the same vertices, edges and attributes, in the same order."""
        if not isinstance(other, NeuronGraph):
            return NotImplemented
        return self._state == other._state

    @property
    def _state(self) -> list[Any]:
        arrays = (self.weights, self.slopes, self.learnable)
        return [self.vertices, self.edges, self.inputs, self.outputs, self.origins, *(a.tolist() for a in arrays)]

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        """Return the number of vertices."""
        return len(self.vertices)

    def __repr__(self) -> str:
        learned = int(self.learnable.sum())
        return f"NeuronGraph({len(self)} vertices, {len(self.edges)} edges, {learned} learnable)"

    @cached_property
    def shared(self) -> NDArray[np.bool_]:
        """Whether each edge shares its weight with another, (edges,)."""
        uses = Counter(self.origins)
        return np.array([origin is not None and uses[origin] > 1 for origin in self.origins], bool)

    def _check_origins(self) -> None:
        count = len(self.origins)
        validation.expect(count == len(self.edges), "origins", str(count), f"one per edge ({len(self.edges)})")
        first: dict[Origin, int] = {}
        for e, origin in enumerate(self.origins):
            if origin is None:
                continue
            name, pair = f"origin of edge {self.edges[e]!r}", isinstance(origin, tuple) and len(origin) == 2
            validation.expect(pair and isinstance(origin[0], str), name, repr(origin), "(name, flat index)", TypeError)
            validation.integer(origin[1], name, 0)
            other = first.setdefault(origin, e)
            weights, both = self.weights[[other, e]], f"{self.edges[other]!r} and {self.edges[e]!r}"
            got = f"the edges {both}, which share {origin}, but have the weights {weights[0]:g} and {weights[1]:g}"
            validation.expect(weights[0] == weights[1], "weights", got, "equal weights")

    def _edge(self, edge: object, name: str) -> int:
        try:
            return self.wiring.numbers[edge]  # type: ignore[index]
        except (KeyError, TypeError):
            raise ValueError(f"{name}: got {edge!r}, expected an edge (source, target) of this graph") from None

    def _points(self, x: object) -> Tensor:
        x = validation.samples(x, "x", ndim=None)
        return validation.samples(x.flatten(1), "x", features=self.wiring.features).cpu().double()

    def _factors(self, weights: Tensor | None) -> Tensor:
        if weights is None:
            return torch.tensor(self.weights)
        fits = isinstance(weights, Tensor) and weights.shape == (len(self.edges),)
        expected = f"a tensor with one per edge ({len(self.edges)})"
        validation.expect(fits, "weights", validation.describe(weights), expected)
        return weights.double()

    def _check_count(self, max_paths: int) -> None:
        count = self.count()
        shown = str(count) if count < 10**15 else f"about 10^{len(str(count)) - 1}"
        if count > validation.integer(max_paths, "max_paths", 0):
            raise ValueError(f"max_paths: the graph has {shown} paths, more than {max_paths}")


@dataclass(frozen=True, eq=False, repr=False)
class SignTree(NeuronGraph):
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
    >>> from bnrank.theory import NeuronGraph
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

    parents: Ints = field(default=cast(Any, None))
    signs: Ints = field(default=cast(Any, None))
    leaves: Ints = field(default=cast(Any, None))
    starts: Ints = field(default=cast(Any, None))
    labels: tuple[Vertex | None, ...] = ()

    def __call__(self, h: Tensor | NDArray[Any], weights: Tensor | None = None) -> Tensor:
        """Return mu(h), float64 (N, outputs), for h of shape (N, paths); gradients flow to h."""
        return super().__call__(validation.samples(h, "h", features=len(self.leaves)), weights)

    def __repr__(self) -> str:
        return f"SignTree({len(self.outputs)} outputs, {len(self.leaves)} paths, {len(self)} nodes)"

    def to_networkx(self) -> nx.DiGraph:
        """Return the trees as a networkx graph that `NeuronGraph.from_networkx` reads: mu as a network.

        Nodes keep their numbers. "input" is the index of the path, and "label" the vertex at which the node's path
        starts.
        """
        tree = super().to_networkx()
        for node, label in enumerate(self.labels):
            tree.nodes[node]["label"] = label
        return tree

    def draw(self, axes: Any = None) -> Axes:
        """Draw the trees from left (entries of h) to right (outputs); see `NeuronGraph.draw`."""
        rows, names = np.zeros(len(self)), list(self.labels)
        for path, leaf in enumerate(self.leaves.tolist()):
            rows[leaf], names[leaf] = -path, f"$h_{{{path}}}$"
        children = np.bincount(self.wiring.targets, minlength=len(self))
        for node in self.wiring.sources[::-1]:  # children come after their parents, whose height is their mean
            rows[self.parents[node]] += rows[node] / children[self.parents[node]]
        return drawing.draw_neurons(self.wiring, self.weights, self.learnable, self.slopes, names, axes, rows)


def _numbered(graph: nx.DiGraph, attribute: str, degrees: Iterable[tuple[Vertex, int]]) -> dict[Vertex, Any]:
    """Return the numbers that vertices have as an attribute; without any, those of the vertices without edges."""
    given = {v: i for v, i in graph.nodes(data=attribute) if i is not None}
    ends = sorted((v for v, degree in degrees if degree == 0), key=_padded)  # x2 before x10
    return given or {v: i for i, v in enumerate(ends)}


def _padded(name: Vertex) -> str:
    return re.sub(r"\d+", lambda digits: digits[0].zfill(20), str(name))


def _number(value: Any, name: str) -> float:
    scalar = isinstance(value, np.ndarray | np.generic | Tensor) and value.ndim == 0
    return validation.number(value.item() if scalar else value, name)


def _array(values: object, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
    return np.array(values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values, dtype)


def _frozen(values: object, name: str, length: int, what: str, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
    array = _array(values, dtype)
    validation.expect(array.shape == (length,), name, f"shape {array.shape}", f"one per {what} ({length})")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got {array[~np.isfinite(array)][0]}, expected finite numbers")
    array.flags.writeable = False
    return array
