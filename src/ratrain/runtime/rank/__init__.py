"""One rank's run: its process, finding the others, calibration, the loop over steps."""
