"""Runs a comparison.

compare.py    what is compared (`Study`), and the loop over networks, methods and datasets
network.py    one network: its loaders, what methods may use, the pass that methods share
cost.py       times and memory
store.py      the files of a comparison
tabulate.py   from stored scores to `Results`; merging comparisons
results.py    `Results`, whose rows are methods on networks, and the metrics
"""
