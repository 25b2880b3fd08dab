"""What a run's report says: measured beside predicted, op by op, and in one number."""
