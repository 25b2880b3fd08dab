"""How long and how many bytes: the only room where formulas live. Pure functions."""
