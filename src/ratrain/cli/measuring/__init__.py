"""Verbs that measure: this machine, an emulated cluster, the network, the cost model."""
