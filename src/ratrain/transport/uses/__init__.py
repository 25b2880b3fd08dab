"""Three real uses of the transport: weights to inference, KV-cache pages, expert tokens."""
