"""How often calls are timed; without torch, which a collection's supervisor does not import."""

ROUNDS = 9  # in which a layer is timed
NETWORK_ROUNDS = 21  # of whole networks, which are few: a 10th percentile that another run finds again
