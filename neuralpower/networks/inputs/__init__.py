"""Inputs of networks: requested sizes, made values, what a trace knows of them."""
