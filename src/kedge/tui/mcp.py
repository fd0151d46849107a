"""MCP servers in the interface: their state, their prompts as commands, and their resources as mentions."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

import msgspec

from kedge.client.errors import ClientError
from kedge.http.http1 import escape
from kedge.protocol.text_safety import visible_line
from kedge.tui.editor.attachments import MENTION
from kedge.tui.editor.draft import Draft

if TYPE_CHECKING:
    from kedge.protocol.mcp import McpServer
    from kedge.protocol.mcp_requests import McpPrompt, McpResource
    from kedge.tui.dialogs.mcp import McpDialog
    from kedge.tui.port import Chat

PAUSE_S = 0.2  # servers report changes in bursts
MAX_COMPLETED = 20


class ResourceRejected(Exception):
    """A resource that a prompt names cannot be attached; the text says why."""


class McpMenu:
    """What the interface knows of the workspace's MCP servers. It is read when a server's state changes."""

    def __init__(self, screen: Chat) -> None:
        self.servers: list[McpServer] = []
        self._screen = screen
        self._resources: list[McpResource] = []
        self._dialog: McpDialog | None = None
        self._is_due = False  # something changed since the last read began
        self._is_reading = False

    @property
    def summary(self) -> str:
        """How many servers are ready; empty without any."""
        used = [each for each in self.servers if each.state != "disabled"]
        if not used:
            return ""
        ready = sum(each.state == "ready" for each in used)
        login = sum(each.state == "needs_login" for each in used)
        waiting = f", {login} need{'s' if login == 1 else ''} a login" if login else ""
        return f"{ready} of {len(used)} ready{waiting} (/mcp)"

    async def start(self) -> None:
        """Start the configured servers, so that they are ready when they are needed."""
        from kedge.protocol.mcp import McpServers

        try:
            self.servers = (await self._screen.api.call("GET", "/mcp", type=McpServers)).servers
            if any(each.state == "idle" for each in self.servers):
                await self._screen.api.call("POST", "/mcp/start", {}, type=McpServers)
        except ClientError:
            return  # the banner reports a lost connection
        self.refresh()

    def refresh(self) -> None:
        """Read servers, prompts and resources again, in one worker; changes meanwhile cause one more round."""
        self._is_due = True
        if not self._is_reading:
            self._is_reading = True
            self._screen.run_worker(self._read_while_due(), group="mcp")

    async def _read_while_due(self) -> None:
        try:
            while self._is_due:
                await asyncio.sleep(PAUSE_S)
                self._is_due = False
                await self._read()
        finally:
            self._is_reading = False

    async def _read(self) -> None:
        from kedge.protocol.mcp import McpServers
        from kedge.protocol.mcp_requests import McpPrompts, McpResources

        api = self._screen.api
        try:
            self.servers = (await api.call("GET", "/mcp", type=McpServers)).servers
            self._show()
            ready = [each for each in self.servers if each.state == "ready"]
            prompts: list[McpPrompt] = []
            self._resources = []
            if any(each.prompts for each in ready):
                prompts = (await api.call("GET", "/mcp/prompts", type=McpPrompts)).prompts
            if ready:
                self._resources = (await api.call("GET", "/mcp/resources", type=McpResources)).resources
        except ClientError:
            return
        self._screen.commands.set_prompts(prompts)

    def open_dialog(self) -> None:
        from kedge.tui.dialogs.mcp import McpDialog

        def forget(_: None) -> None:
            self._dialog = None

        self._dialog = McpDialog(self._screen.api, self.servers)
        self._screen.interface.push_screen(self._dialog, forget)
        self.refresh()

    async def complete(self, search: str) -> list[str]:
        """Return files, and resources of servers as SERVER:URI, that match what was typed after the `@`."""
        wanted = search.casefold()
        named = [f"{each.server}:{each.uri}" for each in self._resources]
        found = [name for name in named if name.casefold().startswith(wanted)]
        if ":" not in search:
            found += [name for name in named if name not in found and wanted in name.casefold()] if wanted else []
        files = [] if ":" in search and found else await self._screen.api.files(search)
        return [*found, *files][:MAX_COMPLETED] if wanted else [*files, *found][:MAX_COMPLETED]

    async def attach_resources(self, draft: Draft) -> Draft:
        """Return the draft with the content of the resources that it names. Raises `ResourceRejected`."""
        from kedge.protocol.mcp_requests import McpResourceContent

        if draft.kind != "prompt":
            return draft
        known = {each.name for each in self.servers}
        attachments = list(draft.attachments)
        for mention in dict.fromkeys(found[1] or found[2] for found in MENTION.finditer(draft.text)):
            server, colon, uri = mention.partition(":")
            if not colon or server not in known or not uri:
                continue
            try:
                path = f"/mcp/{escape(server)}/resource"
                content = await self._screen.api.call("POST", path, {"uri": uri}, type=McpResourceContent)
            except ClientError as error:
                raise ResourceRejected(f"@{visible_line(mention)}: {error}") from error
            attachments += content.attachments
        return msgspec.structs.replace(draft, attachments=tuple(attachments))

    def run_prompt(self, prompt: McpPrompt, typed: str) -> None:
        """Fill in a prompt of a server, and send it."""
        arguments = parse_arguments(prompt, typed)
        missing = [each.name for each in prompt.arguments if each.required and each.name not in arguments]
        if missing:
            self._screen.hint(f"Usage: /mcp:{prompt.server}:{prompt.name} {describe_arguments(prompt)}")
            return
        self._screen.run_worker(self._send_prompt(prompt, arguments), group="command")

    async def _send_prompt(self, prompt: McpPrompt, arguments: dict[str, str]) -> None:
        from kedge.protocol.mcp_requests import McpPromptText

        body = {"name": prompt.name, "arguments": arguments}
        try:
            path = f"/mcp/{escape(prompt.server)}/prompt"
            filled = await self._screen.api.call("POST", path, body, type=McpPromptText)
        except ClientError as error:
            self._screen.hint(str(error))
            return
        self._screen.send(Draft(mask_command(prompt, filled.text), tuple(filled.attachments)))

    def _show(self) -> None:
        if self._dialog is not None and self._dialog.is_attached:
            self._dialog.show(self.servers)
        self._screen.draw_soon()


def parse_arguments(prompt: McpPrompt, typed: str) -> dict[str, str]:
    """Return the arguments of a prompt by name: NAME=VALUE, or in order; the last one takes all remaining words."""
    names = [each.name for each in prompt.arguments]
    if not names or not typed.strip():
        return {}
    try:
        words = shlex.split(typed)
    except ValueError:  # an apostrophe is no quote
        words = typed.split()
    arguments: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in names and name not in arguments:
            arguments[name] = value
        else:
            rest.append(word)
    free = [name for name in names if name not in arguments]
    for position, name in enumerate(free):
        if position < len(rest):
            is_last = position == len(free) - 1
            arguments[name] = " ".join(rest[position:]) if is_last else rest[position]
    return arguments


def mask_command(prompt: McpPrompt, text: str) -> str:
    """Return the text of a prompt so that it names no custom command or skill: a server must not run those."""
    if not text.lstrip().startswith("/"):
        return text
    return f"The prompt {prompt.name} of the MCP server {prompt.server}:\n\n{text}"


def describe_arguments(prompt: McpPrompt) -> str:
    return " ".join(each.name.upper() if each.required else f"[{each.name.upper()}]" for each in prompt.arguments)
