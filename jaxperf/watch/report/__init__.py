"""The report of a watch: shares of the time, hottest programs and lines, and the text."""
