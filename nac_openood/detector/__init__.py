"""NACDetector and what it is made of: batches, settings, readings, thresholds, files."""

from nac_openood.detector.detector import NACDetector

__all__ = ["NACDetector"]
