"""The statements of the theory, each a function from facts to its two sides."""
