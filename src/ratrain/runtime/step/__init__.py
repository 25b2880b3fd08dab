"""One step of one rank: a program's ops on lanes, under a budget, and the states they turn."""
