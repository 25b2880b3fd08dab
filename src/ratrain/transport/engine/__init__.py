"""Delivery over any channel: pieces, links, peers, counters, deadlines. No socket, no thread."""
