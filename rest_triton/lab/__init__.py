"""The staleness lab: studies of what stale histories cost, made of ordinary training runs."""
