"""Findings of analyses as tables, plots and an HTML page."""
