"""What all verbs share with the terminal: options, progress, errors, completion, JSON."""
