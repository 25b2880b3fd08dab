"""Verbs on what was trained: compared, sampled, evaluated, exported."""
