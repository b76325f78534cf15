"""Runs a comparison.

compare.py    what is compared (`Study`), the loop over networks and methods, and the table
network.py    one network: what methods may use, the pass that they share, running them
cost.py       times and memory
store.py      the files of a comparison
results.py    `Results`, whose rows are methods on networks; metrics; merging comparisons
"""
