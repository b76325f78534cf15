"""The paper's printed tables as data."""
