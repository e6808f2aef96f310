"""`python -m neuralpower.collect`: the measuring process, which ends with its supervisor, also while it imports torch."""

from neuralpower.tether import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    from neuralpower.collect.worker import main

    main()
