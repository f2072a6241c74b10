"""Device code and its launchers.

``gpu`` holds the Triton kernels, ``cpu`` the Numba ones. Both offer the same functions with the same
arguments, so an op is dispatched by choosing a module. Nothing here uses autograd, ``nn`` or streams.

This folder is at the top of the repository and is imported as ``rest_triton.kernels``; the import name
``kernels`` belongs to an unrelated package on the package index.
"""
