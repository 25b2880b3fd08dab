"""The functions of a layer: forward, and backward written by hand."""
