"""Files: read and written whole or not at all, as text, JSON or YAML, and where the user's own are."""

# pyright: reportUnusedImport=false
from vlmplan.files.read_write import (
    EXECUTABLE,
    MAX_TEXT_BYTES,
    NOT_JSON,
    READABLE,
    SHIPPED_CATALOG,
    open_regular,
    proc_bytes,
    refuse_existing,
    refuse_unwritable,
    remove_half_written,
    shipped_catalog_path,
    text_if_there,
    text_of,
    write_atomically,
)
