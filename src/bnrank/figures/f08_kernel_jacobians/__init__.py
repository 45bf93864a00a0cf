"""F8: Jacobians of kernel methods."""
