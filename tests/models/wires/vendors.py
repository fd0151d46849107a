"""What the vendors refuse, written from their rules: each check raises for a conversation that would be refused."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

Json = dict[str, Any]

# Longer than OpenAI takes, and yet what a server that gave it must get back.
OWN_LONG_ID = "long_" * 12

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_chat(messages: list[Json], *, has_tools: bool = True, sees: bool = True) -> None:
    """The strictest of those that speak Chat Completions."""
    assert messages[0]["role"] == "user", "a conversation begins with a user"
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        role, content = message["role"], message["content"]
        if role != "tool":
            assert not open_calls, "calls without results"
        match role:
            case "user":
                for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                    assert block["type"] != "text" or block["text"].strip(), "an empty text"
                    assert block["type"] != "image_url" or sees, "an image for a model that cannot see"
            case "assistant":
                calls = message.get("tool_calls", [])
                assert calls or (isinstance(content, str) and content.strip()), "an answer that says nothing"
                assert has_tools or not calls, "calls, although there are no tools"
                assert "tool_calls" not in message or calls, "an empty list of calls"
                for call in calls:
                    assert _NAME.fullmatch(call["function"]["name"])
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)
                    assert 0 < len(call["id"]) <= 40 or call["id"] == OWN_LONG_ID
                    assert call["id"] not in seen, "an id that was used"
                    seen.add(call["id"])
                    open_calls.append(call["id"])
            case "tool":
                assert message["tool_call_id"] in open_calls, "a result without a call"
                assert isinstance(content, str)
                assert content
                open_calls.remove(message["tool_call_id"])
            case _:
                raise AssertionError(f"no such role: {role}")
    assert not open_calls, "calls without results"


def check_responses(items: list[Json], *, has_tools: bool = True, sees: bool = True) -> None:
    assert items[0]["role"] == "user", "a conversation begins with a user"
    open_calls: list[str] = []
    seen: set[str] = set()
    thought = False  # the item before was one
    for item in items:
        kind = item.get("type", "message")
        is_users = item.get("role") == "user" or kind == "function_call_output"
        assert not (thought and is_users), "a thought without the item that follows it"
        assert not open_calls or kind == "function_call_output" or not is_users, "calls without results"
        thought = kind == "reasoning"
        match kind:
            case "message":
                _check_content(item["content"], sees=sees)
                assert item["role"] == "user" or isinstance(item["content"], str)
                assert item.get("phase", "commentary") in ("commentary", "final_answer")
            case "reasoning":
                assert item["id"]
                assert item.get("encrypted_content") or item.get("content"), "nothing was stored under the id"
                assert item["id"] not in seen, "an item that was sent before"
                seen.add(item["id"])
                assert all(piece["text"] for piece in [*item["summary"], *item.get("content", [])])
            case "function_call":
                assert has_tools, "calls, although there are no tools"
                assert "id" not in item, "with the id of the item, its thought would have to be there"
                assert _NAME.fullmatch(item["name"])
                assert isinstance(json.loads(item["arguments"]), dict)
                assert 0 < len(item["call_id"]) <= 64 or item["call_id"] == OWN_LONG_ID
                assert item["call_id"] not in seen, "an id that was used"
                seen.add(item["call_id"])
                open_calls.append(item["call_id"])
            case "function_call_output":
                assert item["call_id"] in open_calls, "a result without a call"
                _check_content(item["output"], sees=sees)
                open_calls.remove(item["call_id"])
            case _:
                raise AssertionError(f"no such item: {kind}")
    assert not open_calls, "calls without results"


def _check_content(content: str | list[Json], *, sees: bool) -> None:
    for block in [{"type": "input_text", "text": content}] if isinstance(content, str) else content:
        match block["type"]:
            case "input_text":
                assert block["text"].strip(), "an empty text"
            case "input_image":
                assert sees, "an image for a model that cannot see"
                assert re.match(r"data:image/(png|jpeg|gif|webp);base64,.", block["image_url"])
            case "input_file":
                assert block["filename"]
                assert re.match(r"data:application/pdf;base64,.", block["file_data"])
            case unknown:
                raise AssertionError(f"there is no {unknown}")


def check_anthropic(messages: list[Json], *, has_tools: bool = True, sees: bool = True) -> None:
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[i % 2] for i in range(len(roles))], "roles take turns, and a user begins"
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        blocks: list[Json] = message["content"]
        assert blocks, "an empty message"
        if message["role"] == "assistant":
            assert not open_calls
            assert blocks[-1]["type"] in ("text", "tool_use"), "no message ends with thoughts"
            for block in blocks:
                match block["type"]:
                    case "text":
                        assert block["text"].strip(), "an empty text"
                    case "thinking":
                        assert block["signature"]
                        assert isinstance(block["thinking"], str)
                    case "redacted_thinking":
                        assert block["data"]
                    case "tool_use":
                        assert has_tools
                        assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
                        assert block["id"] not in seen, "an id that was used"
                        assert _NAME.fullmatch(block["name"])
                        assert isinstance(block["input"], dict)
                        seen.add(block["id"])
                        open_calls.append(block["id"])
                    case unknown:
                        raise AssertionError(f"an answer has no {unknown}")
            continue
        kinds = [block["type"] for block in blocks]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "results come first"
        for block in blocks:
            match block["type"]:
                case "text" | "image":
                    _check_shown(block, sees=sees)
                case "document":
                    assert sees
                    assert block["source"]["media_type"] == "application/pdf"
                    assert block["source"]["data"], "an empty document"
                case "tool_result":
                    assert block["tool_use_id"] in open_calls, "a result without a call"
                    open_calls.remove(block["tool_use_id"])
                    assert block["content"], "an error needs words"
                    for shown in block["content"]:
                        _check_shown(shown, sees=sees)
                case unknown:
                    raise AssertionError(f"a user has no {unknown}")
        assert not open_calls, "calls whose results are not in the next message"
    assert not open_calls


def _check_shown(block: Json, *, sees: bool) -> None:
    if block["type"] == "text":
        assert block["text"].strip(), "an empty text"
    else:
        assert sees, "an image for a model that cannot see"
        assert block["source"]["media_type"] in ("image/png", "image/jpeg", "image/gif", "image/webp")
        assert 0 < len(block["source"]["data"]) <= 5 * 1024 * 1024


def check_gemini(contents: list[Json], *, has_tools: bool = True, sees: bool = True, is_later: bool = True) -> None:
    assert contents[0]["role"] == "user", "a conversation begins with a user"
    open_calls: list[tuple[str, str]] = []
    seen: set[str] = set()
    before = ""
    for content in contents:
        role, parts = content["role"], content["parts"]
        assert role in ("user", "model")
        assert parts, "an empty content"
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert has_tools or not calls, "calls, although there are no tools"
        assert not calls or (role == "model" and before == "user"), "a call that follows an answer"
        assert not (results or open_calls) or len(results) == len(parts), "results that are not by themselves"
        assert [(each["id"], each["name"]) for each in results] == open_calls, "results that are not those of the calls"
        open_calls = [(each["id"], each["name"]) for each in calls]
        for call in calls:
            assert _NAME.fullmatch(call["name"])
            assert isinstance(call["args"], dict)
            assert call["id"] not in seen, "an id that was used"
            seen.add(call["id"])
        if calls and is_later:
            first = next(part for part in parts if "functionCall" in part)
            assert first.get("thoughtSignature"), "the first call of a step is not signed"
        for part in parts:
            _check_gemini_part(part, sees=sees, is_later=is_later)
        before = role
    assert not open_calls, "calls without results"


def _check_gemini_part(part: Json, *, sees: bool, is_later: bool) -> None:
    if "thoughtSignature" in part:
        assert base64.urlsafe_b64decode(part["thoughtSignature"])
    kinds = part.keys() - {"thoughtSignature", "thought"}
    assert len(kinds) == 1, "a part is one thing"
    match kinds.pop():
        case "text":
            assert part["text"].strip() or "thoughtSignature" in part, "an empty text"
        case "inlineData":
            data = part["inlineData"]
            assert sees, "an image for a model that cannot see"
            assert data["mimeType"] in ("image/png", "image/jpeg", "image/webp", "application/pdf")
            assert 0 < len(data["data"]) <= 20_000_000
        case "functionResponse":
            assert part["functionResponse"]["response"], "a result that says nothing"
            shown = part["functionResponse"].get("parts", [])
            assert is_later or not shown, "results of older models are only text"
            for each in shown:
                _check_gemini_part(each, sees=sees, is_later=is_later)
        case "functionCall":
            pass
        case unknown:
            raise AssertionError(f"there is no {unknown}")


CHECKS = {"chat": check_chat, "responses": check_responses, "anthropic": check_anthropic, "gemini": check_gemini}
