"""Benchmarks: OpenOOD's data layout and networks, without OpenOOD."""
