"""This machine measured: products by shape, memory, links between processes, disk."""
