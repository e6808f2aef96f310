"""The version of neuralpower, which the files that it writes carry."""

__version__ = "0.2.0"
