"""Baselines from pytorch-ood, an optional library, fed and searched as OpenOOD does it."""
