"""The verbs. No logic lives here: each verb reads its input, calls a room, prints the answer."""
