"""F5: a learned rotation symmetry."""
