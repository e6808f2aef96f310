"""A model benchmark: time a network's training, inference or data loading over a number of batches.

options       the request, and its file      network       the network, and its largest batch
data          images, and batches of them    distributed   one process per device
run           one point, measured            results       result lines, grids of points, tables
"""
