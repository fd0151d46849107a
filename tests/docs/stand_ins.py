"""What readers have and tests have not: their keys, their servers, their other machine. Each has a stand-in here."""

from __future__ import annotations

from pathlib import Path

KEY = "key-for-tests"
TCP = "127.0.0.1:7171"  # the server of the pages; that of a test takes a free port

# Programs of others. What they are told is what counts.
PROGRAMS = {
    # Prints a key.
    "pass": f"echo {KEY}",
    # ssh -N -L HERE:THERE HOST, where there is here, too.
    "ssh": 'here=${3%%:*}; ln -s "${3#*:}" "$here"',
    # systemctl --user enable --now UNIT: whether the unit can be read, and starts something that exists.
    "systemctl": """\
unit=$HOME/.config/systemd/user/$4.service
grep -q '^WantedBy=' "$unit"
set -- $(sed -n 's|^ExecStart=%h/.local/bin/||p' "$unit")
"$@" --help > /dev/null""",
}

_SOME_SESSION = (
    """"$(kedge run -q Hello. > hello.txt; kedge session list --json | sed -n '1s/.*"id": "\\([^"]*\\)".*/\\1/p')\""""
)


def words(model_url: str, anthropic_url: str, socket: str) -> dict[str, str]:
    """What stands in the pages, and what is typed instead."""
    anthropic = f"ANTHROPIC_BASE_URL={anthropic_url} ANTHROPIC_API_KEY={KEY}"
    return {
        "_API_KEY=…": f"_API_KEY={KEY}",
        "http://127.0.0.1:8000/v1": model_url,
        "https://my-resource.openai.azure.com": model_url,
        # Servers that the pages do not name. No variable for all of a page: `kedge models` would ask them all.
        "kedge run -m ollama/": f"OLLAMA_BASE_URL={model_url} kedge run -m ollama/",
        "kedge -m anthropic/": f"{anthropic} kedge -m anthropic/",
        "kedge login anthropic": f"{anthropic} kedge login anthropic",
        # Any file would do, but this one is asked for its likeliest words, and so comes to an end each time.
        "local/~/models/qwen2.5-coder-7b-instruct-q4_k_m.gguf": "local/starter",
        "/run/user/1000/kedge/NAME.sock": socket,
        "--token-file TOKEN": '--token-file "$KEDGE_DATA_DIR/token"',
        "-s SESSION": f"-s {_SOME_SESSION}",
        "kedge COMMAND": "kedge runs",
    }


def make_programs(directory: Path) -> Path:
    directory.mkdir()
    for name, script in PROGRAMS.items():
        (directory / name).write_text(f"#!/bin/sh -e\n{script}\n")
        (directory / name).chmod(0o700)
    return directory
