"""Processes: exit status and signals, ending with the parent, `jaxperf launch`, `jax.distributed`."""
