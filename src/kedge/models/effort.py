"""How hard a model is asked to think; and where somebody asked for that in vain, why."""

from __future__ import annotations

from kedge.config.schema import Config, Effort
from kedge.models.values import Endpoint


def effort_of(endpoint: Endpoint, config: Config, wanted: Effort | None = None) -> Effort | None:
    """As the run or its session wants it, then the model's own setting, then the general one, where it takes one."""
    provider = config.providers.get(endpoint.provider)
    settings = provider and provider.models.get(endpoint.model)
    wanted = wanted or (settings and settings.reasoning_effort) or config.reasoning_effort
    return wanted if endpoint.info.reasoning else None


def why_not_passed_on(endpoint: Endpoint, wanted: Effort, *, has_tools: bool) -> str | None:
    """A line for whoever wanted it; None: the model is asked to think so."""
    lost = f"the effort {wanted} is not passed on"
    if not endpoint.info.reasoning:
        setting = f'reasoning_effort in [providers.{endpoint.provider}.models."{endpoint.model}"]'
        return f"{lost}: {endpoint.name} is not known to take one; if it does, set {setting}"
    if has_tools and endpoint.wire == "chat" and endpoint.info.effort_with_tools != "any":
        return f"{lost}: over Chat Completions {endpoint.name} takes none beside tools"
    return None
