"""A solution of exercise 8.0.6."""


def closest_limit(flops, moved, peak, bandwidth, call_s):
    seconds = {"arithmetic": flops / peak, "memory": moved / bandwidth, "overhead": call_s}
    return max(seconds, key=seconds.get)
