"""Measures what recording and validating cost, as ratios to a plain forward pass."""
