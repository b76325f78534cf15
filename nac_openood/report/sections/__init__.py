"""The sections of the report, made of blocks."""
