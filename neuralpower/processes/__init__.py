"""Child processes and streams: none outlives the process that started it."""
