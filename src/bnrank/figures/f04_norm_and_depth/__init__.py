"""F4: parameter norm against depth."""
