import importlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import get_session
from hypothesis import given
from hypothesis import strategies as st

from hub_server import Answer, FakeHub, endless_server, isolated_cache, running_hub
from vlmplan import __version__
from vlmplan.errors import InputError, UnavailableError
from vlmplan.models import hub, hub_network
from vlmplan.models.hub import cached_files, hub_files, hugging_face_cache
from vlmplan.models.hub_names import (
    CONFIG,
    FILE_NAMES,
    MAX_BYTES,
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    HubId,
    hub_id,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/name"
LLAMA = b'{"model_type": "llama"}'


@pytest.fixture
def hub_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    return isolated_cache(monkeypatch, tmp_path)


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, hub_environment: Path) -> Iterator[FakeHub]:
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.put(REPO, CONFIG, Answer(body=LLAMA, headers={"X-Repo-Commit": COMMIT}))
        yield server


def wanted(text: str = REPO) -> HubId:
    found = hub_id(text)
    assert found is not None
    return found


def sentence(text: str = REPO) -> str:
    with pytest.raises(UnavailableError) as caught:
        hub_files(wanted(text))
    message = str(caught.value)
    assert "\n" not in message
    return message


def put_snapshot(cache: Path, files: dict[str, str], commit: str = COMMIT, ref: str | None = "main") -> None:
    """A repository in the layout of the Hugging Face cache."""
    repo = cache / "models--org--name"
    (repo / "snapshots" / commit).mkdir(parents=True)
    for name, text in files.items():
        (repo / "snapshots" / commit / name).write_text(text, encoding="utf-8")
    if ref is not None:
        (repo / "refs" / ref).parent.mkdir(parents=True)
        (repo / "refs" / ref).write_text(commit, encoding="utf-8")


# Names


def test_an_id_is_an_organisation_and_a_name_with_or_without_a_revision():
    assert hub_id("Qwen/Qwen2-VL-2B-Instruct") == HubId(repo="Qwen/Qwen2-VL-2B-Instruct", revision="main")
    assert hub_id("org/name@refs/pr/7") == HubId(repo="org/name", revision="refs/pr/7")
    assert str(wanted("org/name@v1")) == "org/name@v1"
    assert str(wanted("org/name@main")) == "org/name"


@pytest.mark.parametrize(
    "text",
    [
        *("name", "", "/", "a/b/c", "../up", "org/..", "org/na me", "org/a--b", "-o/name", "org/näme", "org/name\n"),
        *("org/name@", "org/name@../x", "org/name@a/../b", "org/name@/x", "org/name@-x"),
        "https://huggingface.co/org/name",
    ],
)
def test_what_could_leave_the_cache_or_the_server_is_no_id(text: str):
    assert hub_id(text) is None


@given(st.text(max_size=40))
def test_no_id_reaches_out_of_a_folder(text: str):
    found = hub_id(text)
    if found is not None:
        parts = [*found.repo.split("/"), *found.revision.split("/")]
        assert all(part and not part.startswith("..") for part in parts)


# The Hugging Face cache


def test_the_snapshot_that_the_branch_names_is_read(hub_environment: Path):
    put_snapshot(hub_environment, {CONFIG: "{}", PROCESSOR: "[]"})
    found = cached_files(wanted())
    assert found is not None
    assert found.texts == {CONFIG: "{}", PROCESSOR: "[]"}
    assert found.source == "the Hugging Face cache, commit 0123456789ab"


def test_a_commit_is_read_without_a_branch(hub_environment: Path):
    put_snapshot(hub_environment, {CONFIG: "{}"}, ref=None)
    assert cached_files(wanted()) is None
    assert cached_files(wanted(f"org/name@{COMMIT}")) is not None


def test_a_reference_that_is_no_name_is_not_followed(hub_environment: Path):
    put_snapshot(hub_environment, {CONFIG: "{}"}, ref=None)
    (hub_environment / "models--org--name" / "refs").mkdir()
    (hub_environment / "models--org--name" / "refs" / "main").write_text("../../../secret", encoding="utf-8")
    assert cached_files(wanted()) is None


def test_a_snapshot_without_config_counts_as_none(hub_environment: Path):
    put_snapshot(hub_environment, {PREPROCESSOR: "{}"})
    assert cached_files(wanted()) is None


def test_the_cache_is_where_the_hub_client_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert hugging_face_cache() == tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hugging_face_cache() == tmp_path / "xdg" / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert hugging_face_cache() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert hugging_face_cache() == tmp_path / "cache"


def test_a_cached_model_needs_no_network(hub_environment: Path, fake_hub: FakeHub):
    put_snapshot(hub_environment, {CONFIG: "{}"})
    hub_files(wanted())
    assert fake_hub.requests == []


# The Hub


def test_config_and_image_settings_are_fetched_of_one_commit_and_nothing_else(fake_hub: FakeHub):
    fake_hub.put(REPO, PREPROCESSOR, Answer(body=b'{"size": 1}'), revision=COMMIT)
    found = hub_files(wanted())
    assert found.texts == {CONFIG: LLAMA.decode(), PREPROCESSOR: '{"size": 1}'}
    assert fake_hub.paths == [f"/{REPO}/resolve/main/{CONFIG}", f"/{REPO}/resolve/{COMMIT}/{PREPROCESSOR}"]
    assert found.source.endswith("commit 0123456789ab")


@pytest.mark.parametrize("model_type", ["qwen3_vl", "qwen3_omni_moe"])
def test_a_model_that_takes_videos_has_the_settings_of_its_video_processor_too(fake_hub: FakeHub, model_type: str):
    config = json.dumps({"model_type": model_type}).encode()
    fake_hub.put(REPO, CONFIG, Answer(body=config, headers={"X-Repo-Commit": COMMIT}))
    for name, body in ((PREPROCESSOR, b'{"size": 1}'), (VIDEO_PREPROCESSOR, b'{"size": 2}')):
        fake_hub.put(REPO, name, Answer(body=body), revision=COMMIT)
    found = hub_files(wanted())
    assert (found.texts[PREPROCESSOR], found.texts[VIDEO_PREPROCESSOR]) == ('{"size": 1}', '{"size": 2}')
    fake_hub.answers.clear()
    assert hub_files(wanted()).texts == found.texts  # as kept


def test_newer_checkpoints_have_processor_config_instead(fake_hub: FakeHub):
    fake_hub.put(REPO, PROCESSOR, Answer(body=b'{"image_processor": {}}'), revision=COMMIT)
    assert hub_files(wanted()).texts[PROCESSOR] == '{"image_processor": {}}'


def test_a_slash_in_a_revision_is_quoted(fake_hub: FakeHub):
    fake_hub.put(REPO, CONFIG, Answer(body=LLAMA), revision="refs%2Fpr%2F7")
    hub_files(wanted("org/name@refs/pr/7"))
    assert fake_hub.paths[0] == f"/{REPO}/resolve/refs%2Fpr%2F7/{CONFIG}"


def test_what_was_fetched_is_kept_for_the_next_time(fake_hub: FakeHub):
    first = hub_files(wanted())
    count = len(fake_hub.requests)
    second = hub_files(wanted())
    assert second.texts == first.texts
    assert len(fake_hub.requests) == count
    assert "kept copy" in second.source


def test_a_kept_branch_is_asked_for_again_after_a_day_and_a_commit_never(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
):
    fake_hub.put(REPO, CONFIG, Answer(body=LLAMA), revision=COMMIT)
    for name in (REPO, f"{REPO}@{COMMIT}"):
        hub_files(wanted(name))
    count = len(fake_hub.requests)
    later = time.time() + hub.FRESH_SECONDS + 1
    monkeypatch.setattr(hub.time, "time", lambda: later)
    hub_files(wanted(f"{REPO}@{COMMIT}"))
    assert len(fake_hub.requests) == count
    hub_files(wanted())
    assert len(fake_hub.requests) > count


def test_an_old_copy_serves_with_a_note_when_the_hub_is_gone(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub_files(wanted())
    later = time.time() + 3 * 86400
    monkeypatch.setattr(hub.time, "time", lambda: later)
    monkeypatch.setattr(hub, "fetched_file", unreachable)
    found = hub_files(wanted())
    assert found.texts[CONFIG] == LLAMA.decode()
    (note,) = found.notes
    assert "3 days ago" in note


def unreachable(*args: object) -> None:
    raise hub_network.UnreachableError("the hub cannot be reached (gone)")


def test_an_old_copy_does_not_hide_that_the_model_is_gone(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub_files(wanted())
    later = time.time() + 3 * 86400
    monkeypatch.setattr(hub.time, "time", lambda: later)
    fake_hub.put(REPO, CONFIG, Answer(status=404, headers={"X-Error-Code": "RepoNotFound"}))
    assert "has no model org/name" in sentence()


def test_copies_of_one_server_do_not_serve_for_another(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub_files(wanted())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "cannot be reached" in sentence()


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '{"schema": 1}', '{"schema": 1, "texts": {}, "fetched_at": 0}', "x"]
)
def test_a_broken_copy_counts_as_none(fake_hub: FakeHub, tmp_path: Path, text: str):
    hub_files(wanted())
    (kept,) = (tmp_path / "cache" / "vlmplan" / "hub").rglob("*.json")
    kept.write_text(text, encoding="utf-8")
    count = len(fake_hub.requests)
    hub_files(wanted())
    assert len(fake_hub.requests) > count


def test_where_nothing_can_be_kept_the_files_are_still_found(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "file"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    assert CONFIG in hub_files(wanted()).texts


@pytest.mark.parametrize("value", ["1", "true", "ON", "Yes"])
def test_offline_means_that_nothing_is_asked_for(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert "HF_HUB_OFFLINE" in sentence()
    assert fake_hub.requests == []


def test_offline_an_old_copy_serves(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    hub_files(wanted())
    later = time.time() + 9 * 86400
    monkeypatch.setattr(hub.time, "time", lambda: later)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_files(wanted()).texts[CONFIG] == LLAMA.decode()


# Refusals


@pytest.mark.parametrize(
    ("status", "code", "part"),
    [
        (401, "GatedRepo", "is gated: accept its licence on"),
        (403, "GatedRepo", "is gated: accept its licence on"),
        (403, None, "is probably gated"),
        (401, "RepoNotFound", "has no model org/name, or it is private, for which HF_TOKEN must be set"),
        (404, "RepoNotFound", "has no model org/name"),
        (404, "RevisionNotFound", "org/name has no revision 'main'"),
        (404, "EntryNotFound", "org/name has no config.json"),
        (429, None, "answers 429"),
        (500, None, "try again later"),
    ],
)
def test_each_refusal_is_a_sentence_of_its_own(fake_hub: FakeHub, status: int, code: str | None, part: str):
    fake_hub.put(REPO, CONFIG, Answer(status=status, headers={"X-Error-Code": code} if code else {}))
    assert part in sentence()


def test_a_gated_model_names_the_page_and_the_variable(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    fake_hub.put(REPO, CONFIG, Answer(status=401, headers={"X-Error-Code": "GatedRepo"}))
    assert sentence().endswith(
        f"accept its licence on {fake_hub.url}/org/name, then set HF_TOKEN to an access token of yours"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert sentence().endswith("your HF_TOKEN has no access yet")


def test_a_huge_file_is_not_taken(fake_hub: FakeHub):
    fake_hub.put(REPO, CONFIG, Answer(body=b" " * (MAX_BYTES + 1)))
    assert "more than 4 MiB" in sentence()


def test_a_file_that_is_no_text_is_refused(fake_hub: FakeHub):
    fake_hub.put(REPO, CONFIG, Answer(body=b"\xff\xfe\x00"))
    with pytest.raises(InputError, match="not text in UTF-8"):
        hub_files(wanted())


def test_a_silent_server_is_given_up_on(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub_network, "TIMEOUT_SECONDS", 0.2)
    fake_hub.put(REPO, CONFIG, Answer(seconds_of_silence=30))
    start = time.monotonic()
    assert "cannot be reached (no answer within" in sentence()
    assert time.monotonic() - start < 5


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("start", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    ],
    ids=["headers", "one header", "100 Continue", "body"],
)
def test_a_server_that_never_ends_is_given_up_on(
    hub_environment: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, again: bytes
):
    monkeypatch.setattr(hub_network, "DEADLINE_SECONDS", 0.5)
    begin = time.monotonic()
    with endless_server(start, again) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert "takes more than 0.5 s to answer" in sentence()
    assert time.monotonic() - begin < 5


@pytest.mark.sweep
def test_the_deadline_is_one_of_all_files_together(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(hub_network, "DEADLINE_SECONDS", 0.5)
    for name in FILE_NAMES:
        fake_hub.put(REPO, name, Answer(body=LLAMA, seconds_of_silence=0.3))
    before = set(threading.enumerate())
    assert "takes more than 0.5 s to answer" in sentence()
    for thread in set(threading.enumerate()) - before:
        thread.join(5.0)
    assert not list((tmp_path / "cache").rglob("*.json"))  # what comes later is not kept behind the user's back


@pytest.mark.parametrize(
    "page",
    [
        b"<html><body>Please sign in to use the network</body></html>",
        b'{"error": "sign in"}',
        b"[]",
        b"",
        b"[" * 100_000,
    ],
)
def test_a_page_that_is_no_configuration_is_not_kept(fake_hub: FakeHub, tmp_path: Path, page: bytes):
    fake_hub.put(REPO, CONFIG, Answer(body=page))
    assert "answers with what is no configuration (config.json of org/name " in sentence()
    assert not list((tmp_path / "cache").rglob("*.json"))
    fake_hub.put(REPO, CONFIG, Answer(body=LLAMA))
    assert hub_files(wanted()).texts[CONFIG] == LLAMA.decode()


def test_a_page_in_place_of_the_image_settings_is_not_kept(fake_hub: FakeHub, tmp_path: Path):
    fake_hub.put(REPO, PREPROCESSOR, Answer(body=b"<html>Please sign in</html>"), revision=COMMIT)
    assert "preprocessor_config.json of org/name is not JSON" in sentence()
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_page_that_an_earlier_version_kept_is_asked_for_again(fake_hub: FakeHub, tmp_path: Path):
    hub_files(wanted())
    (kept,) = (tmp_path / "cache" / "vlmplan" / "hub").rglob("*.json")
    values = json.loads(kept.read_text())
    kept.write_text(json.dumps(values | {"texts": {CONFIG: "<html>Please sign in</html>"}}))
    assert hub_files(wanted()).texts[CONFIG] == LLAMA.decode()


def test_an_old_copy_serves_where_a_network_wants_a_sign_in(fake_hub: FakeHub, tmp_path: Path):
    hub_files(wanted())
    (kept,) = (tmp_path / "cache" / "vlmplan" / "hub").rglob("*.json")
    values = json.loads(kept.read_text())
    kept.write_text(json.dumps(values | {"fetched_at": 0}))
    fake_hub.put(REPO, CONFIG, Answer(body=b"<html>Please sign in</html>"))
    found = hub_files(wanted())
    assert found.texts[CONFIG] == LLAMA.decode()
    assert "answers with what is no configuration" in found.notes[0]


def test_words_of_a_server_do_nothing_to_a_terminal(hub_environment: Path, monkeypatch: pytest.MonkeyPatch):
    answer = b"HTTP/1.1 500 \x1b]0;x\x07\x1b[2J gone\r\nContent-Length: 0\r\n\r\n"
    with endless_server(answer, b"") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert sentence().isprintable()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"garbage\r\n\r\n", "its answer is no HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://x/\r\nContent-Length: 0\r\n\r\n", "it redirects out of the web"),
    ],
    ids=["garbage", "ftp"],
)
def test_what_is_wrong_with_an_answer_is_said_in_words(
    hub_environment: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
):
    with endless_server(answer, b"") as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert f"cannot be reached ({words})" in sentence()


def test_an_answer_that_cannot_be_decompressed_is_said_to_be_one(fake_hub: FakeHub):
    fake_hub.put(REPO, CONFIG, Answer(body=b"{}" * 99, headers={"Content-Encoding": "gzip"}))
    assert "cannot be reached (its answer cannot be decompressed)" in sentence()


def test_a_redirect_to_itself_is_said_to_have_no_end(fake_hub: FakeHub):
    fake_hub.answers["/x"] = Answer(status=302, headers={"Location": "/x"})
    fake_hub.put(REPO, CONFIG, Answer(status=302, headers={"Location": "/x"}))
    assert "cannot be reached (it redirects without end)" in sentence()


def test_without_a_server_the_sentence_says_so(hub_environment: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    message = sentence()
    assert message.startswith("org/name is in no cache of this machine, and 127.0.0.1:1 cannot be reached (")


@pytest.mark.parametrize(
    "value",
    [
        *("huggingface.co", "ftp://x", "file:///etc", "https://", "https://user:secret@host"),
        *("http://[::1", "http://a:b", "http://a:99999", "http://a b", "http://a\x1b[2J"),
    ],
)
def test_an_endpoint_that_is_no_web_address_is_refused(
    hub_environment: Path, monkeypatch: pytest.MonkeyPatch, value: str
):
    monkeypatch.setenv("HF_ENDPOINT", value)
    with pytest.raises(InputError, match="HF_ENDPOINT"):
        hub_files(wanted())


# The token


def token_sent(hub_: FakeHub, index: int = 0) -> str | None:
    return hub_.requests[index][1].get("Authorization")


def test_the_token_is_sent_to_the_endpoint_and_kept_nowhere(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_files(wanted())
    assert token_sent(fake_hub) == "Bearer hf_secret"
    written = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any("hf_secret" in text for text in written)


def test_without_a_token_none_is_sent(fake_hub: FakeHub):
    hub_files(wanted())
    assert token_sent(fake_hub) is None


def test_the_token_does_not_follow_a_redirect_to_another_server(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with running_hub() as other:
        other.answers["/elsewhere"] = Answer(body=LLAMA)
        fake_hub.put(REPO, CONFIG, Answer(status=302, headers={"Location": f"{other.url}/elsewhere"}))
        assert hub_files(wanted()).texts[CONFIG] == LLAMA.decode()
        assert token_sent(fake_hub) == "Bearer hf_secret"
        assert token_sent(other) is None


def test_the_token_follows_a_redirect_within_the_server(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fake_hub.answers["/org/renamed/config"] = Answer(body=LLAMA)
    fake_hub.put(REPO, CONFIG, Answer(status=307, headers={"Location": "/org/renamed/config"}))
    hub_files(wanted())
    assert token_sent(fake_hub, 1) == "Bearer hf_secret"


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[::1", "http://a:b/x", "//", "http:\\x"]
)
def test_no_redirect_leads_out_of_the_web(fake_hub: FakeHub, target: str):
    fake_hub.put(REPO, CONFIG, Answer(status=302, headers={"Location": target}))
    sentence()


def test_https_does_not_become_http(hub_environment: Path, monkeypatch: pytest.MonkeyPatch):
    """A configuration that anybody on the way could have written is none; the client itself would follow."""
    http_library = importlib.import_module(type(get_session()).__module__.partition(".")[0])

    def answer(request: Any) -> Any:
        if request.url.scheme == "https":
            return http_library.Response(302, headers={"Location": "http://mirror.example/x"})
        return http_library.Response(200, content=LLAMA)

    client = http_library.Client(transport=http_library.MockTransport(answer), follow_redirects=True)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: client)
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example")
    assert "cannot be reached (it redirects to http)" in sentence()


def test_the_token_that_the_user_logged_in_with_is_sent(fake_hub: FakeHub, tmp_path: Path):
    (tmp_path / "token").write_text("hf_logged_in", encoding="utf-8")
    hub_files(wanted())
    assert token_sent(fake_hub) == "Bearer hf_logged_in"


def test_the_server_is_told_of_vlmplan_and_asked_for_nothing_else(fake_hub: FakeHub):
    hub_files(wanted())
    assert {headers["User-Agent"] for _, headers in fake_hub.requests} == {f"vlmplan/{__version__}"}
    assert all(path.rpartition("/")[2] in FILE_NAMES for path in fake_hub.paths)


def test_no_token_crosses_a_network_unencrypted(hub_environment: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for endpoint, is_sent in (("http://mirror.example", False), ("https://mirror.example", True)):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert (hub_network._token() is not None) is is_sent


@pytest.mark.parametrize("token", ["hf_a\r\nX-Forged: 1", "hf_\u00e9", "hf_\x07"])
def test_a_token_that_no_header_can_hold_forges_none(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str):
    monkeypatch.setenv("HF_TOKEN", token)
    hub_files(wanted())
    assert token_sent(fake_hub) in (None, "Bearer hf_aX-Forged: 1")
    assert not any("X-Forged" in headers for _, headers in fake_hub.requests)


def test_no_error_shows_the_token(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for status in (401, 403, 404, 500):
        fake_hub.put(REPO, CONFIG, Answer(status=status))
        assert "hf_secret" not in sentence()


def test_a_kept_copy_says_nothing_of_the_environment(fake_hub: FakeHub, tmp_path: Path):
    hub_files(wanted())
    (kept,) = (tmp_path / "cache" / "vlmplan" / "hub").rglob("*.json")
    values = json.loads(kept.read_text(encoding="utf-8"))
    assert set(values) == {"schema", "fetched_at", "source", "texts"}
    assert os.path.basename(kept.parent) == "models--org--name"
