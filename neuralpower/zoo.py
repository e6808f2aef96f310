"""Networks by name: a face of `neuralpower.networks.zoo`, at the place that users import."""

from neuralpower.networks.zoo import ZOO as ZOO
from neuralpower.networks.zoo import ZooEntry as ZooEntry
from neuralpower.networks.zoo import zoo_entry as zoo_entry
from neuralpower.networks.zoo import zoo_model as zoo_model
