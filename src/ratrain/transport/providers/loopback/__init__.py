"""A network inside one process, on a simulated clock, with faults drawn from a seed."""
