"""What Python asks: the functions of `neuralpower`, and a predictor that is loaded for many calls."""
