"""``python -m rest_triton.lab <study> --dataset …``."""

from .command import main

if __name__ == "__main__":
    main()
