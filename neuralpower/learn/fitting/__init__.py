"""The fit of one regressor: a Lasso on relative error, trees for what remains, bounds from held-out rows."""
