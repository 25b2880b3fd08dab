"""Who serves the sockets: waiting threads, a background thread, and one for callbacks."""
