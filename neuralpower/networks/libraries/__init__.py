"""Networks of libraries, files and functions: built from names and configurations."""
