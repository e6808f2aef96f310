"""A first lab with a deep-learning framework: train a network on digits, watch it learn, see where its time goes.

    images -> training (curves, checkpoints) -> operators at several batch sizes -> comparison -> report

Every step leaves files in one folder, and the report is made from these: what was done before an interruption counts.
"""
