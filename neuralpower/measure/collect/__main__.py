"""`python -m neuralpower.measure.collect`: the measuring process, which ends with its supervisor, also while it imports torch."""

from neuralpower.processes.tether import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    from neuralpower.measure.collect.worker import main

    main()
