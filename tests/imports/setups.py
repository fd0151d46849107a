"""Set-ups of other agents, as their own documentation writes them, with secrets in every place."""

from __future__ import annotations

import json
from pathlib import Path

SECRET = "ghp_abcdefghijklmnop0123456789"
CLAUDE_STATE = {
    "numStartups": 7,
    "mcpServers": {
        "github": {
            "type": "http",
            "url": "https://api.githubcopilot.com/mcp/",
            "headers": {"Authorization": f"Bearer {SECRET}"},
        },
        "files": {"command": "npx", "args": ["-y", "files", "/tmp"], "env": {"LEVEL": "debug", "API_KEY": "hunter2-x"}},
        "with-argument": {"command": "tool", "args": ["--api-key", "s3cret-value", "--token=abc123def"]},
        "in-text": {
            "command": "npx",
            "args": [
                "mcp-remote",
                "https://r.example/mcp",
                "--header",
                "Authorization: Bearer plain9secret",
                "--pw=pw1secret",
            ],
            "env": {"DB_PASS": "p4ss", "DSN": "mysql://me:dsn9secret@db/x", "AUTH_MODE": "true"},
        },
        "in-script": {"command": "sh", "args": ["-c", "TOKEN=script9secret exec server"]},
        "broken": {"command": 7},
    },
}
CLAUDE_SETTINGS = {
    "permissions": {
        "allow": [
            "Bash(git log:*)",
            "Bash(npm run test:*)",
            "Edit(src/**)",
            "WebFetch(domain:docs.rs)",
            "Skill(x)",
            f"Bash(API_KEY={SECRET} run:*)",
        ],
        "deny": ["Read(./.env)", "Read(//etc/shadow)", "Bash(git push *)", "mcp__github__delete_repo"],
        "ask": ["Bash(rm:*)"],
        "defaultMode": "acceptEdits",
    },
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": '"$HOME"/guard.sh ${X}', "timeout": 5}]},
            {"matcher": "Bash", "hooks": [{"type": "prompt", "prompt": "is it fine?"}]},
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "exit 2", "if": "Bash(git push *)"}]},
        ],
        "Stop": [{"hooks": [{"type": "command", "command": f"curl -H 'Authorization: Bearer {SECRET}' https://x"}]}],
        "WorktreeCreate": [{"hooks": [{"type": "command", "command": "x"}]}],
    },
}
CODEX = """
model = "gpt-5"
[mcp_servers.docs]
command = "docs-server"
args = ["--stdio"]
env_vars = ["DOCS_TOKEN"]
[mcp_servers.remote]
url = "https://mcp.example.com/mcp?api_key=aaaabbbbccccdddd1111"
bearer_token_env_var = "REMOTE_TOKEN"
tool_timeout_sec = 30
[mcp_servers.github]
command = "other"
[mcp_servers.few]
command = "few"
enabled_tools = ["search"]
[agents.reviewer]
description = "Reviews."
config_file = "reviewer.toml"
"""
CODEX_AGENT = 'name = "explorer"\ndescription = "Explores."\ndeveloper_instructions = "Only look."\n'
OPENCODE = """{
  // JSONC, with a comma at the end
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "search": { "type": "remote", "url": "https://x.example/mcp", "headers": { "X-Key": "{env:SEARCH_KEY}" } },
    "local": { "type": "local", "command": ["bun", "x", "thing"], "enabled": false, "environment": { "A": "b" } },
  },
  "permission": { "edit": "ask", "bash": { "git push*": "deny", "ls *": "allow" }, "webfetch": "deny" },
  "command": { "hello": { "template": "Say hello to $ARGUMENTS", "description": "greets: people" } },
}"""
CRUSH = {
    "mcp": {"jira": {"type": "stdio", "command": "jira-mcp", "timeout": 120, "env": {"JIRA_TOKEN": "$JIRA_TOKEN"}}},
    "permissions": {"allowed_tools": ["view", "mcp_jira_get"]},
    "hooks": {"PreToolUse": [{"matcher": "^bash$", "command": "./guard", "timeout": 10}]},
}
GEMINI = {
    "mcpServers": {"maps": {"httpUrl": "https://maps.example/mcp", "timeout": 5000}},
    "tools": {"allowed": ["run_shell_command(git status)"], "exclude": ["run_shell_command(rm)"]},
}
SKILL = "---\nname: deploy\ndescription: Deploys.\n---\nDo it.\n"


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def write_all(home: Path, project: Path) -> None:
    write(home / ".claude.json", CLAUDE_STATE)
    write(home / ".claude" / "settings.json", CLAUDE_SETTINGS)
    write(home / ".claude" / "CLAUDE.md", "Be brief.")
    write(home / ".claude" / "commands" / "review.md", "Review it.")
    write(home / ".claude" / "skills" / "pdf" / "SKILL.md", SKILL)
    write(home / ".codex" / "config.toml", CODEX)
    write(home / ".codex" / "AGENTS.md", "Use tabs.")
    write(home / ".codex" / "prompts" / "plan.md", "Plan $1.")
    write(home / ".codex" / "skills" / "deploy" / "SKILL.md", SKILL)
    write(home / ".codex" / "skills" / "deploy" / "scripts" / "run.sh", "echo run")
    write(home / ".codex" / "skills" / ".system" / "own" / "SKILL.md", SKILL)
    write(home / ".codex" / "agents" / "explorer.toml", CODEX_AGENT)
    write(home / ".codex" / "reviewer.toml", 'developer_instructions = "Review it."')
    write(home / ".config" / "opencode" / "opencode.jsonc", OPENCODE)
    write(home / ".config" / "crush" / "crush.json", CRUSH)
    write(home / ".gemini" / "settings.json", GEMINI)
    write(home / ".gemini" / "commands" / "git" / "fix.toml", 'description = "d"\nprompt = "Fix {{args}} !{git diff}"')
    write(project / "CLAUDE.md", "Of the project.")
    write(project / ".mcp.json", {"mcpServers": {"shared": {"command": "x"}}})
    write(project / ".claude" / "settings.json", {"permissions": {"deny": ["Edit(migrations/**)"]}})
