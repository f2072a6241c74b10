"""rest_triton: a history engine for training graph neural networks on graphs too large for one GPU's activations."""

__version__ = "0.1.0"
