"""Verbs inside a chip: its network, and the tile programs of its cores."""
