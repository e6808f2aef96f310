"""ParaDnn: networks whose sizes are parameters, swept; after Wang, Wei and Brooks, MLSys 2020 (arXiv 1907.10701)."""
