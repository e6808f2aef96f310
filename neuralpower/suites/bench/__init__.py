"""A model benchmark: one network trained, used, or fed with data for so many batches, and what that took.

options       what is asked for, and its grid        network, loading   the network and its batches
fits          how large a batch may be               run                one point, measured
distributed   one process per device                 monitor            what the process uses meanwhile
lines, logs   result lines and their way back        summaries          tables of many results
"""
