import os
import stat
import threading
from pathlib import Path

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.result.store import check_writable, write_whole


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_text_and_bytes_replace_what_was_there(tmp_path):
    path = tmp_path / "a" / "b" / "out"
    contents = ("before", "zwölf\n", b"\x00\xff")
    for content in contents:
        write_whole(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
        assert names(path.parent) == ["out"]


def test_a_failing_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_whole(path, "the old")
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()):

        def fail(*_, error=error):
            raise error

        for step in ("chmod", "replace"):
            expected = JaxperfError if isinstance(error, OSError) else type(error)
            with monkeypatch.context() as patch, pytest.raises(expected):
                patch.setattr(Path, step, fail)
                write_whole(path, "the new")
            assert path.read_text() == "the old"
            assert names(tmp_path) == ["out.json"]


def test_a_reader_never_sees_half(tmp_path):
    path = tmp_path / "out"
    texts = {letter * 200_000 for letter in "ab"}
    write_whole(path, "a" * 200_000)
    stop, seen = threading.Event(), set()

    def read():
        while not stop.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        for text in texts:
            write_whole(path, text)
    stop.set()
    reader.join()
    assert seen <= texts


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_a_new_file_has_the_permissions_of_the_umask_and_an_old_one_keeps_its_own(tmp_path, umask, mode):
    path = tmp_path / "out"
    before = os.umask(umask)
    try:
        write_whole(path, "x")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        for kept in (0o600, 0o664, 0o444):
            path.chmod(kept)
            write_whole(path, "y")
            assert stat.S_IMODE(path.stat().st_mode) == kept
    finally:
        os.umask(before)


@pytest.mark.parametrize("act", [check_writable, lambda path: write_whole(path, "x")])
def test_a_path_that_cannot_be_written_is_one_line(act, tmp_path):
    (tmp_path / "file").write_text("in the way")
    paths = {
        tmp_path: "folder|directory",
        tmp_path / "file" / "out.json": "a file stands where its folder should be",
        tmp_path / ("x" * 300): "too long",
        Path("/proc/nowhere/out.json"): "",
    }
    for path, reason in paths.items():
        with pytest.raises(JaxperfError, match=f"(?i)^cannot write [^\n]*{reason}[^\n]*; give another path$"):
            act(path)
    assert (tmp_path / "file").read_text() == "in the way"
    assert names(tmp_path) == ["file"]


def test_checking_writes_nothing(tmp_path):
    (tmp_path / "old").write_text("kept")
    check_writable(tmp_path / "old")
    check_writable(tmp_path / "new")
    check_writable(Path("/dev/null"))
    assert (tmp_path / "old").read_text() == "kept"
    assert names(tmp_path) == ["old"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/out")
    write_whole(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "out").read_text() == "x"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_whole(tmp_path / "pipe", "through")
    reader.join()
    assert got == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
