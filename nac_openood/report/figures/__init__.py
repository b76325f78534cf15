"""The pictures of the report, one kind per file."""
