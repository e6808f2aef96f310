"""Operators of a run: as layers, by torch's own rules, in the state of their module."""
