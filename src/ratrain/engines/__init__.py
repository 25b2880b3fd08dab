"""Where ranks are started by others: batch systems and clusters, which have their own names for a
rank's place, their own order of hosts, and their own ways of ending what runs."""
