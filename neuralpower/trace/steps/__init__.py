"""A training step: gradients, what it keeps and when that goes."""
