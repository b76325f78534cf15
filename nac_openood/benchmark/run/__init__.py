"""Runs a comparison.

The way from `benchmark.api.compare` to a row of a table:

study.py      what is compared: networks, datasets, methods
conduct.py    all steps in order
vetting.py      find unreadable images
runner.py       run every method on every network, and write its scores as cells
workbench.py      one network: its loaders, its features, what its methods are given
features.py       the pass over the network that methods share
meter.py          times and memory
cells.py          cells as files
assemble.py     read the cells, compute the metrics (metrics.py), pick pictures (gallery.py)
results.py    the outcome: `Results`, whose rows are methods on networks
"""
