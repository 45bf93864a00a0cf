"""Computation graphs of modules, with one node per operation."""

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.nodes import Node
from bnrank.networks.graph.tracing import trace

__all__ = ["LayerGraph", "Node", "trace"]
