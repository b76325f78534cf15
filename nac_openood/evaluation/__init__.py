"""NAC-ME: estimates how well a network generalizes from its coverage on training data alone."""
