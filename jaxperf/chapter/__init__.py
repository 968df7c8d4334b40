"""Parts of sections that would make a script too long for one sitting; each tells its part to a `Story`.

A section's script keeps its flags, its order and the functions that the section is about. Nothing is
re-exported: `from jaxperf.chapter.scaling import scaling`.
"""
