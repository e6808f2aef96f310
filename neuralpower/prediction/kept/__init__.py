"""Passes that are kept on the disk, and their other sizes."""
