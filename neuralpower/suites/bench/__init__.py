"""A model benchmark: time a network's training, inference or data loading over a number of batches.

options, config   the request, and its grid          network          the network, and its largest batch
images, datum     images on the disk                  loading          where batches come from
run               one point, measured                 distributed      one process per device
grid              many points                         monitor          resources that the process uses
logs              result lines and their way back     summaries        tables of many results
"""
