"""Measurements of a device, by a process that measures and one that survives it.

presets, networks, plan    what to measure: layers of a sweep, layers of real networks, whole networks
schedule                   in which order, in which batches, and how long it takes
worker                     the measuring process; the only one that imports torch
process, recover           that process as its owner sees it; results of a batch, even if it ends the process
fleet                      many such processes, on the nodes of a Ray cluster
request, resume            the user's wishes; what an earlier run left
collection, supervisor     one run; the run as a whole, from the lock to the sealed tables
keys                       what makes two measurements the same
"""
