"""P17: what is too much, too little or no text is refused, with a code that a client can act on."""

import pytest

from kedge.protocol.bounds import MAX_BODY_BYTES, MAX_PROMPT_BYTES
from kedge.protocol.errors import (
    Conflict,
    ErrorBody,
    Invalid,
    KedgeError,
    NotFound,
    SessionBusy,
    StoreUnavailable,
    TooLarge,
    TooMany,
    Unavailable,
)
from kedge.protocol.runs import Attachment
from kedge.protocol.validation import check_prompt, check_run_id, check_text

NOTE = Attachment("a.md", "text/markdown", b"do this")
PICTURE = Attachment("a.png", "image/png", b"\x89")


@pytest.mark.parametrize("run_id", ["a", "7", "Z", "a-b_C9", "a" * 128, "0----"])
def test_a_good_run_id_is_taken(run_id: str) -> None:
    check_run_id(run_id)


@pytest.mark.parametrize(
    "run_id",
    ["", "-a", "_a", "a" * 129, "a b", "a\n", "\na", "a/b", "a.b", "ä", "a\u0660", "a\x00", "../x"],
)
def test_a_bad_run_id_is_refused(run_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_run_id(run_id)
    assert refused.value.code == "invalid_run_id"


@pytest.mark.parametrize(
    ("prompt", "attachments"),
    [
        ("hi", ()),
        (" x ", ()),
        ("", (NOTE,)),
        (" \n", (PICTURE, NOTE)),
        ("x" * MAX_PROMPT_BYTES, ()),
        ("ä" * (MAX_PROMPT_BYTES // 2), ()),
        ("\x00", ()),
    ],
    ids=["plain", "padded", "only a note", "blank with a note", "as long as allowed", "the same in umlauts", "nul"],
)
def test_a_good_prompt_is_taken(prompt: str, attachments: tuple[Attachment, ...]) -> None:
    check_prompt(prompt, attachments)


@pytest.mark.parametrize(
    ("prompt", "attachments", "code"),
    [
        ("", (), "empty_prompt"),
        (" \n\t\u00a0\u3000", (), "empty_prompt"),
        ("", (PICTURE,), "empty_prompt"),
        ("\ud83d", (), "invalid_text"),
        ("\ude00 x", (NOTE,), "invalid_text"),
    ],
    ids=["empty", "blank", "only a picture", "half a pair", "the other half"],
)
def test_a_bad_prompt_is_refused(prompt: str, attachments: tuple[Attachment, ...], code: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_prompt(prompt, attachments)
    assert refused.value.code == code


@pytest.mark.parametrize("prompt", ["x" * (MAX_PROMPT_BYTES + 1), "ä" * (MAX_PROMPT_BYTES // 2 + 1)], ids=["x", "ä"])
def test_a_prompt_that_is_too_long_is_refused_by_its_bytes(prompt: str) -> None:
    with pytest.raises(TooLarge) as refused:
        check_prompt(prompt)
    assert refused.value.body == ErrorBody("prompt_too_large", "the prompt is over 4 MiB; attach a file instead")


def test_a_body_has_room_for_the_longest_prompt_escaped() -> None:
    assert MAX_BODY_BYTES >= 6 * MAX_PROMPT_BYTES  # JSON may write one byte as \\u0000


def test_text_is_checked_by_name() -> None:
    check_text("😀", "title")
    with pytest.raises(Invalid, match="title"):
        check_text("\ud83d", "title")


@pytest.mark.parametrize(
    ("error", "family", "body"),
    [
        (NotFound("run", "r1"), NotFound, ErrorBody("run_not_found", "there is no run 'r1' here")),
        (NotFound("session", "\n"), NotFound, ErrorBody("session_not_found", "there is no session '\\n' here")),
        (Conflict("run_id_conflict", "m"), Conflict, ErrorBody("run_id_conflict", "m")),
        (
            SessionBusy("r1"),
            Conflict,
            ErrorBody("session_busy", "the session is busy with run r1; wait, queue or cancel it"),
        ),
        (Invalid("empty_prompt", "m"), Invalid, ErrorBody("empty_prompt", "m")),
        (TooLarge("prompt_too_large", "m"), TooLarge, ErrorBody("prompt_too_large", "m")),
        (TooMany("too_many_runs", "m"), TooMany, ErrorBody("too_many_runs", "m")),
        (Unavailable("shutting_down", "m"), Unavailable, ErrorBody("shutting_down", "m")),
        (
            StoreUnavailable("the disk is full"),
            Unavailable,
            ErrorBody("store_unavailable", "nothing was stored: the disk is full"),
        ),
    ],
)
def test_an_error_has_a_family_and_a_body_of_one_line(
    error: KedgeError, family: type[KedgeError], body: ErrorBody
) -> None:
    assert isinstance(error, family)
    assert error.body == body
    assert str(error) == body.message
    assert "\n" not in error.message


def test_a_busy_session_names_its_active_run() -> None:
    assert SessionBusy("r1").active_run_id == "r1"
