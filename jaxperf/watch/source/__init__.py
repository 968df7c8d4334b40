"""Analysis of the reader's source code: statements, loops, call sites and arguments."""
