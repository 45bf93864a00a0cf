"""F1: spectra of a deep network."""
