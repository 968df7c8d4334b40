"""Measuring a reader's own functions: `jaxperf measure`, and the roofline of the machine they run on."""
