"""What stands in the rows of tables is trained on: shards in a folder, and images, found again for each batch."""

from pathlib import Path

import pyarrow
import pyarrow.parquet

from chat_files import png
from vlmplan.chats.preferences import read_preferences
from vlmplan.chats.samples import read_chats
from vlmplan.run.record import data_mark
from vlmplan_trainer.data.images import opened

COLOURS = ["red", "lime", "blue"]


def shards(folder: Path) -> Path:
    """A sample a shard, each with an image as datasets keeps it beside one without."""
    for number, colour in enumerate(COLOURS):
        parts = [{"type": "image", "text": None}, {"type": "text", "text": "Which colour?"}]
        asked = {"role": "user", "content": parts}
        answer = {"role": "assistant", "content": [{"type": "text", "text": colour}]}
        image = {"bytes": png(8, 6, colour), "path": None}
        row = {"messages": [asked, answer], "images": [image], "source": None}
        table = pyarrow.Table.from_pylist([row, {"messages": [{**asked, "content": parts[1:]}, answer]}])
        pyarrow.parquet.write_table(table, folder / f"train-{number}.parquet")
    return folder


def test_each_image_is_that_of_its_row_and_shard(tmp_path: Path):
    samples, report = read_chats(shards(tmp_path), skips_bad=False)
    assert (report.num_samples, report.num_bad, len(samples)) == (6, 0, 6)
    images = [sample.images for sample in samples]
    assert [len(shown) for shown in images] == [1, 0, 1, 0, 1, 0]
    pixels = [opened(shown[0].source, name="an image").convert("RGB").getpixel((0, 0)) for shown in images[::2]]
    assert pixels == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


def test_a_run_goes_on_with_the_same_shards_alone(tmp_path: Path):
    before = data_mark(shards(tmp_path))
    assert data_mark(tmp_path) == before
    (tmp_path / "train-1.parquet").rename(tmp_path / "train-9.parquet")
    assert data_mark(tmp_path) != before


def test_preferences_stand_in_tables_as_well(tmp_path: Path):
    rows = [{"prompt": "Which?", "chosen": "This.", "rejected": "That.", "score": 0.5}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    [pair], _ = read_preferences(tmp_path / "a.parquet", skips_bad=False)
    assert (pair.chosen.turns[-1].text, pair.rejected.turns[-1].text) == ("This.", "That.")
