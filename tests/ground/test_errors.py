from jaxperf.errors import escape_control, to_one_line


def test_words_lose_what_controls_and_a_line_stays_one_line_with_its_beginning_and_end():
    assert escape_control("é 編\n\tx") == "é 編\n\tx"
    assert escape_control("\x1b[31m\x9b\u202e\ud800\r") == "\\x1b[31m\\x9b\\u202e\\ud800\\r"
    assert to_one_line("a\nb\tc\x1b é") == "a\\nb\\tc\\x1b é"
    long = to_one_line("begun " + "\x1b" * 100_000 + " is missing")
    assert len(long) < 1100 and long.startswith("begun \\x1b") and long.endswith("\\x1b is missing")
