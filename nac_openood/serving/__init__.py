"""A detector as an HTTP service."""
