"""What no held command reads, wherever it is configured: keys, passwords and what browsers remember."""

from __future__ import annotations

SECRETS = (
    # keys, and who may use them
    *("~/.ssh", "~/.gnupg", "~/.password-store", "~/.local/share/keyrings", "~/.config/op"),
    # clouds and clusters
    *("~/.aws", "~/.azure", "~/.config/gcloud", "~/.oci", "~/.kube", "~/.docker/config.json", "~/.vault-token"),
    *("~/.terraform.d/credentials.tfrc.json", "~/.config/doctl", "~/.fly", "~/.config/containers/auth.json"),
    # hosts of code, and of packages
    *(
        "~/.netrc",
        "~/.git-credentials",
        "~/.config/git/credentials",
        "~/.config/gh",
        "~/.config/hub",
        "~/.config/glab-cli",
    ),
    *("~/.npmrc", "~/.pypirc", "~/.gem/credentials"),
    *("~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.m2/settings-security.xml"),
    # agents, Kedge among them
    *("~/.config/kedge", "~/.local/share/kedge", "~/.claude", "~/.codex", "~/.gemini"),
    # browsers and mail
    *("~/.mozilla", "~/.thunderbird", "~/.config/google-chrome", "~/.config/chromium"),
    *("~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/vivaldi", "~/.config/opera"),
    *("~/snap/firefox", "~/snap/chromium", "~/.var/app/org.mozilla.firefox", "~/.var/app/com.google.Chrome"),
    # what was typed
    *("~/.bash_history", "~/.zsh_history", "~/.local/share/fish/fish_history", "~/.python_history", "~/.psql_history"),
    *("~/.pgpass", "~/.my.cnf"),
)
