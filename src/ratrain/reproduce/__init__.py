"""Published evaluations beside ours: what they report, what we compute, how far apart they are."""
