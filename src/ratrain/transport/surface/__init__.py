"""What a user holds: the engine, its groups, words and stages."""
