"""NAC inside OpenOOD: the only rooms that import it."""
