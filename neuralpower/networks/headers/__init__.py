"""Headers of files of weights: which tensors they hold, of which types and sizes. No weight is read.

gguf          llama.cpp's files: metadata, then the table of tensors
safetensors   one file, or the index of several
"""

from neuralpower.networks.headers.gguf import read_gguf as read_gguf
from neuralpower.networks.headers.safetensors import read_index as read_index
from neuralpower.networks.headers.safetensors import read_safetensors as read_safetensors
from neuralpower.networks.headers.tensors import Header as Header
