"""Texts, tables and charts for people: the only place that scales units."""
