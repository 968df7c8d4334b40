"""Compare results: two runs, or a run against a baseline (`jaxperf compare` and `gate`)."""
