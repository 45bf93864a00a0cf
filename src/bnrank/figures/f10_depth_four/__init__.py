"""F10: plateaus at depth 4."""
