"""The same program as the installed `neuralpower`."""

from neuralpower.cli import main

if __name__ == "__main__":
    main()
