"""What goes over the network: addresses, frames, handshakes, TLS, and this host's interfaces."""
