"""Measurements of a device, by a process that measures and one that survives it.

request, plan, networks, gaps   what to measure: layers of a sweep, layers of real networks, whole networks
schedule                        in which order, in which batches, how long it takes; equal measurements' keys
worker                          the measuring process; the only one that imports torch
process                         that process as its owner sees it; results of a batch, even if it ends it
fleet                           many such processes, on the nodes of a Ray cluster
resume                          what an earlier run left
collection                      one run: from the lock to the sealed tables
"""
