"""Permission requests and questions: each answer by its key, none by keys typed ahead, and answers of other clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kedge.client import AsyncClient
from kedge.protocol.messages import ToolResult
from kedge.tui.dialogs import dialog, docked, permission
from kedge.tui.dialogs.requests import FilledIn, QuestionDialog
from tests.e2e.home import Home, asking
from tests.tui.ui_driver import UiDriver, kedge


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dialogs are seen by now; the one test of haste says otherwise."""
    monkeypatch.setattr(dialog, "QUIET_S", 0.0)
    monkeypatch.setattr(docked, "HOLD_S", 0.0)


def bash(models_home: Home, name: str, *commands: str) -> str:
    """A prompt whose answer runs these, one after the other."""
    steps = [
        {"tool_calls": json.dumps([{"name": "bash", "input": {"command": command}}]), "text": f"step {number}"}
        for number, command in enumerate(commands)
    ]
    models_home.models.on(*steps, {"text": "THE-END"}, prompt=name)
    return name


async def ask(ui: UiDriver, prompt: str) -> None:
    await ui.submit(prompt)
    await ui.opens("PermissionDialog")


@pytest.mark.parametrize("key", ["a", "y"])
async def test_allow(served: Home, tmp_path: Path, key: str) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "allow twice", "touch one", "touch two"))
        await ui.shows("Allow bash?", "$ touch one")
        await ui.press(key)
        await ui.shows("$ touch two")
        assert (tmp_path / "one").exists()
        await ui.press(key)
        await ui.shows("THE-END")
        assert (tmp_path / "two").exists()


async def test_allow_for_the_session_asks_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "allow always", "touch same", "touch same"))
        await ui.press("s")
        await ui.shows("THE-END")


@pytest.mark.parametrize("key", ["d", "n"])
async def test_deny(served: Home, tmp_path: Path, key: str) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "deny this", "touch never"))
        await ui.press(key)
        await ui.closes()
        await ui.idle()
        assert not (tmp_path / "never").exists()
        assert ui.told == [], "no word on what we did ourselves"


async def test_postpone_and_reopen(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "later then", "touch later"))
        await ui.press("escape")
        await ui.closes()
        await ui.shows("Waiting for you (F2)")
        await ui.press("a")
        assert ui.app.chat.editor.text == "a"
        await ui.press("f2")
        await ui.opens("PermissionDialog")
        await ui.press("a")
        await ui.shows("THE-END")


async def test_the_answer_key_gives_no_keys_to_a_later_request(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit("!true")
        await ui.idle()
        await ui.press("f2")  # nothing to answer
        call = json.dumps([{"name": "bash", "input": {"command": "touch never"}}])
        await ui.submit(asking(gate="typed", tool_calls=call))
        await ui.press(*"then ")
        served.models.release("typed")
        await ui.shows("Allow bash?")
        await ui.press("a")
        await ui.shows("F2 to answer")
        assert ui.app.chat.editor.text == "then a"
        assert not (tmp_path / "never").exists()


async def test_always_allow_writes_the_rule_that_is_shown(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "allow for good", "touch good", "touch good"))
        await ui.shows(f"{permission.ALWAYS_LABEL}, in every directory: bash(touch good)")
        await ui.press("w", "enter")
        await ui.shows("THE-END")
        assert "bash(touch good)" in (served.config_dir / "kedge" / "config.toml").read_text()


async def test_a_word_that_was_typed_leaves_no_choice_selected(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docked, "HOLD_S", 600.0)  # also a slow machine types a word
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "typed into", "touch typed"))
        dialog = ui.app.screen.query_one(permission.PermissionDialog)
        await ui.press(*"wait")
        assert ui.app.chat.editor.text == "wait"
        await ui.press("f2", "enter")
        assert dialog.is_in_use
        assert not (tmp_path / "typed").exists()
        await ui.press("a", "enter")
        await ui.shows("THE-END")


async def test_deny_with_a_reason_and_the_turn_goes_on(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "deny kindly", "touch never"))
        await ui.press("r", *"no", "enter")
        await ui.shows("THE-END", "You denied this command: no")
        assert not (tmp_path / "never").exists()


async def test_a_reason_that_was_not_sent_is_kept(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "think twice", "touch never"))
        await ui.press("r", *"not so", "escape", "escape")
        await ui.closes()
        await ui.press("f2")
        await ui.opens("PermissionDialog")
        await ui.press("r", "enter")
        await ui.shows("THE-END", "You denied this command: not so")


async def test_what_would_not_be_remembered_is_not_offered(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "remove it", "rm made"))
        assert permission.SESSION_LABEL not in ui.text
        assert permission.ALWAYS_LABEL not in ui.text
        await ui.press("d")
        await ui.closes()


@pytest.mark.parametrize("keys", [("right", "enter"), ("down", "enter"), ("tab", "left", "right", "enter")])
async def test_a_choice_is_confirmed_by_enter_and_nothing_is_chosen_at_first(
    served: Home, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "choose it", "touch chosen"))
        await ui.press("enter")
        assert not (tmp_path / "chosen").exists()
        await ui.press(*keys)
        await ui.shows("THE-END")
        assert (tmp_path / "chosen").exists()


async def test_text_never_answers_and_no_letter_is_lost(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(bash(served, "in a hurry", "touch hasty"))
        await ui.press(*"then please ")  # the dialog opens meanwhile
        await ui.shows("Allow bash?", "F2 to answer")
        await ui.press(*"add tests")
        assert ui.app.chat.editor.text == "then please add tests"
        assert not (tmp_path / "hasty").exists()
        await ui.press("f2")
        assert ui.dialog("PermissionDialog")
        monkeypatch.setattr(docked, "HOLD_S", 1000.0)
        await ui.press(*" days")  # typed on without a pause: text, though d and a and s are keys
        assert ui.app.chat.editor.text == "then please add testsdays"
        assert not ui.dialog("PermissionDialog")
        await ui.press("f2", "d", "enter")
        await ui.closes()
        await ui.idle()
        assert ui.app.chat.editor.text == "then please add testsdays"


async def test_a_dialog_waits_until_the_keyboard_is_quiet(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialog, "QUIET_S", 1000.0)
    async with kedge(tmp_path) as ui:
        await ui.submit(bash(served, "in no hurry", "touch calm"))
        await ui.shows("Allow bash?")
        await ui.press(*"as")
        assert ui.app.chat.editor.text == "as"
        monkeypatch.setattr(dialog, "QUIET_S", 0.0)
        await ui.press("backspace", "backspace")  # the prompt is empty again
        await ui.opens("PermissionDialog")
        await ui.press("x")
        assert ui.app.chat.editor.text == "x", "no key of the dialog"
        await ui.press("backspace")
        await ui.opens("PermissionDialog")
        await ui.write("pasted")
        assert ui.app.chat.editor.text == "pasted"
        assert not (tmp_path / "calm").exists()
        await ui.press("f2", "d")
        await ui.closes()


async def test_ctrl_c_in_a_dialog_postpones_it(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "stop that", "touch never"))
        await ui.press("ctrl+c")
        await ui.closes()
        await ui.shows("F2 shows the request again")
        assert ui.app.chat.editor.has_focus
        await ui.press("f2")
        await ui.opens("PermissionDialog")
        await ui.press("d")
        await ui.closes()


@pytest.mark.parametrize("kind", ["yes_no", "text"])
async def test_keys_typed_ahead_do_not_answer_a_question(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(dialog, "QUIET_S", 1000.0)
    question = [{"question": "Shall I?", "kind": kind}]
    served.models.on(
        {"tool_calls": json.dumps([{"name": "question", "input": {"questions": question}}])},
        {"text": "THE-END"},
        prompt=f"ask {kind} in a hurry",
    )
    async with kedge(tmp_path) as ui:
        await ui.submit(f"ask {kind} in a hurry")
        await ui.opens("QuestionDialog")
        await ui.press(*"so", "space", "down", "enter", "ctrl+s", "ctrl+r")
        assert ui.dialog("QuestionDialog")
        assert question_form(ui).filled_in == [FilledIn()]
        monkeypatch.setattr(dialog, "QUIET_S", 0.0)
        await ui.press("space" if kind == "yes_no" else "x", "ctrl+s")
        await ui.shows("THE-END")


async def test_a_request_answered_by_another_client_closes_with_a_notice(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ask(ui, bash(served, "asked of two", "touch theirs"))
        (request,) = ui.app.workspace.requests
        async with await AsyncClient.connect(str(tmp_path), name="their-client") as other:
            await other.call("POST", "/permissions/grant", {"id": request, "action": "allow"}, type=dict)
        await ui.shows("THE-END", "by their-client")
        assert ui.app.screen is ui.app.chat


async def test_a_request_answered_elsewhere_closes_behind_another_dialog(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path), name="colleague") as other:
        await ask(ui, bash(served, "asked behind", "touch behind"))
        (request_id,) = ui.app.workspace.requests
        await ui.press("ctrl+q")
        await ui.opens("QuitDialog")
        await other.call("POST", "/permissions/grant", {"id": request_id, "action": "allow"}, type=dict)
        await ui.until(lambda: not ui.app.workspace.requests, "answered")
        await ui.idle()
        await ui.press("escape")
        await ui.closes()


async def test_an_edit_is_asked_for_with_its_diff(served: Home, tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text("one = 1\ntwo = 2\n")
    edit = {"path": "notes.py", "old_string": "two = 2", "new_string": "two = 22"}
    served.models.on(
        {"tool_calls": json.dumps([{"name": "view", "input": {"path": "notes.py"}}])},
        {"tool_calls": json.dumps([{"name": "edit", "input": edit}])},
        {"text": "THE-END"},
        prompt="edit the notes",
    )
    async with kedge(tmp_path, (140, 40)) as ui:
        await ask(ui, "edit the notes")
        await ui.shows("Allow edit?", "two = 2", "two = 22", "v split")
        unsplit = ui.text
        await ui.press("v")
        await ui.until(lambda: ui.text != unsplit, "it looks different")
        await ui.press("a")
        await ui.shows("THE-END")
        assert (tmp_path / "notes.py").read_text() == "one = 1\ntwo = 22\n"


QUESTIONS = [
    {"question": "Really?", "kind": "yes_no"},
    {"question": "Which one?", "kind": "one", "options": ["red", "green [x]"]},
    {"question": "Which ones?", "kind": "many", "options": ["a", "b [y]", "c"]},
    {"question": "In your words?", "kind": "text"},
]


def question_form(ui: UiDriver) -> QuestionDialog:
    assert isinstance(ui.app.screen, QuestionDialog)
    return ui.app.screen


async def ask_questions(ui: UiDriver, served: Home, prompt: str, questions: list[dict[str, Any]]) -> None:
    served.models.on(
        {"tool_calls": json.dumps([{"name": "question", "input": {"questions": questions}}])},
        {"text": "THE-END"},
        prompt=prompt,
    )
    await ui.submit(prompt)
    await ui.opens("QuestionDialog")


def answers_in(ui: UiDriver) -> list[Any]:
    session = ui.app.chat.session
    assert session is not None
    ((_, result),) = session.results.values()
    assert isinstance(result.value, ToolResult)
    assert result.value.metadata is not None
    return result.value.metadata["answers"]


@pytest.mark.parametrize("size", [(60, 20), (100, 40)])
async def test_questions_of_each_kind(served: Home, tmp_path: Path, size: tuple[int, int]) -> None:
    async with kedge(tmp_path, size) as ui:
        await ask_questions(ui, served, f"ask me all in {size[0]} columns", QUESTIONS)
        await ui.shows("4 questions", "Really?  (not answered)", "4 of 4 not answered", "Ctrl+R skip")
        await ui.press("down", "enter")  # the second: No; and to the next question
        await ui.shows("(•) No", "3 of 4 not answered")
        await ui.press("down", "space", "tab")
        await ui.press("space", "down", "down", "space", "enter")
        await ui.write("my words")
        await ui.hides("not answered")
        await ui.press("enter", "enter")
        await ui.shows("THE-END")
        assert answers_in(ui) == [False, "green [x]", ["a", "c"], "my words"]


async def test_every_question_takes_words_of_ones_own_and_none_of_the_options(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (100, 40)) as ui:
        await ask_questions(ui, served, "ask for my own words", QUESTIONS[:3])
        await ui.press("down", "down", "space")
        await ui.write("it depends")
        await ui.press("enter")
        await ui.press("down", "down", "enter")
        await ui.write("blue")
        await ui.press("enter", "down", "down", "down", "space")
        await ui.shows("[x] None of them")
        await ui.press("ctrl+s")
        await ui.shows("THE-END")
        assert answers_in(ui) == ["it depends", "blue", []]


async def test_what_is_not_answered_is_warned_about_before_it_is_sent(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (100, 40)) as ui:
        await ask_questions(ui, served, "ask more than I answer", QUESTIONS[:3])
        await ui.press("tab", "space", "ctrl+s")
        await ui.shows("⚠ 2 of 3 not answered")
        assert ui.dialog("QuestionDialog")
        await ui.press("ctrl+s")
        await ui.shows("THE-END")
        assert answers_in(ui) == [None, "red", None]


async def test_answers_that_were_not_sent_are_kept(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (100, 40)) as ui:
        await ask_questions(ui, served, "ask me later", QUESTIONS[1:])
        await ui.press("space", "escape")
        await ui.closes()
        await ui.press("f2")
        await ui.opens("QuestionDialog")
        await ui.shows("(•) red", "2 of 3 not answered")
        await ui.press("ctrl+r")
        await ui.closes()
        await ui.idle()


async def test_questions_are_answered_with_the_mouse(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (100, 40)) as ui:
        await ask_questions(ui, served, "ask my mouse", QUESTIONS[:2])
        for label in ("No", "green [x]", "[ Send ]"):
            await ui.shows(label)
            y, line = next((y, line) for y, line in enumerate(ui.text.splitlines()) if label in line)
            await ui.pilot.click(offset=(line.index(label), y))
        await ui.shows("THE-END")
        assert answers_in(ui) == [False, "green [x]"]


async def test_questions_can_be_skipped(served: Home, tmp_path: Path) -> None:
    question = [{"question": "Tell me?", "kind": "text"}]
    served.models.on(
        {"tool_calls": json.dumps([{"name": "question", "input": {"questions": question}}])},
        {"text": "THE-END"},
        prompt="ask in vain",
    )
    async with kedge(tmp_path) as ui:
        await ui.submit("ask in vain")
        await ui.opens("QuestionDialog")
        await ui.press("ctrl+r")
        await ui.closes()
        await ui.idle()


async def test_a_run_that_waits_for_a_key_can_be_cancelled(served: Home, tmp_path: Path) -> None:
    served.models.on({"status": 401, "error": "invalid_api_key", "times": 2, "text": "LET-IN"}, prompt="with a key")
    async with kedge(tmp_path) as ui:
        await ui.submit("with a key")
        await ui.opens("KeyDialog")
        await ui.shows("OpenAI")
        await ui.press("escape")
        await ui.closes()
        await ui.press("escape", "escape")
        await ui.shows("■")
