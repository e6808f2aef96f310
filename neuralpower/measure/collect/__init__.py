"""Measurements of a device, by a process that measures and one that survives it.

request, plan, networks, gaps   what to measure: layers of a sweep, layers of real networks, whole networks
schedule                        in which order, in which batches, how long it takes; equal measurements' keys
worker                          the measuring process; the only one that imports torch
process                         that process as its owner sees it; results of a batch, even if it ends it
fleet                           many such processes, on the nodes of a Ray cluster
resume                          what an earlier run left
collection                      one run: from the lock to the sealed tables
"""

from neuralpower.measure.collect.collection import collect as collect
from neuralpower.measure.collect.process import DeviceLock as DeviceLock
from neuralpower.measure.collect.process import Executor as Executor
from neuralpower.measure.collect.process import Local as Local
from neuralpower.measure.collect.process import Worker as Worker
from neuralpower.measure.collect.process import command as command
from neuralpower.measure.collect.request import PRESETS as PRESETS
from neuralpower.measure.collect.request import Progress as Progress
from neuralpower.measure.collect.request import Request as Request
from neuralpower.measure.collect.request import preset_named as preset_named
from neuralpower.measure.collect.schedule import shortest_budget_s as shortest_budget_s
