"""Parts of sections that would make a script too long to read at once; each tells its part to a `Story`.

A section's script keeps its flags, its order and the functions that the section is about. This package
re-exports nothing: `from jaxperf.chapter.scaling import scaling`.
"""
