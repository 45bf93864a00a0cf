"""The statements of the theory: adapters from the facts of a network to the two sides of a formula."""
