"""Somebody's network, left as it was: which modules to read, how to run it, what it said."""
