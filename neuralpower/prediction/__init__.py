"""A trace and a predictor become a prediction."""
