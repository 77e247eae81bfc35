"""A report's script: the page's own modules, each before those that take from it, and uPlot as it was published."""

import hashlib
import re
from pathlib import Path

import pytest

from vlmplan.reports import bundle
from vlmplan.reports.bundle import VENDORED, script, style
from vlmplan.reports.elements import cleaned, without_folders


def test_vendored_files_are_those_of_the_release():
    said = dict(reversed(line.split()) for line in (VENDORED / "SOURCE.txt").read_text().splitlines() if "  " in line)
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in VENDORED.iterdir()}
    assert said == {name: checksum for name, checksum in files.items() if name != "SOURCE.txt"}


@pytest.mark.parametrize("entry", ["reports/report.js", "reports/rehearsal.js"])
def test_modules_come_before_those_that_take_from_them(entry: str):
    text = script(entry, has_timeline=False)
    made = re.findall(r"^const (module_\w+) = \(\(\) => \{", text, re.MULTILINE)
    taken = re.findall(r"^const .+ = (module_\w+);$", text, re.MULTILINE)
    assert len(made) == len(set(made))
    assert set(taken) <= set(made)
    for name in taken:
        assert text.index(f"const {name} = ") < text.index(f" = {name};")
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)


def test_an_import_of_another_kind_is_a_mistake_that_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    (tmp_path / "entry.js").write_text('import thing from "https://elsewhere/x.js";\n')
    with pytest.raises(AssertionError, match=r"entry\.js"):
        script("entry.js", has_timeline=False)


def test_styles_of_charts_are_those_of_the_page():
    assert "--optimizer_states" in style(has_timeline=False)
    assert ".u-over" in style(has_timeline=True)
    assert ".u-over" not in style(has_timeline=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/models/x: 3 GiB", "x: 3 GiB"),
        ("C:\\Users\\me\\x", "x"),
        ("of ~/models/x", "of x"),
        ("meta-llama/Llama-2 at 3 samples/s", "meta-llama/Llama-2 at 3 samples/s"),
        ("https://a.b/c/d", "https://a.b/c/d"),
        ("eJx+/abc/def/gh==", "eJx+/abc/def/gh=="),
    ],
)
def test_folders_of_the_machine_are_left_out(text: str, shown: str):
    assert without_folders(text) == shown
    assert cleaned({"a": [text, 1]}) == {"a": [shown, 1]}
