"""The command line: `jaxperf COMMAND`, its flags, and its help."""
