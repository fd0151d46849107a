"""Every byte of an answer reaches standard output as the model said it, and every byte of a prompt the model (P12)."""

from __future__ import annotations

import hashlib

import pytest

from tests.client.command import Done, Kedge, finish
from tests.e2e.home import answer_of, asking

TEXTS = {
    "line separators": "one\u2028two\u2029three\u0085four\x0bfive\x0csix\x1cseven",
    "nul": "before\x00after\x00\x00",
    "emoji": "😀👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 ﷽",
    "breaks": "\r\n one\r two\n\n\n three\r\n\r\n",
    "frames": 'data: x\n\nid: 7\ndata: {"type":"run_complete"}\n\n: comment\n',
    "blank": "  \t text between blanks \t  ",
    "controls": "\x1b[31mred\x1b[0m \x07 \x7f \ufeff \ufffe",
    "ends with a newline": "one line\n",
    "ends with two": "one line\n\n",
}
MODES = ["--stream", "--no-stream"]
WAYS = {
    "whole": {},
    "in UTF-16 units": {"units": 1},  # through the middle of surrogate pairs
    "byte by byte": {"raw": 1, "split": 1},  # through the middle of characters
    "with comments and CRLF": {"raw": 1, "crlf": 1, "comments": 1, "piece": 1},
}


def said(kedge: Kedge, prompt: str, *args: str) -> Done:
    return kedge.run("-q", *args, stdin=prompt.encode())


def line(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_what_the_model_says_is_what_is_printed(kedge: Kedge, mode: str, way: str) -> None:
    prompts = {name: asking(echo=1, **WAYS[way]) + text for name, text in TEXTS.items()}
    processes = {name: kedge.start("run", "-q", mode, stdin=-1) for name in prompts}
    for name, process in processes.items():
        assert process.stdin is not None
        process.stdin.write(prompts[name].encode())
        process.stdin.close()
        process.stdin = None
    ends = {name: finish(process) for name, process in processes.items()}
    assert {name: (end.code, end.out, end.err) for name, end in ends.items()} == {
        name: (0, line(prompt), "") for name, prompt in prompts.items()
    }


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_of_ten_megabytes_is_whole(kedge: Kedge, mode: str) -> None:
    plan: dict[str, object] = {"size": 7_000_000, "piece": 40_000, "text": "ä😀 0123 "}
    wanted = answer_of(**plan)
    assert len(wanted.encode()) > 10_000_000
    done = said(kedge, asking(**plan), mode)
    assert (done.code, done.err) == (0, "")
    assert digest(done.out) == digest(line(wanted))


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_of_a_megabyte_arrives_whole_and_comes_back_whole(kedge: Kedge, mode: str) -> None:
    prompt = asking(echo=1, piece=10_000) + "".join(f"{number} ä😀\u2028\x00\n" for number in range(70_000))
    assert len(prompt.encode()) > 1_000_000
    done = said(kedge, prompt, mode)
    assert (done.code, done.err) == (0, "")
    assert digest(done.out) == digest(prompt)


def digest(text: str) -> tuple[int, str]:
    """Something that a failed assertion can show."""
    return len(text), hashlib.sha256(text.encode()).hexdigest()
