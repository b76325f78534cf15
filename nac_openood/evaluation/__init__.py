"""NAC-ME: how well a network will generalize, judged by its coverage on training data alone."""
