"""RATrain: a training step is a program over states, planned, proved, simulated and run."""

__version__ = "0.1.0"
