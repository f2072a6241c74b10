"""Benchmarks: each op beside what one would otherwise write, and beside what this machine can do at all."""
