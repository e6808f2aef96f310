"""Chips, networks and their rooflines: what is gathered, what follows from it, and the page that shows it.

records    what is stored: networks, their work, roofs, times; one JSON file, written after every step
work       FLOP, bytes and memory of a network, from its trace
runs       times of a network where it runs, forward and training; the roof that the device really has
gather     everything within a time budget; a second run goes on where the first one ended
analysis   rank correlations, verdicts, gaps, ratios
chips      roofs of all spec sheets
pages      sections, tables and charts; comments.jinja has what the figures say, in sentences
"""
