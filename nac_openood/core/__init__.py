"""The method itself: it needs torch and nothing else, and reads in this order.

`layouts` and `layers` say what to read, `probe` reads it, `states`, `bins`, `histogram` and
`coverage` turn readings into scores, `readings` keeps them for later, `files` writes them down.
"""
