"""F17: jumps of the rank of linear networks under stochastic gradient descent."""
