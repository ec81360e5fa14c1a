"""Version of the Python package; equal to the one of the CMake project."""

__version__ = "0.1.0"
