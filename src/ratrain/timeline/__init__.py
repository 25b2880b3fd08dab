"""What happened, or will: spans of ops and curves of memory, from the simulator or the runtime."""
