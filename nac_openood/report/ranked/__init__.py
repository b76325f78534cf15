"""Rankings of checkpoints as tables, plots and an HTML page."""
