"""Catalogs from elsewhere: what is taken of them, what is refused, and what the next run knows of its model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.models import catalog, providers
from kedge.models.catalog import UPDATE_FILE, Catalog, CatalogUpdate
from kedge.models.catalog_update import Refused, check, describe_changes, fetch, parse
from kedge.models.providers import NO_SETTINGS
from tests.support.model_server import HOST

LATER, EARLIER = "2099-01-01", "2020-01-01"
NEW = {"context_window": 9000, "input_price": 1.0, "output_price": 2.0, "reasoning": True, "efforts": ["low", "max"]}


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path) -> Generator[Path]:
    catalog.use_data_dir(tmp_path)
    yield tmp_path
    catalog.use_data_dir(tmp_path / "none")


def own(date: str = LATER, **vendors: Any) -> bytes:
    return json.dumps({"date": date, "about": [], "vendors": vendors, "hosts": {}}).encode()


def store(data_dir: Path, data: bytes) -> None:
    found, _ = parse(data, LATER)
    update = CatalogUpdate(source="somewhere", stored_on=LATER, catalog=found)
    (data_dir / UPDATE_FILE).write_bytes(msgspec.json.encode(update))
    catalog.refresh()


def test_a_new_model_is_known_at_once_and_forgotten_with_the_file(data_dir: Path) -> None:
    assert providers.find_model_info("gpt-99", NO_SETTINGS, "openai").context_window is None
    store(data_dir, own(openai={"gpt-99": NEW}))
    info = providers.find_model_info("gpt-99-2099-01-02", NO_SETTINGS, "openai")
    assert (info.context_window, info.input_price, info.efforts) == (9000, 1.0, ("low", "max"))
    assert providers.find_vendor("gpt-99") == "openai"
    assert providers.find_model_info("gpt-5", NO_SETTINGS, "openai").context_window == 400_000, "the others stay"
    assert catalog.current().date == LATER
    (data_dir / UPDATE_FILE).unlink()
    catalog.refresh()
    assert providers.find_vendor("gpt-99") is None


@pytest.mark.parametrize(("date", "window"), [(LATER, 9000), (EARLIER, 400_000)])
def test_the_newer_catalog_knows_better_about_a_model_in_both(data_dir: Path, date: str, window: int) -> None:
    store(data_dir, own(date, openai={"gpt-5": NEW, "gpt-99": NEW}))
    assert providers.find_model_info("gpt-5", NO_SETTINGS, "openai").context_window == window
    assert providers.find_model_info("gpt-99", NO_SETTINGS, "openai").context_window == 9000


def test_whose_a_known_model_is_stays(data_dir: Path) -> None:
    store(data_dir, own(deepseek={"gpt-5": NEW}))
    assert providers.find_vendor("gpt-5") == "openai"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        own(),
        own(openai={}),
        own(unheard={"m": NEW}),
        own(openai={"m": {**NEW, "base_url": "https://evil.example"}}),
        own(openai={"m": {**NEW, "api_key": "sk-x"}}),
        own(openai={"m": {**NEW, "input_price": -1}}),
        own(openai={"m": {**NEW, "input_price": 1e9}}),
        own(openai={"m": {"input_price": 1.0}}),
        own(openai={"m": {"context_window": 0}}),
        own(openai={"m": {**NEW, "efforts": ["ultra"]}}),
        own(openai={"m": {**NEW, "is_tiny": True}}),
        own(openai={"a b": NEW}),
        own(openai={"\x1b[31m": NEW}),
        own("yesterday", openai={"m": NEW}),
        json.dumps({**json.loads(own(openai={"m": NEW})), "url": "https://evil.example"}).encode(),
        json.dumps({"openai": {"models": {"m": {"limit": {"context": 0}}}}}).encode(),
    ],
)
def test_what_is_no_catalog_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        parse(data, LATER)


def test_providers_that_are_not_known_are_left_out() -> None:
    found, dropped = parse(own(openai={"m": NEW}, unheard={"a": NEW, "b": NEW}), LATER)
    assert (list(found.vendors), dropped) == (["openai"], 2)


MODELS_DEV = {
    "openai": {
        "id": "openai",
        "api": "https://evil.example",
        "env": ["EVIL_KEY"],
        "models": {
            "gpt-99": {
                "id": "gpt-99",
                "reasoning": True,
                "tool_call": True,
                "cost": {"input": 3, "output": 9, "cache_read": 0.3, "context_over_200k": {"input": 6}},
                "limit": {"context": 500_000, "output": 100_000},
                "modalities": {"input": ["text", "image"], "output": ["text"]},
                "unheard": [1],
            },
            "gpt-5": {"cost": {"input": 1, "output": 2}, "limit": {"context": 123_456, "output": 0}},
            "gpt-5-2025-08-07": {"cost": {"input": 7, "output": 7}, "limit": {"context": 1, "output": 0}},
            "painter": {"limit": {"context": 10, "output": 5}, "modalities": {"output": ["image"]}},
            "broken": {"limit": "much"},
        },
    },
    "google": {"models": {"gemini-99": {"limit": {"context": 1_000_000, "output": 60_000}, "reasoning": True}}},
    "moonshotai": {"models": {"kimi-99": {"limit": {"context": 1_000, "output": 60}, "reasoning": True}}},
    "unheard": {"models": {"m": {"limit": {"context": 10, "output": 5}}}},
}


@pytest.mark.parametrize("document", [MODELS_DEV, {"providers": MODELS_DEV}])
def test_the_format_of_models_dev_is_understood(document: Any) -> None:
    found, dropped = parse(json.dumps(document).encode(), LATER)
    openai = found.vendors["openai"]
    assert sorted(openai) == ["gpt-5", "gpt-99"]
    assert dropped == 3  # an edition of a known model, one that paints, one that is broken
    new = openai["gpt-99"]
    assert (new.context_window, new.max_output_tokens, new.input_price, new.cache_read_price) == (
        500_000,
        100_000,
        3.0,
        0.3,
    )
    assert (new.images, new.tools, new.reasoning, new.efforts) == (True, True, True, ("low", "medium", "high"))
    known = providers.find_model_info("gpt-5", NO_SETTINGS, "openai")
    assert openai["gpt-5"].context_window == 123_456
    assert openai["gpt-5"].efforts == known.efforts, "what it can do is known better here"
    assert found.vendors["gemini"]["gemini-99"].reasoning
    assert not found.vendors["moonshot"]["kimi-99"].reasoning, "it would reject an effort"


def test_what_changes_is_told(data_dir: Path) -> None:
    after = catalog.merge(catalog.built_in(), parse(own(openai={"gpt-99": NEW, "o1": NEW}), LATER)[0])
    new, changed = describe_changes(catalog.built_in(), after)
    assert new == ["openai/gpt-99"]
    (line,) = changed
    assert line.startswith("openai/o1: context_window 200,000 → 9,000, ")
    assert "input_price 15 → 1" in line
    assert describe_changes(catalog.built_in(), catalog.built_in()) == ([], [])


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"\xff", own(openai={"m": NEW})])
def test_a_broken_file_is_ignored_with_one_line(data_dir: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (data_dir / UPDATE_FILE).write_bytes(data)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            catalog.refresh()
            assert catalog.current() == catalog.built_in()
    assert len(caplog.records) == 1
    assert "kedge models update --reset" in catalog.update_problem()


class TestFetch:
    """From an address."""

    @pytest.mark.parametrize("url", ["http://models.example/a.json", "https://a:b@models.example/", "ftp://x/y"])
    async def test_only_safe_addresses(self, url: str) -> None:
        with pytest.raises(Refused):
            await fetch(url, {})

    @pytest.mark.parametrize(
        ("answer", "problem"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", None),
            (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404"),
            (
                b"HTTP/1.1 302 Found\r\nLocation: https://b.example/x\r\nContent-Length: 0\r\n\r\n",
                "https://b.example/x",
            ),
            (b"", "closed"),
        ],
    )
    async def test_an_answer(self, answer: bytes, problem: str | None) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readuntil(b"\r\n\r\n")
            assert b"authorization" not in asked.lower()
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/api.json"
            if problem is None:
                assert await fetch(url, {}) == b"{}"
            else:
                with pytest.raises(Refused, match=problem):
                    await fetch(url, {})


def test_a_file_is_checked_and_nothing_is_stored(data_dir: Path) -> None:
    path = data_dir / "given.json"
    path.write_bytes(own(openai={"gpt-99": NEW}))
    result = check(data_dir, str(path), {}, LATER)
    assert (result["new"], result["changed"]) == (["openai/gpt-99"], [])
    assert isinstance(result["update"].catalog, Catalog)
    assert not (data_dir / UPDATE_FILE).exists()
    assert "problem" in check(data_dir, str(data_dir / "absent.json"), {}, LATER)
