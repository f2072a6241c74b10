"""Training methods: they choose the batches and how neighbours are read. REST can be added to methods with tables.

The options of methods are read without torch, so this package imports nothing by itself.
"""
