"""Verbs on runs: trained, launched, reported, their checkpoints."""
