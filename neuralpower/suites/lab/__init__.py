"""A first lab with a deep-learning framework: train a network on digits and see where its time goes.

    images -> training (curves, checkpoints) -> operators at several batch sizes -> comparison -> report

Every step writes files into one folder. The report is made from these, also after an interruption.
"""
