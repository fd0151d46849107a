"""The models that are used at a vendor's own address when nobody names one. Data, for the server and for its clients.

They are good at code, neither the dearest nor the cheapest. OpenAI's newest are not among them: they take no tools on
the chat wire.
"""

from __future__ import annotations

OPENAI_MODEL = "gpt-5.4"
ANTHROPIC_MODEL = "claude-sonnet-5-5"
GEMINI_MODEL = "gemini-3.8-flash"
