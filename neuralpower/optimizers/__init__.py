"""Optimizers: what each keeps, makes and moves in a step; `registry.KNOWN` lists them."""

BLOCK = 256  # numbers of an 8-bit state that share a scale
