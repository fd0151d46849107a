"""Models to choose from: those that can be used first, then what to do for the rest."""

from __future__ import annotations

from typing import NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.api import LoginProvider
from kedge.protocol.models import Offered, OfferedModel, OfferedProvider
from kedge.protocol.text_safety import visible
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog


class ModelChoice(NamedTuple):
    """A model, or a provider whose key is to be entered first."""

    model: str = ""
    provider: str | None = None


class ModelDialog(Dialog[ModelChoice]):
    FOOTER = "Enter chooses, or asks for the key that is missing · Esc closes"

    def __init__(self, offered: Offered, current: str, title: str = "Models") -> None:
        super().__init__()
        self.title = title
        self._offered = offered
        self._current = current

    def body(self) -> ComposeResult:
        yield Input(placeholder="filter", compact=True)
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("")

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def _take(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        kind, _, name = (event.option_id or "").partition(" ")
        self.dismiss(ModelChoice(model=name) if kind == "model" else ModelChoice(provider=name))

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down"):
            event.stop()
            (options.action_cursor_up if event.key == "up" else options.action_cursor_down)()

    def _show(self, typed: str) -> None:
        wanted = typed.casefold().split()
        options = self.query_one(OptionList)
        options.clear_options()
        lit: int | None = None
        for provider in sorted(self._offered.providers, key=lambda each: not each.usable):
            if not provider.usable:
                if _contains_all(wanted, f"{provider.id} {provider.title}"):
                    options.add_option(Option(_describe_unusable(provider), id=f"provider {provider.id}"))
                continue
            for model in {each.name: each for each in provider.models}.values():  # a server may list one twice
                if _contains_all(wanted, f"{model.name} {provider.title}"):
                    if model.name == self._current:
                        lit = options.option_count
                    options.add_option(
                        Option(_describe_model(model, model.name == self._current), id=f"model {model.name}")
                    )
        options.highlighted = lit if lit is not None else (0 if options.option_count else None)


def _contains_all(wanted: list[str], text: str) -> bool:
    return all(word in text.casefold() for word in wanted)


def _describe_model(model: OfferedModel, is_current: bool) -> Content:
    facts: list[str] = []
    if model.context_window:
        facts.append(f"{formats.tokens(model.context_window)} context")
    if model.input_price is not None and model.output_price is not None:
        is_free = not (model.input_price or model.output_price)
        facts.append("free" if is_free else f"${model.input_price:g} in, ${model.output_price:g} out")
    facts += [name for name, has in (("images", model.images), ("reasoning", model.reasoning)) if has]
    if not model.tools:
        facts.append("no tools")
    mark = "▸ " if is_current else "  "
    return Content.assemble(
        (mark + visible(model.name), "bold" if is_current else ""), ("  " + " · ".join(facts), "$foreground-muted")
    )


def _describe_unusable(provider: OfferedProvider) -> Content:
    return Content.assemble(
        (f"  {visible(provider.title)}", "$foreground-muted"), (f"  {visible(provider.why)}", "$foreground-muted")
    )


class KeyDialog(Dialog[bool]):
    FOOTER = "Enter checks and stores · Esc closes"

    def __init__(self, api: Api, provider: LoginProvider) -> None:
        super().__init__()
        self.title = f"Key for {provider.title}"
        self._desk = api
        self._provider = provider

    def body(self) -> ComposeResult:
        yield Input(placeholder=f"paste it here; {self._provider.key_variable} works too", password=True, compact=True)
        yield Static("Checked with the provider; stored where only you can read it.", id="login-note", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        if key := event.value.strip():
            self._check(key)

    @work(exclusive=True)
    async def _check(self, key: str) -> None:
        note, field = self.query_one("#login-note", Static), self.query_one(Input)
        note.update("checking…")
        field.disabled = True
        try:
            stored = await self._desk.log_in(self._provider.provider_id, key)
        except ClientError as error:
            note.update(visible(f"Not stored: {error}"))
            field.disabled = False
            field.focus()
            return
        ending = f" (…{stored.last_four})" if stored.last_four else ""
        self.notify(f"The key{ending} works and is stored")
        self.dismiss(True)


class FirstStart(Dialog[str]):
    FOOTER = "Enter chooses · Esc: later, /login and /model are there"

    def __init__(self, offered: Offered) -> None:
        super().__init__()
        self.title = "Welcome to Kedge"
        self._offered = offered

    def body(self) -> ComposeResult:
        usable = [each for each in self._offered.providers if each.usable]
        found = [f"✓ {each.title}: {each.why}" for each in usable] or ["No key, no model server was found."]
        yield Static(visible("\n".join([self._offered.why, "", *found])), markup=False)
        yield Static("")
        yield OptionList(
            *([Option("Choose a model", id="model")] if usable else []),
            Option("Enter a provider's key", id="key"),
            Option("Look again: I started a model server, or set a key", id="again"),
            markup=False,
        )

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)
