"""NAC inside OpenOOD, and how OpenOOD is found, patched and run."""
