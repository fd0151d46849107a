"""Files that make other programs run or allow something: changing one needs a person, also in the mode `auto-edit`.

They are read by programs that nobody asked to read them: git, shells, editors, CI, package managers, version managers,
coding agents. What is only run when somebody runs it (a Makefile, package.json, a test) is not among them.
"""

from __future__ import annotations

import fnmatch
from pathlib import Path

from kedge.tools.permissions.shell.parse import names

# Anywhere on the way to the file, outside the workspace too: a workspace may lie in `~/.config`. All in small letters.
_DIRECTORIES = frozenset({".git", ".hg", ".svn", ".kedge", ".husky", ".ssh", ".config"})
# Below the workspace.
_DIRECTORIES_INSIDE = names(
    ".github/workflows .github/actions .github/instructions .gitea/workflows .forgejo/workflows .circleci .buildkite"
    " .vscode .idea .zed .devcontainer .cargo .bundle .yarn .mise"
    " .claude .agents .cursor .codex .opencode .gemini .windsurf .clinerules"
    # What a virtual environment or a package manager installed is found by name, and run.
    " .venv venv .direnv .tox .nox .pixi node_modules site-packages dist-packages __pypackages__"
)
_NAMES = names(
    "kedge.toml head .envrc .gitmodules .gitconfig .gitattributes .profile .inputrc .bashrc .bash_profile .bash_login"
    " .bash_logout .zshrc .zshenv .zprofile .zlogin"
    " agents.md agents.*.md agent.md claude.md claude.*.md gemini.md .cursorrules .windsurfrules .clinerules"
    " copilot-instructions.md .mcp.json mcp.json opencode.json opencode.jsonc .aider.conf.yml"
    " .gitlab-ci.yml .gitlab-ci.yaml .travis.yml azure-pipelines.yml bitbucket-pipelines.yml .drone.yml .woodpecker.yml"
    " .cirrus.yml jenkinsfile *.code-workspace .devcontainer.json .exrc .vimrc .nvimrc .nvim.lua .dir-locals.el"
    " .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .pnpmfile.mjs .pnp.cjs .pnp.loader.mjs .tool-versions"
    " mise.toml .mise.toml mise.*.toml .mise.*.toml rust-toolchain rust-toolchain.toml"
    " .pre-commit-config.yaml lefthook.yml .lefthook.yml"
    " conftest.py sitecustomize.py usercustomize.py *.pth pyvenv.cfg pip.conf"
)


def is_switch(path: str, workspace: str) -> bool:
    """Whether a resolved path is one; capital letters are no difference: some file systems take .GIT for .git."""
    where = Path(path.casefold())
    if not _DIRECTORIES.isdisjoint(where.parts) or any(fnmatch.fnmatchcase(where.name, name) for name in _NAMES):
        return True
    root = Path(workspace.casefold())
    inside = f"/{where.relative_to(root)}/" if where.is_relative_to(root) else f"{where}/"
    return any(f"/{directory}/" in inside for directory in _DIRECTORIES_INSIDE)
