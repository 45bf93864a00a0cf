"""F2: class regions and tripoints."""
