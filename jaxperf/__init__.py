"""jaxperf: the chapter "Computational Performance" of Dive into Deep Learning, measured on JAX and Flax."""

__version__ = "0.1.0"
