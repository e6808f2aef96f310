"""One table of options, for the command line and for Python."""
