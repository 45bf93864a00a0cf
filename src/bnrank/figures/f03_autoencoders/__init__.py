"""F3: autoencoders and noise."""
