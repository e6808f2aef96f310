"""Tables of measurements: their columns, how they are read, screened and sealed."""
