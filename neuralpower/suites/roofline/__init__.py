"""Chips, networks and their rooflines: gather data, analyse them, and write a page.

records    stored data: networks, their work, roofs, times; one JSON file, written after every step
runs       measured times of a network, forward and training; the device's measured roof
gather     gather all data within a time budget; a second run resumes
analysis   rank correlations, verdicts, gaps, ratios
chips      the chips of all spec sheets
pages      sections, tables and charts
"""
