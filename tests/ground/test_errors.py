from jaxperf.errors import escape_control, to_one_line


def test_words_keep_lines_tabs_and_letters_and_lose_what_controls():
    assert escape_control("é 編\n\tx") == "é 編\n\tx"
    assert escape_control("\x1b[31m\x9b\u202e\ud800\r") == "\\x1b[31m\\x9b\\u202e\\ud800\\r"


def test_a_line_stays_one_line_that_keeps_its_beginning_and_its_end():
    assert to_one_line("a\nb\tc\x1b é") == "a\\nb\\tc\\x1b é"
    long = to_one_line("begun " + "\x1b" * 100_000 + " is missing")
    assert len(long) < 1100 and long.startswith("begun \\x1b") and long.endswith("\\x1b is missing")
