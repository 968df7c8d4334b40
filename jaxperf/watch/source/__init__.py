"""What the reader's source says: statements, loops, call sites and arguments."""
