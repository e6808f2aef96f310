"""Mean power from meters' readings, and what a meter is worth."""
