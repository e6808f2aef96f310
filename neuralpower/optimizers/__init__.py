"""Optimizers: what each keeps, makes and moves in a step; `registry.KNOWN` lists them."""
