"""The pictures of the report, one idea a file; each gives SVG to put into a page."""
