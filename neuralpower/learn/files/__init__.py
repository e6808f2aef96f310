"""Files of predictors: found by name, written and read."""
