"""What is asked about: a network is found, built, given inputs, and run without its device."""
