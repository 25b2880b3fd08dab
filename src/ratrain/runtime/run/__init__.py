"""A run as a whole: prepared, launched, watched, and explained afterwards."""
