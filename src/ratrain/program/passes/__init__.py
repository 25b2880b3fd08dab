"""Passes: each takes a program and returns a better one. One idea a pass, one docstring each."""
