"""What ranks send each other: boundaries, gradients, views, sums in a fixed order."""
