"""A reader's own functions: `jaxperf measure`, and the roofline of the machine that they run on."""
