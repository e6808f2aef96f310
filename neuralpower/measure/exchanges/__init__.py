"""Collectives between real processes: `request` says what, `ranks` measures, `run` starts and ends them."""
