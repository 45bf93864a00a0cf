"""F11: escape directions against width."""
