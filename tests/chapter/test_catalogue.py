import pytest

from jaxperf.chapter import catalogue
from jaxperf.chapter.catalogue import SECTIONS, find, folder
from jaxperf.errors import JaxperfError


def test_every_section_has_its_script_and_every_script_its_section():
    scripts = {path.stem for path in folder().glob("*.py") if not path.name.startswith("_")}
    assert {section.name for section in SECTIONS} == scripts - {"train"}  # the program outside of the lessons


def test_a_section_is_found_by_name_file_or_number():
    for section in SECTIONS:
        for word in (section.name, f"{section.name}.py", f" {section.name.upper()} ", section.number):
            if word:
                assert find(word) is section


def test_a_wrong_word_gets_one_line_with_the_nearest_right_one():
    nearest_ones = {"hybridise": "hybridize", "hybrid": "hybridize", "8.11": "8.1", "8,1": "8.1"}
    for word, nearest in nearest_ones.items():
        with pytest.raises(JaxperfError, match=rf"^no section {word!r} \(did you mean {nearest}\?\)"):
            find(word)
    for word in ("", " ", ".py", "x" * 1000, "a\nb", "\x1b[31m", "../../etc/passwd", "[bold]"):
        with pytest.raises(JaxperfError) as caught:
            find(word)
        line = str(caught.value)
        assert line.isprintable()
        assert "`jaxperf list` shows all" in line


def test_scripts_are_found_in_a_checkout_and_in_an_installed_package(tmp_path, monkeypatch):
    assert (folder() / "hybridize.py").is_file()
    package = tmp_path / "site-packages" / "jaxperf"
    installed = package / "experiments"
    installed.mkdir(parents=True)
    (installed / f"{SECTIONS[-1].name}.py").write_text("")
    monkeypatch.setattr(catalogue, "__file__", str(package / "chapter" / "catalogue.py"))
    assert folder() == installed
    (installed / f"{SECTIONS[-1].name}.py").unlink()
    with pytest.raises(JaxperfError, match=r"^no experiments next to .*; install jaxperf again"):
        folder()
