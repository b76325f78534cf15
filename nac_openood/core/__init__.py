"""The method itself, on tensors: it needs torch and NumPy and nothing else.

`reading` is what was read of a layer and `layer_config` how to use it; `histogram` counts states.
The rules (`rule`, `rules`, `coverage`, `plus`) make scores of the counts, and `pvalues` and
`metrics` measure what the scores are worth.
"""
