"""F12: the escape speed of one neuron against its direction."""
