"""Computation graphs: one node per operation (any module), or one vertex per neuron (small networks)."""

from bnrank.networks.graph.layers import LayerGraph
from bnrank.networks.graph.neurons import NeuronGraph, SignTree
from bnrank.networks.graph.nodes import Node
from bnrank.networks.graph.tracing import trace

__all__ = ["LayerGraph", "NeuronGraph", "Node", "SignTree", "trace"]
