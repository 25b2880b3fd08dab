"""How the ranks of a run find each other, prove who they are, and agree."""
