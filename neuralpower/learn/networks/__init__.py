"""Whole networks as teachers: their rows, their layers' factors, one's own level."""
