"""What the reader's source says: statements, loops, call sites, and changes made from them."""
