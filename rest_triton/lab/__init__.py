"""The studies of the REST paper as commands: sets of training runs, and what came out of them."""
