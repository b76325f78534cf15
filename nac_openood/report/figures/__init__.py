"""The pictures of the report, one kind a file."""
