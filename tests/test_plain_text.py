"""Names of others reach a terminal and a picture as text that does nothing."""

import xml.etree.ElementTree

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_calls import refusal
from vlmplan.plain_text import one_line, printable, printable_line
from vlmplan.render import lines
from vlmplan.render.picture import html_table, markup, paragraph, svg_element, svg_file
from vlmplan.render.tables import Table, print_table

HOSTILE = "a\x1b]0;x\x07\x1b[2J\r\u202eb\u2066\x00\ud800\u2028"


@given(st.text())
def test_what_is_printable_stays_and_nothing_else_comes_through(text: str):
    assert printable(text).isprintable()
    assert one_line(text).isprintable()
    assert printable_line(text).isprintable()
    if text.isprintable():
        assert printable(text) == printable_line(text) == text


def test_colours_of_our_own_come_through():
    text = click.style("fits", fg="green", bold=True)
    assert printable_line(text + HOSTILE) == text + printable(HOSTILE)


@pytest.mark.parametrize("isatty", [False, True])
def test_whatever_is_printed_is_safe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, isatty: bool):
    monkeypatch.setattr("sys.stdout.isatty", lambda: isatty)
    lines.say(HOSTILE)
    lines.say_command(HOSTILE, HOSTILE)
    lines.tell(HOSTILE)
    print_table(Table(titles=["name"], rows=[[HOSTILE]]))
    found = capsys.readouterr()
    assert all(click.unstyle(line).isprintable() for line in (found.out + found.err).split("\n"))
    assert "\\x1b]0;x" in found.out
    assert "\x1b]" not in found.out + found.err


@given(st.text(max_size=20))
def test_pictures_are_xml_whatever_names_are_in_them(text: str):
    element = svg_element(text, [f'<text x="{markup(text)}">{markup(text)}</text>'])
    root = xml.etree.ElementTree.fromstring(svg_file(element).encode())
    assert root[0].text == (printable(text) or None)
    xml.etree.ElementTree.fromstring(paragraph(text))
    xml.etree.ElementTree.fromstring(html_table([text], [[text]]))


def test_a_name_of_thousands_of_letters_is_cut_in_a_sentence():
    name = "x" * 10**6
    assert len(refusal("estimate", "--model", "qwen2-vl-2b", "--gpu", name)) < 1000
