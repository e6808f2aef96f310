"""Mean power from meters' readings, and the self-test of meters."""
