"""`python -m neuralpower`: the same program as `neuralpower`."""

from neuralpower.cli import main

main()
