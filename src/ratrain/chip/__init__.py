"""Inside one accelerator: the network on chip with collectives."""
