"""A short calibration before the first step, and the prediction made of it."""
