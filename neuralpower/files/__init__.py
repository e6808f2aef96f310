"""Files and text as this program reads and writes them: whole or not at all, within limits, safe to print."""
