"""What was judged is what is opened, while another process swaps files and directories with links to a secret."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from kedge.agent.context_files import read_context_files
from kedge.agent.tool_context import read_file_digests
from kedge.config.schema import Config, FetchConfig, PermissionsConfig
from kedge.files.states import compute_digest, observe_resolved
from kedge.protocol.runs import RunOptions
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Allow
from kedge.tools.port import Output, Tool
from tests.support.swapping import swapping
from tests.tools.harness import TOOLS, ToolHarness

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RENAME_EXCHANGE is Linux's")

SECRET = "TOP-SECRET"
INSIDE = "inside\n"

# Weighted: those that start ripgrep take ten times as long as the others.
CALLS: list[tuple[str, dict[str, object]]] = [
    ("view", {"path": "d/a.txt"}),
    ("view", {"path": "f.txt"}),
    ("write", {"path": "d/new.txt", "content": "new\n"}),
    ("view", {"path": "d/missing_key"}),
    ("edit", {"path": "d/a.txt", "old_string": "inside", "new_string": "inside."}),
    ("write", {"path": "d/deep/er/new.txt", "content": "new\n"}),
    ("grep", {"pattern": "SECRET|inside"}),
    ("view", {"path": "d/a.txt"}),
    ("write", {"path": "f.txt", "content": INSIDE}),
    ("multiedit", {"path": "f.txt", "edits": [{"old_string": "inside", "new_string": "inside."}]}),
    ("view", {"path": "d/a.txt"}),
    ("write", {"path": "d/a.txt", "content": INSIDE}),
    ("glob", {"pattern": "*", "path": "d"}),
    ("view", {"path": "f.txt"}),
    ("write", {"path": "d/new.txt", "content": "new\n"}),
    ("grep", {"pattern": "SECRET|inside", "path": "d"}),
    ("write", {"path": "f.txt", "content": INSIDE}),
    ("ls", {"path": "d"}),
    ("grep", {"pattern": "SECRET|inside", "path": "f.txt"}),
    ("view", {"path": "d/a.txt"}),
]


class Place:
    """A workspace with `d` and `f.txt`, the links that take their places, and a home with keys that must stay apart."""

    def __init__(self, harness: ToolHarness, home: Path) -> None:
        self.harness = harness
        self.root = harness.directory
        self.keys = home / "keys"
        self.keys.mkdir(parents=True)
        for name in ("a.txt", "secret_key", "missing_kez"):
            (self.keys / name).write_text(f"{SECRET} inside\n")
        (self.root / "d").mkdir()
        (self.root / "d/a.txt").write_text(INSIDE)
        (self.root / "f.txt").write_text(INSIDE)
        (self.root / "AGENTS.md").write_text(INSIDE)
        (self.root / "d.link").symlink_to(self.keys)
        (self.root / "f.link").symlink_to(self.keys / "a.txt")
        (self.root / "AGENTS.link").symlink_to(self.keys / "a.txt")
        self.pairs = [(self.root / name, self.root / link) for name, link in
                      (("d", "d.link"), ("f.txt", "f.link"), ("AGENTS.md", "AGENTS.link"))]  # fmt: skip
        self.before = self.state_of_keys()
        self.judge = Judge(PermissionsConfig(mode="auto-edit"), RunOptions(), "ask", directory=self.root)

    def state_of_keys(self) -> dict[str, str]:
        return {path.name: path.read_text() if path.is_file() else "a directory" for path in self.keys.iterdir()}

    async def call(self, name: str, given: dict[str, object]) -> str:
        """As the agent calls it: what it wants is judged, and then it runs with the path that was judged."""
        tool = TOOLS[name]
        params = msgspec.convert(given, tool.params)
        assert tool.list_access is not None
        self.harness.approved_path = None
        try:
            accesses = await tool.list_access(self.harness, params)
            if not all(isinstance(self.judge.judge(name, access), Allow) for access in accesses):
                return "asked"
            self.harness.approved_path = Path(accesses[0].subject)
            output = await tool.run(self.harness, params)
        except ToolError as error:
            output = Output(content=error.text, is_error=True)
        assert not any(word in output.text for word in (SECRET, "secret_key", "missing_kez")), output.text
        self.harness.known_files.update(read_file_digests(output.metadata))
        return "failed" if output.is_error else "done"


async def check(place: Place, count: int) -> Counter[tuple[str, str]]:
    """`count` calls while links are swapped: none may show or change what is outside."""
    found: Counter[tuple[str, str]] = Counter()
    secret = compute_digest((place.keys / "a.txt").read_bytes())
    with swapping(*place.pairs):
        for number in range(count):
            name, given = CALLS[number % len(CALLS)]
            found[name, await place.call(name, given)] += 1
            if number % 10 == 0:
                files = read_context_files(place.root, ["AGENTS.md"], None)
                assert not any(SECRET in file.text for file in files)
            try:
                assert observe_resolved(bytes(place.root / "d/a.txt")).state.digest != secret
            except OSError:
                found["observe", "failed"] += 1
    assert place.state_of_keys() == place.before
    return found


async def test_links_that_are_swapped_at_full_speed_lead_no_tool_out_of_the_workspace(
    harness: ToolHarness, tmp_path: Path
) -> None:
    found = await check(Place(harness, tmp_path / "home"), 1_000)
    for name in {name for name, _ in CALLS}:
        assert found[name, "done"], f"{name} never got through, which proves nothing: {found}"
    assert sum(count for (_, what), count in found.items() if what == "asked")  # links were there at times
    assert sum(count for (_, what), count in found.items() if what == "failed")


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_of_ten_thousand_calls_none_is_led_out_of_the_workspace(harness: ToolHarness, tmp_path: Path) -> None:
    print(await check(Place(harness, tmp_path / "home"), 10_000))


class _OneByte(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


async def test_a_download_is_not_led_out_of_the_workspace(harness: ToolHarness, tmp_path: Path) -> None:
    place = Place(harness, tmp_path / "home")
    harness.config = Config(fetch=FetchConfig(allow_private=True))
    tool, results = TOOLS["download"], Counter[str]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _OneByte)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with swapping(*place.pairs):
            for number in range(100):
                given = {"url": f"http://127.0.0.1:{server.server_port}/", "path": f"d/deep-{number}/file"}
                results[await saved(place, tool, given)] += 1
    finally:
        server.shutdown()
        server.server_close()
    assert place.state_of_keys() == place.before
    assert results["done"], results
    assert results["asked"] or results["failed"], results


async def saved(place: Place, tool: Tool, given: dict[str, str]) -> str:
    params = msgspec.convert(given, tool.params)
    assert tool.list_access is not None
    place.harness.approved_path = None
    try:
        _, write = await tool.list_access(place.harness, params)
        if not isinstance(place.judge.judge("download", write), Allow):
            return "asked"
        place.harness.approved_path = Path(write.subject)
        await tool.run(place.harness, params)
    except ToolError:
        return "failed"
    return "done"
