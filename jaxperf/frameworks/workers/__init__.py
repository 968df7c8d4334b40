"""Code that runs in each system's own environment: standard library, NumPy and that system's framework.

The host starts `__main__.py` by its path with the environment's own Python, so jaxperf need not be installed
there. Only the JAX side, which runs in jaxperf's own environment, uses the rest of the package. MXNet's side
must run on Python 3.8. Frameworks are imported inside functions, so importing these modules costs nothing.
"""
