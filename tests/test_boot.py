"""One boot of the machine is told from another, on every system that we run on."""

from collections.abc import Generator
from pathlib import Path

import pytest

from kedge import boot

NOWHERE = Path("/no/boot/here")


@pytest.fixture(autouse=True)
def forgotten() -> Generator[None]:
    boot.boot_id.cache_clear()
    yield
    boot.boot_id.cache_clear()


def test_this_machine_names_its_boot() -> None:
    name = boot.boot_id()
    assert name
    boot.boot_id.cache_clear()
    assert boot.boot_id() == name


def test_where_there_is_no_proc_the_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "sysctl"
    asked.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo B007-ED\n')
    asked.chmod(0o700)
    monkeypatch.setattr(boot, "_LINUX", NOWHERE)
    monkeypatch.setattr(boot, "_MACOS", (str(asked), *boot._MACOS[1:]))
    assert boot.boot_id() == "B007-ED"


@pytest.mark.parametrize("answer", [None, "#!/bin/sh\nexit 1\n"], ids=["nobody to ask", "an error"])
def test_where_the_system_does_not_say_the_boot_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None
) -> None:
    asked = tmp_path / "sysctl"
    if answer is not None:
        asked.write_text(answer)
        asked.chmod(0o700)
    monkeypatch.setattr(boot, "_LINUX", NOWHERE)
    monkeypatch.setattr(boot, "_MACOS", (str(asked),))
    assert boot.boot_id() == ""
