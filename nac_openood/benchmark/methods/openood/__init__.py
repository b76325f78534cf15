"""OpenOOD's own postprocessors as methods."""
