"""F9L: the linear control of F9."""
