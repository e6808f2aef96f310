"""`python -m neuralpower.measure.collect`: the measuring process, which always ends with its supervisor."""

from neuralpower.processes.tether import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before it imports torch, too
    from neuralpower.measure.collect.worker import main

    main()
