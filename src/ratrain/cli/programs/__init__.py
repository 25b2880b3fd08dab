"""Verbs on programs: built, compared, proved, simulated, drawn."""
