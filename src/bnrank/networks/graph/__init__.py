"""Computation graphs of networks: an operation per node (any module) and a neuron per vertex (small ones)."""

from bnrank.networks.graph.decomposition import SignTree
from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.neurons import NeuronGraph
from bnrank.networks.graph.nodes import Node
from bnrank.networks.graph.tracing import trace

__all__ = ["LayerGraph", "NeuronGraph", "Node", "SignTree", "trace"]
