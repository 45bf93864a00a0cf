"""A weighted DAG unrolled into the tree of its path ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from bnrank.networks.graph.wiring import Wiring

__all__ = ["Unrolled", "unroll"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unrolled:
    """The tree of all path ends: a node is a path from some vertex to an output.

    A node whose vertex is an input is a whole path; it has one child, the entry of h that belongs to the path. Nodes
    are in order of their depth, roots (the outputs) first.

    Attributes
    ----------
    vertices : ndarray
        The vertex that each node's path starts at, -1 for entries of h, (nodes,).
    parents : ndarray
        -1 for the roots, (nodes,).
    edges : ndarray
        The edge from each node's vertex to its parent's, -1 for roots and entries of h, (nodes,).
    starts : ndarray
        Where each depth begins, and the number of nodes, (depths + 1,).
    leaves : ndarray
        The node that is the entry of h of each path, (paths,). Paths are in the order of their last edge, then the last
        but one, ..., output after output.
    """

    vertices: Ints
    parents: Ints
    edges: Ints
    starts: Ints
    leaves: Ints

    def products(self, factors: Tensor) -> Tensor:
        """Return the product of factors (edges,) along the path of each entry of h, (paths,); gradients flow."""
        depths = []
        here = factors.new_ones(int(self.starts[1]))
        for depth in range(1, len(self.starts) - 1):
            part = slice(self.starts[depth], self.starts[depth + 1])
            edges = torch.from_numpy(self.edges[part])
            own = torch.where(edges < 0, 1.0, factors[edges.clamp_min(0)] if len(factors) else 1.0)
            here = here[torch.from_numpy(self.parents[part] - self.starts[depth - 1])] * own
            depths.append(here)
        return torch.cat(depths)[torch.from_numpy(self.leaves - self.starts[1])]


def unroll(wiring: Wiring) -> Unrolled:
    """Return the tree of path ends; it has at most as many nodes as there are paths, times their length."""
    reached = zip(wiring.ending, wiring.reaching, strict=True)
    ending = np.array([n if to_outputs else 0 for n, to_outputs in reached], dtype=np.int64)
    is_input = wiring.coordinates >= -1
    order, first = wiring.incoming
    degree = np.diff(first)
    sizes = np.concatenate([[0], np.cumsum(ending[wiring.sources[order]])])
    before = sizes[:-1] - np.repeat(sizes[first[:-1]], degree)  # paths that end in earlier edges into the same vertex

    vertex = wiring.outputs
    parent, edge = np.full_like(vertex, -1), np.full_like(vertex, -1)
    offset = np.cumsum(ending[vertex]) - ending[vertex]
    levels, starts, leaves = [], [0], np.full(int(ending[vertex].sum()), -1, dtype=np.int64)
    while len(vertex):
        nodes = starts[-1] + np.arange(len(vertex))
        starts.append(starts[-1] + len(vertex))
        levels.append((vertex, parent, edge))
        leaf = vertex < 0
        leaves[offset[leaf]] = nodes[leaf]
        ends = ~leaf & is_input[vertex]
        children = np.where(leaf, 0, np.where(ends, 1, degree[vertex]))
        row = np.repeat(np.arange(len(nodes)), children)
        within = np.arange(len(row)) - np.repeat(np.cumsum(children) - children, children)
        slot = np.where(ends[row], 0, first[vertex[row]] + within)
        edge = np.where(ends[row], -1, order[slot] if len(order) else -1)
        offset = offset[row] + np.where(ends[row], 0, before[slot] if len(order) else 0)
        vertex = np.where(ends[row], -1, wiring.sources[edge] if len(order) else -1)
        parent = nodes[row]
    vertices, parents, edges = (np.concatenate(column) for column in zip(*levels, strict=True))
    return Unrolled(vertices, parents, edges, np.array(starts, dtype=np.int64), leaves)
