"""F14: kernels along depth."""
