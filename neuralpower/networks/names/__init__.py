"""Names of networks: the catalogue, the hub, slips of the pen, whom to trust."""
