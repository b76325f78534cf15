"""NAC inside OpenOOD: the only room that imports it."""
