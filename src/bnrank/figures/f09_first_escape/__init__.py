"""F9: the first escape from the origin."""
