"""F15: rank recovery."""
