"""Measurements that teach a prior, one file a source: each has `observations(PATH)`."""
