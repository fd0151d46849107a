"""Dialogs on the way to a model: the first start, the list of models, and a provider's API key."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.api import LoginProvider, Offered, OfferedModel, OfferedProvider
from kedge.protocol.text_safety import visible
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog, FilterDialog, GuardedDialog
from kedge.tui.formats import pad


class ModelChoice(NamedTuple):
    """A model, or a provider whose API key has to be entered first."""

    model: str = ""
    provider: str | None = None


MAX_NAME = 36  # cells of the column of names: a longer name moves the rest of its row


class ModelDialog(FilterDialog[ModelChoice]):
    """Lists the usable models first, then the providers that lack an API key or a server."""

    FOOTER = "Type to filter · Enter select, or add the missing key · Esc close"

    def __init__(self, offered: Offered, current: str) -> None:
        super().__init__("Models")
        self._offered = offered
        self._current = current
        usable = [each for each in offered.providers if each.usable]
        rows = [(visible(model.name), *_list_facts(model)) for each in usable for model in _list_models(each)]
        rows += [(visible(each.title), "", "", "") for each in offered.providers if not each.usable]
        self._widths = [max((cell_len(row[column]) for row in rows), default=0) for column in range(4)]
        self._widths[0] = min(self._widths[0], MAX_NAME)

    def find_options(self, typed: str) -> tuple[list[Option], int]:
        words = typed.casefold().split()
        options: list[Option] = []
        highlighted = 0
        for provider in sorted(self._offered.providers, key=lambda each: not each.usable):
            if not provider.usable:
                if _contains_all(words, f"{provider.id} {provider.title}"):
                    options.append(Option(self._describe_unusable(provider), id=f"provider {provider.id}"))
                continue
            for model in _list_models(provider):
                if _contains_all(words, f"{model.name} {provider.title}"):
                    highlighted = len(options) if model.name == self._current else highlighted
                    options.append(Option(self._describe_model(model), id=f"model {model.name}"))
        return options, highlighted

    def _describe_model(self, model: OfferedModel) -> Content:
        is_current = model.name == self._current
        mark = "▸ " if is_current else "  "
        return Content.assemble(
            (mark, "$text-primary"),
            (pad(visible(model.name), self._widths[0]), "bold" if is_current else ""),
            ("  " + "  ".join(map(pad, _list_facts(model), self._widths[1:])).rstrip(), "$foreground-muted"),
        )

    def _describe_unusable(self, provider: OfferedProvider) -> Content:
        name = pad(visible(provider.title), self._widths[0])
        return Content.styled(f"  {name}  {visible(provider.why)}", "$foreground-muted")

    def make_result(self, option_id: str) -> ModelChoice:
        kind, _, name = option_id.partition(" ")
        return ModelChoice(model=name) if kind == "model" else ModelChoice(provider=name)


def _contains_all(words: list[str], text: str) -> bool:
    return all(word in text.casefold() for word in words)


def _list_models(provider: OfferedProvider) -> list[OfferedModel]:
    return list({each.name: each for each in provider.models}.values())  # a server may list one twice


def _list_facts(model: OfferedModel) -> tuple[str, str, str]:
    """Return its context window, prices and abilities: the columns behind its name."""
    window = f"{formats.format_tokens(model.context_window)} context" if model.context_window else ""
    price = ""
    if model.input_price is not None and model.output_price is not None:
        is_free = not (model.input_price or model.output_price)
        price = "free" if is_free else f"${model.input_price:g} in, ${model.output_price:g} out per 1M"
    abilities = [name for name, has in (("images", model.images), ("reasoning", model.reasoning)) if has]
    return window, price, ", ".join(abilities if model.tools else [*abilities, "no tools"])


REJECTED = "{} rejected the API key. The run waits for another one, and then goes on."


class KeyDialog(GuardedDialog[bool]):
    """Asks for a provider's API key. The server checks it with a real call, and stores it only if it works."""

    FOOTER = "Enter check and save · Esc close"

    def __init__(self, api: Api, provider: LoginProvider, *, is_rejected: bool = False) -> None:
        super().__init__(f"API key for {provider.title}")
        self._api = api
        self._provider = provider
        self._is_rejected = is_rejected
        self._is_awake = not is_rejected  # else it opened by itself

    def body(self) -> ComposeResult:
        if self._is_rejected:
            yield Static(REJECTED.format(self._provider.title), markup=False, id="login-rejected")
        # The variable may hold the key that was rejected.
        otherwise = "" if self._is_rejected else f", or set {self._provider.key_variable}"
        yield Input(placeholder=f"Paste it here{otherwise}", password=True, compact=True)
        note = "It is checked with the provider and stored where only you can read it."
        yield Static(note, id="login-note", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        if key := event.value.strip():
            self._check(key)

    @work(exclusive=True)
    async def _check(self, key: str) -> None:
        note, field = self.query_one("#login-note", Static), self.query_one(Input)
        note.update("Checking…")
        field.disabled = True
        try:
            stored = await self._api.log_in(self._provider.provider_id, key)
        except ClientError as error:
            note.update(visible(str(error)))
            field.disabled = False
            field.focus()
            return
        ending = f" (…{stored.last_four})" if stored.last_four else ""
        self.notify(f"API key saved{ending}")
        self.dismiss(True)


_SERVER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,23}")


class ServerDialog(Dialog[str]):
    """Asks for the address of an OpenAI-compatible server. It is kept in the user's configuration if it lists models.

    Returns the provider's id.
    """

    FOOTER = "Tab next field · Enter check and save · Esc close"

    def __init__(self, api: Api, taken: Collection[str]) -> None:
        super().__init__("OpenAI-compatible server")
        self._api = api
        self._taken = taken

    def body(self) -> ComposeResult:
        yield Input(placeholder="Address, like http://192.168.1.20:8000/v1", compact=True, id="server-url")
        yield Input(placeholder="API key, if it needs one", password=True, compact=True, id="server-key")
        yield Input("custom", placeholder="Name, for models like custom/NAME", compact=True, id="server-name")
        note = "It is saved in your configuration if it answers with a list of models."
        yield Static(note, id="server-note", markup=False)

    def on_mount(self) -> None:
        self.query_one("#server-url", Input).focus()

    @on(Input.Submitted)
    def _submit(self) -> None:
        url, key, name = (self.query_one(f"#server-{each}", Input).value.strip() for each in ("url", "key", "name"))
        if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
            self._say("Enter an address that starts with http:// or https://")
        elif not _SERVER_NAME.fullmatch(name):
            self._say("The name needs a small letter first, then small letters, digits, - and _")
        elif name in self._taken:
            self._say(f"There is a provider named {name} already: choose another name")
        else:
            self._check(name, url.rstrip("/"), key)

    @work(exclusive=True)
    async def _check(self, name: str, url: str, key: str) -> None:
        self._say("Checking…")
        try:
            await self._api.set_config(f"providers.{name}.base_url", url)
            problem = await self._find_problem(name, key)
            if problem is None:
                self.dismiss(name)
                return
            await self._api.remove_config(f"providers.{name}")
        except ClientError as error:
            problem = str(error)
        self._say(problem)

    async def _find_problem(self, name: str, key: str) -> str | None:
        """Return why the server cannot be used; None if it can. Stores the API key if it is accepted."""
        try:
            if key:
                await self._api.log_in(name, key)
            offered = await self._api.list_models()
        except ClientError as error:
            return str(error)
        found = next((each for each in offered.providers if each.id == name), None)
        if found is None or not found.usable:
            return found.why if found else "The server cannot be used"
        return None if found.models else f"It lists no models ({found.why}). Check the address: most end in /v1"

    def _say(self, text: str) -> None:
        self.query_one("#server-note", Static).update(visible(text))


class FirstStart(Dialog[str]):
    FOOTER = "Enter select · Esc skip (use /login or /model later)"

    def __init__(self, offered: Offered) -> None:
        super().__init__("Welcome to Kedge")
        self._offered = offered

    def body(self) -> ComposeResult:
        usable = [each for each in self._offered.providers if each.usable]
        lines = [f"✓ {each.title}: {each.why}" for each in usable]
        if not usable:
            lines = ["No model yet. Add an API key, or start a model server like Ollama or LM Studio."]
        if usable or self._offered.model:  # else its reason is the same as ours
            lines = [self._offered.why, "", *lines]
        yield Static(visible("\n".join(lines)), markup=False)
        yield Static("")
        yield OptionList(
            *([Option("Choose a model", id="model")] if usable else []),
            Option("Enter an API key", id="key"),
            Option("Enter the address of an OpenAI-compatible server", id="server"),
            Option("Check again", id="again"),
            markup=False,
        )

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)
