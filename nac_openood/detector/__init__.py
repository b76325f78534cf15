"""NACDetector and what it is made of: batches, settings, readings, thresholds, files."""
