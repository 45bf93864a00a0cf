"""F7: learning rates of kernels and deep networks."""
