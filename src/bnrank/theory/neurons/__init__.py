"""Networks neuron by neuron: weighted DAGs with one vertex per neuron, their paths and the sign tree (T42)."""
