"""Who is compared with whom: Kedge first, then its peers with the versions that are installed here."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers import install
from bench.peers.peers import Npm, Peer, Tool
from kedge.version import VERSION

KEDGE = Peer(
    name="kedge",
    version=VERSION,
    source=None,
    executable="bin/kedge",
    run=("run", "-q", "$prompt"),
    variables={"OPENAI_BASE_URL": "$url", "KEDGE_MODEL": "openai/$model", "KEDGE_DATA_DIR": "$home/data"},
    tool=Tool("view", {"path": "hello.txt"}),
)

CODEX = Peer(
    name="codex",
    version="0.166.0",
    source=Npm(("@openai/codex@0.166.0",)),
    executable="node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
    run=("exec", "--skip-git-repo-check", "$prompt"),
    files={
        ".codex/config.toml": """\
model = "$model"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "$url"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
    },
    variables={"CODEX_HOME": "$home/.codex"},
    tool=Tool("exec_command", {"cmd": "cat hello.txt"}),
)

OPENCODE = Peer(
    name="opencode",
    version="1.18.33",
    source=Npm(("opencode-ai@1.18.33",)),
    executable="node_modules/opencode-linux-x64/bin/opencode",
    run=("run", "$prompt"),
    files={
        ".config/opencode/opencode.json": """\
{
  "autoupdate": false, "share": "disabled", "model": "scripted/$model", "small_model": "scripted/$model",
  "provider": {"scripted": {
    "npm": "@ai-sdk/openai-compatible", "name": "scripted",
    "options": {"baseURL": "$url", "apiKey": "$key"}, "models": {"$model": {"name": "$model"}}}}
}
"""
    },
    variables={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    tool=Tool("read", {"filePath": "$workspace/hello.txt"}),
)

PEERS = (CODEX, OPENCODE)


def where(peer: Peer) -> Path:
    """Its installation; Kedge's is the environment that this runs in."""
    return Path(sys.prefix) if peer is KEDGE else install.directory(peer)
