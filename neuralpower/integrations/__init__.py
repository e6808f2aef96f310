"""For other libraries' training loops: the largest batch size that fits, before anything runs.

    batch_size_callback   a callback for Lightning's Trainer
    fitting_batch_size    a context manager and decorator, for Accelerate's loops and others
    largest_batch         the number alone

Neither library has to be installed.
"""

from neuralpower.integrations.batch_size import FittingBatchSize as FittingBatchSize
from neuralpower.integrations.batch_size import fitting_batch_size as fitting_batch_size
from neuralpower.integrations.batch_size import largest_batch as largest_batch
from neuralpower.integrations.lightning import batch_size_callback as batch_size_callback
