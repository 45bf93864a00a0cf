"""F16: stability of minima of too low a rank."""
