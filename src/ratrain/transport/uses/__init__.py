"""Uses of the transport: weights to inference, KV-cache pages, expert tokens, network checks."""
