"""What is asked: one table of options for the command line and for Python."""
