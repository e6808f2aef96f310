"""Tables of measurements become a predictor."""
