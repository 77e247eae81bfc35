"""Images: found by path or base64, judged by their header, opened upright in RGB."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from chat_files import as_base64, png, png_header
from vlmplan.chats.image_files import FORMATS, MAX_PIXELS, checked_size, located
from vlmplan.chats.references import Reference
from vlmplan.errors import InputError
from vlmplan_trainer.data.images import opened


def turned_jpeg(orientation: int) -> bytes:
    """40 x 20 pixels as they are stored, red on the left."""
    image = Image.new("RGB", (40, 20), "white")
    image.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.save(file, format="JPEG", exif=exif, quality=95, subsampling=0)
    return file.getvalue()


def find(text: str, *folders: Path, is_base64: bool = False) -> Path | bytes:
    return located(Reference(text=text, is_base64=is_base64), folders)


# Where they are


def test_a_path_is_looked_for_in_the_folders_in_turn(tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").write_bytes(png())
        (tmp_path / name / "both.png").write_bytes(png())
    folders = (tmp_path / "first", tmp_path / "second")
    assert find("second.png", *folders) == tmp_path / "second/second.png"
    assert find("both.png", *folders) == tmp_path / "first/both.png"
    assert find(str(tmp_path / "second/both.png"), *folders) == tmp_path / "second/both.png"


@pytest.mark.parametrize("scheme", ["file://", "FILE://", "file://localhost"])
def test_a_file_uri_is_its_path(scheme: str, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png())
    assert find(f"{scheme}{tmp_path}/a.png", Path("/nowhere")) == tmp_path / "a.png"
    with pytest.raises(InputError, match=r'the image "/nowhere/a.png" is no file'):
        find(f"{scheme}/nowhere/a.png", tmp_path)


@given(st.binary(min_size=64, max_size=200))
def test_base64_in_every_form_is_the_bytes_it_stands_for(data: bytes):
    text = as_base64(data)
    assert find(text, Path("/nowhere")) == data
    assert find(text, is_base64=True) == data
    assert find(f"data:image/png;base64,{text}") == data
    assert find(text[:9] + "\n" + text[9:], is_base64=True) == data


@pytest.mark.parametrize("url", ["https://example.com/a.png", "HTTP://x", "file://http://x", "s3://bucket/a.png"])
def test_a_url_is_never_followed(url: str):
    with pytest.raises(InputError, match="is a URL; images are read from files or base64, never from the net"):
        find(url, Path("/"))


@pytest.mark.parametrize("text", ["missing.png", "", ".", "x" * 5000 + ".png", "a\0.png"])
def test_a_file_that_is_not_there_is_a_sentence_with_the_places(text: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"is no file in .*"):
        find(text, tmp_path)


@pytest.mark.parametrize("text", ["data:image/png;base64,???", "data:image/png;base64,AAAAA"])
def test_broken_base64_is_refused(text: str):
    with pytest.raises(InputError, match="is not base64"):
        find(text)


def test_a_data_uri_that_is_not_base64_is_refused():
    with pytest.raises(InputError, match="a data: URI that is not base64"):
        find("data:image/svg+xml,<svg/>")


# What their header says


@pytest.mark.parametrize("form", FORMATS)
def test_the_size_of_every_format_is_read(form: str):
    assert checked_size(png(13, 7, form=form), name="it") == (13, 7)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_image(orientation: int):
    data = turned_jpeg(orientation)
    assert checked_size(data, name="it") == opened(data, name="it").size == ((40, 20) if orientation < 5 else (20, 40))


def test_an_image_of_the_most_pixels_passes_and_one_more_row_does_not():
    side, height = 5, 17_895_697
    assert side * height == MAX_PIXELS
    assert checked_size(png_header(side, height), name="it") == (side, height)
    with pytest.raises(
        InputError, match=f"^it is larger than the 89,478,485 pixels .* \\({side} x {height + 1} pixels"
    ):
        checked_size(png_header(side, height + 1), name="it")


@pytest.mark.parametrize("size", [(60_000, 60_000), (2**31 - 1, 2**31 - 1)])
@pytest.mark.parametrize("look", [checked_size, opened])
def test_a_decompression_bomb_is_refused_before_a_pixel_is_decoded(size: tuple[int, int], look):
    with pytest.raises(InputError, match=r"^it is larger than the 89,478,485 pixels"):
        look(png_header(*size), name="it")


def test_what_is_no_image_is_a_sentence(tmp_path: Path):
    file = tmp_path / "a.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for source in (b"", b"GIF", b"hello", file):
        with pytest.raises(InputError, match=r"^it cannot be read as an image \(.+\)$"):
            checked_size(source, name="it")


@given(st.integers(0, 400))
def test_a_file_cut_anywhere_is_a_sentence_and_never_a_traceback(cut: int):
    data = turned_jpeg(1)
    with pytest.raises(InputError, match=r"^it cannot be read as an image"):
        opened(data[: cut * len(data) // 500], name="it")


# What is in them


def test_a_turned_photograph_is_opened_upright():
    image = opened(turned_jpeg(6), name="it")  # stored left is seen above
    assert image.getpixel((10, 5))[1] < 30
    assert image.getpixel((10, 35))[1] > 225


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("L", 7, (7, 7, 7)),
        ("1", 1, (255, 255, 255)),
        ("RGBA", (9, 9, 9, 0), (255, 255, 255)),
        ("RGBA", (9, 8, 7, 255), (9, 8, 7)),
        ("LA", (9, 0), (255, 255, 255)),
        ("I;16", 256 * 100, (100, 100, 100)),
    ],
)
def test_every_kind_of_pixel_becomes_rgb_on_white(mode: str, colour: object, expected: tuple[int, ...]):
    image = opened(png(mode=mode, colour=colour), name="it")
    assert (image.mode, image.getpixel((3, 3))) == ("RGB", expected)
