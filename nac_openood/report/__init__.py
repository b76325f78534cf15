"""Results as tables, pictures and a page."""
