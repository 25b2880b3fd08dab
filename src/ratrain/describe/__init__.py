"""What exists: models, clusters, jobs; strict loading, units, presets."""
