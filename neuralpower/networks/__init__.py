"""Networks: how one is found, built, given inputs, and run without its device."""
