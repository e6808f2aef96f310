"""ParaDnn: sweeps of networks with sizes for parameters; Wang, Wei, Brooks, MLSys 2020 (arXiv 1907.10701)."""
