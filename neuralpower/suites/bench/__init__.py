"""A model benchmark: one network trained, used, or fed with data for so many batches, and what that took.

options, config   what is asked for, and its grid     network          what runs, and how large a batch may be
images, datum     images on the disk                  loading          where batches come from
run               one point, measured                 distributed      one process per device
grid              many points                         monitor          what the process uses meanwhile
logs              result lines and their way back     summaries        tables of many results
"""
