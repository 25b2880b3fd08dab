"""Data that others measured and published, to calibrate and to score on."""
