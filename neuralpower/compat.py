"""The shapes of thop and torchprof: a face of `neuralpower.profiling.compat`, at the place that users import."""

from neuralpower.profiling.compat import Profile as Profile
from neuralpower.profiling.compat import clever_format as clever_format
from neuralpower.profiling.compat import profile as profile
from neuralpower.profiling.compat import profile_f_t as profile_f_t
from neuralpower.profiling.compat import read_op_file as read_op_file
from neuralpower.profiling.compat import write_op_file as write_op_file
