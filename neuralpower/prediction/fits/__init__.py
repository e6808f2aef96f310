"""Whether a network fits, the largest that does, and what makes it fit."""
