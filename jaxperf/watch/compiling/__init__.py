"""The compile report: one page and one JSON about everything that a program compiled."""
