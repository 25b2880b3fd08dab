"""Plans, clusters and layer profiles of other planners, as RATrain's files: read, priced, and what
differs said. One module for each planner whose formats are public; docs/how-to/convert.md says what
is in them and where that was read."""
