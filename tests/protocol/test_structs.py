"""What crosses the wire is exactly what the contract says, and comes back as it went."""

import importlib
import inspect
import pkgutil
from typing import get_args

import msgspec
import pytest

import kedge.protocol
from kedge.cli import run_options
from kedge.protocol import runs
from kedge.protocol.events import FileChange, encode
from kedge.protocol.messages import (
    Delta,
    File,
    Finish,
    Image,
    Message,
    MessageOf,
    Part,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    finish_of,
    text_of,
    with_text,
)
from kedge.protocol.runs import Run, RunState, Usage
from kedge.protocol.sessions import Session
from tests.protocol.examples import EXAMPLES, RUN

IDS = [f"{type(value).__name__}-{i}" for i, (value, _) in enumerate(EXAMPLES)]


@pytest.mark.parametrize(("value", "literal"), EXAMPLES, ids=IDS)
def test_a_struct_is_this_json(value: msgspec.Struct, literal: str) -> None:
    assert encode(value).decode() == literal


@pytest.mark.parametrize(("value", "literal"), EXAMPLES, ids=IDS)
def test_this_json_is_the_same_struct(value: msgspec.Struct, literal: str) -> None:
    wanted = Message if isinstance(value, MessageOf) else type(value)
    assert msgspec.json.decode(literal, type=wanted) == value


def test_every_struct_of_the_protocol_has_an_example() -> None:
    names = [module.name for module in pkgutil.iter_modules(kedge.protocol.__path__, "kedge.protocol.")]
    # The bodies of single routes are held by docs/openapi.json and the tests of the server.
    modules = [importlib.import_module(name) for name in names if name != "kedge.protocol.api"]
    structs = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, msgspec.Struct) and cls.__module__ == module.__name__ and not cls.__name__.startswith("_")
    }
    decoded_only = {"Event", "Envelope"}  # never sent themselves
    assert {cls.__name__ for cls in structs} - {type(value).__name__ for value, _ in EXAMPLES} == decoded_only


@pytest.mark.parametrize(("value", "literal"), EXAMPLES, ids=IDS)
def test_an_unknown_field_is_ignored(value: msgspec.Struct, literal: str) -> None:
    """An older client reads a newer server, and the other way round."""
    wanted = Message if isinstance(value, MessageOf) else type(value)
    longer = literal[:-1] + ("," if len(literal) > 2 else "") + '"from_the_future":[1]}'
    assert msgspec.json.decode(longer, type=wanted) == value


def test_what_may_be_left_out_is_there_all_the_same_when_read() -> None:
    assert msgspec.json.decode(b'{"type":"reasoning","text":"hm"}', type=Reasoning).signature is None
    old = b'{"id":"s","title":"","created_at":1.0,"updated_at":2.0}'
    session = msgspec.json.decode(old, type=Session)
    assert (session.created_at, session.updated_at, session.parent_session_id) == (1.0, 2.0, None)


def test_a_changed_file_is_told_by_its_size_never_by_its_content() -> None:
    change = FileChange("s", "r", "a.py", version=2, added=10, removed=3)
    assert (change.added, change.removed) == (10, 3)
    assert set(change.__struct_fields__) == {"session_id", "run_id", "path", "version", "added", "removed"}


def test_values_cannot_be_changed() -> None:
    for value, _ in EXAMPLES:
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], "changed")


PARTS: list[Part] = [
    Text("a"),
    Reasoning("b", "sig"),
    ToolCall("c", "n", "{}", True),
    ToolResult("c", "n", "out", False),
    Image("image/png", b"x"),
    File("f", "text/plain", b"x"),
    ShellCommand("ls", "", 0),
    Finish("end_turn"),
]


def test_a_part_is_known_by_its_type() -> None:
    assert msgspec.json.decode(encode(PARTS), type=list[Part]) == PARTS


def test_the_text_of_a_message_is_its_text_parts_alone() -> None:
    assert text_of(
        [Reasoning("no"), Text("one "), ToolCall("c", "n", "no", True), Text("two"), Finish("end_turn")]
    ) == ("one two")
    assert text_of([]) == ""


def test_a_message_is_finished_by_its_last_part() -> None:
    assert finish_of(PARTS) == Finish("end_turn")
    assert finish_of(PARTS[:-1]) is None
    assert finish_of([]) is None


@pytest.mark.parametrize(
    ("head", "whole"),
    [
        (Text(""), Text("x")),
        (Reasoning("", "sig"), Reasoning("x", "sig")),
        (ToolCall("c", "n", "", False), ToolCall("c", "n", "x", False)),
        (ToolResult("c", "n", "", False), ToolResult("c", "n", "x", False)),
        (ShellCommand("ls", "", None), ShellCommand("ls", "x", None)),
    ],
)
def test_a_streamed_part_gets_its_text_where_it_belongs(head: Part, whole: Part) -> None:
    assert with_text(head, "x") == whole


def test_a_part_that_comes_whole_has_no_streamed_text() -> None:
    assert with_text(Image("image/png", b""), "") == Image("image/png", b"")
    with pytest.raises(AssertionError, match="a Image is not streamed"):
        with_text(Image("image/png", b""), "x")


@pytest.mark.parametrize(
    ("state", "is_open"),
    [("queued", True), ("running", True), ("completed", False), ("failed", False), ("cancelled", False)],
)
def test_a_run_is_open_until_its_end(state: RunState, is_open: bool) -> None:
    run: Run = msgspec.structs.replace(RUN, state=state)
    assert run.is_open is is_open


def test_usage_adds_up_and_one_estimate_makes_the_sum_an_estimate() -> None:
    total = Usage(1, 2, 3, 4, 0.25) + Usage(10, 20, 30, 40, 0.5, estimated=True)
    assert total == Usage(11, 22, 33, 44, 0.75, estimated=True)
    assert Usage() + Usage() == Usage()


def test_offsets_of_a_delta_count_characters_not_bytes() -> None:
    delta = Delta("m", "s", "r", 0, "text", len("añ😀"), "x")
    assert msgspec.json.decode(encode(delta))["offset"] == 3


def test_the_options_of_commands_name_the_same_modes_and_efforts() -> None:
    """The commands have lists of their own: importing `typing` would slow each `kedge run`."""
    assert run_options.MODES == runs.MODES
    assert get_args(runs.Effort) == run_options.EFFORTS
