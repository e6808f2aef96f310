"""What nobody measured: laws, a prior from whole networks, boards of one chip, any device with a sheet."""
