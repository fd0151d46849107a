"""The services that all turns of an agent share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import msgspec

from kedge.agent.retry import RetryPolicy
from kedge.agent.system_prompt import GitStates
from kedge.agent.titles import Titles
from kedge.config.schema import Config
from kedge.models.client import ModelClient
from kedge.models.keys.credentials import Credentials
from kedge.models.selection.selector import ModelSelector
from kedge.tools.port import Tool
from kedge.tools.process.jobs import WorkspaceJobs

Configure = Callable[[Path, Mapping[str, str]], Config]
"""Loads the configuration of a directory for a caller with these environment variables; may read files."""


class AgentDeps(msgspec.Struct, frozen=True, kw_only=True):
    models: ModelClient
    selector: ModelSelector
    credentials: Credentials
    environ: Mapping[str, str]  # for runs that were sent without an environment
    configure: Configure
    data_dir: Path
    tools: Sequence[Tool]
    jobs: WorkspaceJobs
    retry: RetryPolicy
    today: Callable[[], date]
    git_states: GitStates
    titles: Titles
