"""A CPU as the device under test."""
