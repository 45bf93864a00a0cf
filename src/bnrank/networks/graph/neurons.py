"""A feedforward network as a weighted DAG, a neuron per vertex (T42)."""

from __future__ import annotations

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
from bnrank.networks.graph import decomposition, drawing, exchange
from bnrank.networks.graph.decomposition import SignTree
from bnrank.networks.graph.wiring import Edge, Vertex, Wiring, few

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

Origin = tuple[str, int]
CHUNK_ENTRIES = 2**24  # entries of (edges, samples) evaluated at once
PATH_LIMIT = 10**6


@dataclass(frozen=True, eq=False)
class NeuronGraph:
    """A feedforward network as a weighted DAG.

    A vertex has the value sigma_s(sum over its in-edges (u, v) of w_uv times the value of u), sigma_s(z) = z for z > 0
    and s z else; an input has sigma_s(x_i), or sigma_s(1) where it is the constant that biases come from. A path goes
    from an input, the constant included, to an output.

    Vertices that reach no output are kept; they are on no path.

    Attributes
    ----------
    vertices : tuple
        Names, hashable, each once.
    edges : tuple of (source, target)
        Each once; without cycles.
    weights : array_like
        (edges,), finite; kept as a read-only float64 array.
    slopes : array_like
        s of every vertex, (vertices,), finite: 1 linear, 0 ReLU, -1 the absolute value.
    inputs : mapping
        From the vertices without in-edges to the coordinate of x, or "constant"; every vertex without in-edges is one.
    outputs : tuple
        Vertices whose values the network returns, in order; they may have out-edges.
    learnable : array_like of bool, optional
        Whether each weight is trained, (edges,). All of them by default.
    origins : tuple of (parameter name, flat index) or None, optional
        What each weight is an entry of. Edges of the same origin share their weight, as those of a convolution do.
    wiring : Wiring
        Order, levels and numbers of paths; computed.

    Raises
    ------
    TypeError, ValueError
        If there is a cycle (named), an edge of an unknown vertex, a weight or slope that is not finite, an input with
        in-edges, a vertex without any that is no input, no output, or edges of one origin with different weights.

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
    def from_networkx(cls, graph: nx.DiGraph) -> NeuronGraph:
        """Return the network that a networkx graph describes.

        Vertex attributes: "slope" (0 by default, 1 for inputs and outputs), "input" (a coordinate of x, or "constant"),
        "output" (the place in the output). Edge attributes: "weight" (1 by default), "learnable" (True by default),
        "origin" (a parameter's name and the flat index in it). Other attributes are ignored.

        Without any "input" the inputs are the vertices without in-edges, without any "output" the outputs are those
        without out-edges, both sorted by name (x2 before x10), or as the graph lists them where names do not compare.

        Raises
        ------
        TypeError, ValueError
            As for the class; for undirected and multigraphs; and for attributes that look misspelt.
        """
        return cls(**exchange.read(graph))

    def to_networkx(self) -> nx.DiGraph:
        """Return the network as a networkx graph with all attributes; `from_networkx` gives it back."""
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
            One per edge, (edges,); or a mapping from edges to numbers, or from names of parameters (those of
            ``origins``) to tensors. Other weights stay.
        """
        if not isinstance(weights, Mapping):
            return replace(self, weights=_array(weights))
        given = self.weights.copy()
        parameters = {origin[0] for origin in self.origins if origin is not None}
        for key, value in weights.items():
            if not isinstance(key, str):
                given[self._edge(key, "weights")] = float(cast(Any, value))
                continue
            near = validation.suggest(key, parameters)
            validation.expect(key in parameters, "weights", f"the name {key!r}", f"a parameter of this graph{near}")
            mine = {e: origin[1] for e, origin in enumerate(self.origins) if origin is not None and origin[0] == key}
            entries, last = _array(value).reshape(-1), max(mine.values())
            if last >= len(entries):
                raise ValueError(f"weights[{key!r}]: got {len(entries)} entries, the graph uses entry {last}")
            given[list(mine)] = entries[list(mine.values())]
        return replace(self, weights=given)

    def __call__(self, x: Tensor | NDArray[Any], weights: Tensor | None = None) -> Tensor:
        """Return f(x; w), float64 (N, outputs).

        Parameters
        ----------
        x : Tensor or ndarray
            (N, coordinates), or (N, ...) with as many entries; one sample per row.
        weights : Tensor, optional
            (edges,), instead of the weights of the graph; gradients flow to it.
        """
        x, weights, slopes = self._points(x), self._factors(weights), torch.tensor(self.slopes)
        parts = x.split(max(1, CHUNK_ENTRIES // max(1, len(self.edges))))
        return torch.cat([self.wiring.evaluate(part, weights, slopes) for part in parts])

    def count(self, output: Vertex | None = None) -> int:
        """Return the exact number of paths (to one output), by dynamic programming."""
        if output is None:
            return sum(self.wiring.ending[v] for v in self.wiring.outputs.tolist())
        validation.expect(output in self.outputs, "output", repr(output), f"one of {few(self.outputs)}")
        return self.wiring.ending[self.wiring.position[output]]

    def through(self, edge: Edge) -> int:
        """Return the exact number of paths that contain an edge, by dynamic programming."""
        e = self._edge(edge, "edge")
        return self.wiring.ending[self.wiring.sources[e]] * self.wiring.reaching[self.wiring.targets[e]]

    def paths(self, max_paths: int = PATH_LIMIT) -> tuple[tuple[Vertex, ...], ...]:
        """Return all paths, each as its vertices from the input to the output, in the order of `enumerate`.

        Raises
        ------
        ValueError
            If there are more than ``max_paths``.
        """
        self._check_count(max_paths)
        return tuple(self.wiring.walk())

    def enumerate(self, x: Tensor | NDArray[Any], weights: Tensor | None = None, max_paths: int = PATH_LIMIT) -> Tensor:
        """Return the path enumeration h(x; w), float64 (N, paths): x at the path's input times all its weights.

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
        """Return the network mu of weights +1 and -1 with f(x; w) = mu(h(x; w)), h that of `enumerate`.

        Built by unrolling the graph into a tree and pulling absolute values towards the inputs; it depends on the
        weights through their signs only.

        Raises
        ------
        ValueError
            If there are more than ``max_paths`` paths.

        Source: LeJegelka2022, Lemma 1; T42.
        """
        self._check_count(max_paths)
        return decomposition.sign_tree(self.wiring, self.weights, self.slopes)

    def is_cut(self, edges: Iterable[Edge]) -> bool:
        """Return whether every path, including those from the constant, contains exactly one of the edges.

        T46 needs this; Definition 7 of LeJegelka2022 requires less (E20).
        """
        return self.wiring.is_cut({self._edge(edge, "edges") for edge in edges})

    def cuts(self) -> tuple[frozenset[Edge], ...]:
        """Return nested cuts of learnable edges, from the inputs to the outputs.

        The k-th has the edges from vertices of a level below k to those of level k or above; levels are lengths of
        longest paths where vertices that a fixed edge joins (and cycles that arise by joining them) are one. So the
        l-th of a fully connected network with biases is W_l, b_l, b_{l+1}, ..., b_L. Empty where fixed edges lead from
        an input to an output. Edges on no path are left out.

        Source: T46, in place of Definition 7 (E20).
        """
        return self.wiring.level_cuts(self.learnable)

    def layer_invariant(self, cut_a: Iterable[Edge], cut_b: Iterable[Edge]) -> float:
        """Return the sum of squares of one cut's weights minus that of another's, constant under gradient flow (T46).

        A weight that several edges share counts once; all of its edges on paths must be in the cut, as those of a
        convolution are.

        Raises
        ------
        ValueError
            If either is no cut, has an edge that is not learnable, or one that shares its weight with an edge outside.
        """
        return self._squares(cut_a, "cut_a") - self._squares(cut_b, "cut_b")

    def _squares(self, cut: Iterable[Edge], name: str) -> float:
        """Return the sum of squares of a cut's weights."""
        chosen = sorted({self._edge(edge, name) for edge in cut})
        fixed = next((e for e in chosen if not self.learnable[e]), None)
        if fixed is not None:
            raise ValueError(f"{name}: the edge {self.edges[fixed]!r} is not learnable")
        if not self.wiring.is_cut(set(chosen)):
            raise ValueError(f"{name}: got {len(chosen)} edges that not every path crosses exactly once")
        once = {self.origins[e] or e: e for e in chosen}
        for e, origin in enumerate(self.origins):
            if origin in once and e not in chosen and self.through(self.edges[e]):
                shared = f"{origin} with {self.edges[once[origin]]!r}"
                raise ValueError(f"{name}: the edge {self.edges[e]!r} is not in it, but shares {shared}")
        return float(np.sum(self.weights[list(once.values())] ** 2))

    def vertex_invariants(self) -> dict[Vertex, float]:
        """Return the sum of squared in-weights minus squared out-weights, constant under gradient flow (T44).

        Of the vertices that are neither input nor output and whose edges are all learnable and share their weights with
        no other edge; a bias counts as an in-edge. What holds for shared weights, as of convolutions, is not here.
        """
        wiring, size = self.wiring, self.weights**2
        values = np.bincount(wiring.targets, size, len(self)) - np.bincount(wiring.sources, size, len(self))
        kept = wiring.coordinates < -1
        kept[wiring.outputs] = False
        held = ~self.learnable | self.shared
        kept[wiring.sources[held]] = kept[wiring.targets[held]] = False
        return {self.vertices[v]: float(values[v]) for v in np.flatnonzero(kept)}

    def draw(self, axes: Any = None) -> Axes:
        """Draw the network from left (inputs) to right, vertices by the length of the longest path from an input.

        Blue edges have positive weights, orange ones negative, dashed ones are fixed; widths are as |w|. Small graphs
        show names and weights.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Default: new axes.

        Raises
        ------
        ValueError
            If there are more than 2000 edges.
        """
        places, ends = drawing.graph_places(self.wiring), np.stack([self.wiring.sources, self.wiring.targets], 1)
        names, headings = drawing.graph_names(self.vertices, places[0])
        values = (self.weights, self.learnable, self.slopes)
        return drawing.draw_neurons(places, ends, *values, names, axes, headings=headings)

    def __eq__(self, other: object) -> bool:
        """Return whether another graph has the same vertices, edges and attributes, in the same order."""
        if not isinstance(other, NeuronGraph):
            return NotImplemented
        plain = ("vertices", "edges", "inputs", "outputs", "origins")
        arrays = ("weights", "slopes", "learnable")
        return all(getattr(self, n) == getattr(other, n) for n in plain) and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in arrays
        )

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
            name = f"origin of edge {self.edges[e]!r}"
            if not (isinstance(origin, tuple) and len(origin) == 2 and isinstance(origin[0], str)):
                raise TypeError(f"{name}: got {origin!r}, expected (name, flat index)")
            validation.integer(origin[1], name, 0)
            other = first.setdefault(origin, e)
            if self.weights[e] != self.weights[other]:
                raise ValueError(
                    f"weights: the edges {self.edges[other]!r} and {self.edges[e]!r} share {origin}, but have the "
                    f"weights {self.weights[other]:g} and {self.weights[e]:g}"
                )

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
        if self.count() > validation.integer(max_paths, "max_paths", 0):
            raise ValueError(f"max_paths: the graph has {_big(self.count())} paths, more than {max_paths}")


def _array(values: object, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
    return np.array(values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values, dtype)


def _frozen(values: object, name: str, length: int, what: str, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
    array = _array(values, dtype)
    validation.expect(array.shape == (length,), name, f"shape {array.shape}", f"one per {what} ({length})")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: got {array[~np.isfinite(array)][0]}, expected finite numbers")
    array.flags.writeable = False
    return array


def _big(number: int) -> str:
    return str(number) if number < 10**15 else f"about 10^{len(str(number)) - 1}"
