"""Graphs: reading, storing, converting and dividing them."""
