"""A view of each result, one file each: its table, its page, its cells and its JSON."""
