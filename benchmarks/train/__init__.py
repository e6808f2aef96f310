"""Builders of what `models/` and `neuralpower/learn` ship, from tables that are not in the repository."""
