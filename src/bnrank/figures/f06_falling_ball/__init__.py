"""F6: a falling ball."""
