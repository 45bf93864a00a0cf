"""Public functions on a GPU, real or pretended."""
