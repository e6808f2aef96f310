"""Time, power and energy of calls on this machine."""
