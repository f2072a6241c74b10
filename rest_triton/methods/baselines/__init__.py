"""Methods without tables."""
