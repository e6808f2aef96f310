"""Devices: spec sheets, hardware, and the machine at hand."""
