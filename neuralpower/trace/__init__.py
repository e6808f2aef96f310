"""A recorded run of a network: its layers, its tensors' lifetimes, its training step."""
