"""Verbs before a run: files to begin with, what fits, which plan, and why."""
