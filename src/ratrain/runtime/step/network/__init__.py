"""The network between ranks: connections, frames, and what goes over which."""
