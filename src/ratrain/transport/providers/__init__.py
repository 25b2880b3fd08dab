"""What carries frames to a peer: `sock` (TCP, TLS), `shm`, `ofi`, and a simulated network."""
