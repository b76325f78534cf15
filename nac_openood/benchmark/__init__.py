"""Comparisons of OOD detection methods: the methods, the run, and the paper's numbers."""
