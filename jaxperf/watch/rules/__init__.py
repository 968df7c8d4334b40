"""The rules: each derives findings from a record, with the seconds that a change could save."""
