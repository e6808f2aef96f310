"""The version of neuralpower, which the files that it writes carry."""

__version__ = "0.1.0"
