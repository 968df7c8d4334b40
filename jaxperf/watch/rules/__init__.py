"""The rules: each turns what was recorded into findings, with the seconds that a change could save."""
