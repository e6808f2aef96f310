"""A network's run, written down: its layers, its tensors' lifetimes, its training step."""
