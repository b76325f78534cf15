"""The method itself, on tensors: it needs torch and NumPy and nothing else.

`layouts` and `layer_config` say what to read of a layer, `reading` is what was read, `states`,
`bins` and `histogram` count it, the rules (`rule`, `coverage`, `plus`) make scores of the counts,
and `pvalues` and `ranking` say what the scores are worth.
"""
