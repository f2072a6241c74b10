"""How the bytes are moved: device code and its launchers, nothing else.

``gpu`` holds the Triton kernels, ``cpu`` the Numba ones. Both offer the same functions with the same
arguments, so an op is dispatched by choosing a module. There is no autograd, no ``nn`` and no stream in here.

This folder lives at the top of the repository and is imported as ``rest_triton.kernels``; the import name
``kernels`` belongs to an unrelated package on the package index.
"""
