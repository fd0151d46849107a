"""Vendors that a key alone gives access to, and the models that are used there when nobody names one. Data, for the
server and for its clients, in the order in which keys are looked for.

The models are good at code, neither the dearest nor the cheapest.
"""

from __future__ import annotations

from typing import NamedTuple

OPENAI_MODEL = "gpt-6.1-sol"
ANTHROPIC_MODEL = "claude-sonnet-5-5"
GEMINI_MODEL = "gemini-3.8-flash"


class Vendor(NamedTuple):
    title: str
    model: str
    key_variables: tuple[str, ...] = ()  # empty: NAME_API_KEY


VENDORS = {
    "openai": Vendor("OpenAI", OPENAI_MODEL),
    "anthropic": Vendor("Anthropic", ANTHROPIC_MODEL),
    "gemini": Vendor("Google", GEMINI_MODEL, ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "openrouter": Vendor("OpenRouter", "~anthropic/claude-sonnet-latest"),
    "groq": Vendor("Groq", "openai/gpt-oss-120b"),
    "deepseek": Vendor("DeepSeek", "deepseek-v4-pro"),
    "mistral": Vendor("Mistral", "mistral-medium-latest"),
    "xai": Vendor("xAI", "grok-4.7"),
    "moonshot": Vendor("Moonshot (Kimi)", "kimi-k3"),
    "zai": Vendor("Z.ai (GLM)", "glm-5.2"),
    "qwen": Vendor("Alibaba (Qwen)", "qwen3-coder-plus", ("DASHSCOPE_API_KEY", "QWEN_API_KEY")),
    "together": Vendor("Together", "openai/gpt-oss-120b"),
    "fireworks": Vendor("Fireworks", "accounts/fireworks/models/gpt-oss-120b"),
    "cerebras": Vendor("Cerebras", "gpt-oss-120b"),
}
