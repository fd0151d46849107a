"""Limits (P17), patterns and image types; `validation` checks them. Imports nothing."""

from __future__ import annotations

# Room for several pasted screenshots in one request; more than that belongs in files.
MAX_BODY_BYTES = 32 * 1024 * 1024
# About a million tokens: no model reads more in one prompt.
MAX_PROMPT_BYTES = 4 * 1024 * 1024
# The kernel takes 131,071 for one argument of a program.
MAX_COMMAND_BYTES = 100_000
# Nobody queues this many by hand; a runaway script is stopped before it fills the disk.
MAX_OPEN_RUNS = 100
# Enough for a stack trace and a provider's explanation; it is stored three times (row, error event, end).
MAX_ERROR_CHARS = 4_000
# More than any system allows a process; kept in memory while the run is open.
MAX_ENV_CHARS = 2 * 1024 * 1024
# No provider has keys this long.
MAX_KEY_CHARS = 64 * 1024
# A paragraph or two for the model; it is stored three times (answer, event, result).
MAX_REASON_CHARS = 16 * 1024
# A title is one line of a list.
MAX_TITLE_CHARS = 200
# More than a prompt can refer to; the limit of the body applies to all of them together.
MAX_ATTACHMENTS = 100
# The limit of file names on every system.
MAX_FILE_NAME_CHARS = 255
# The smallest limit of all providers: 5 MiB of base64.
MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
# Providers accept only a fraction of this.
MAX_SCHEMA_BYTES = 256 * 1024
# Rules of one run are written by hand or by a small script; each is checked for every call.
MAX_RULES = 1_000
MAX_RULE_CHARS = 1_000
# No schema needs more, and JSON parsers of clients, which read the log, give up at a thousand levels or earlier.
MAX_DEPTH = 32

# Without `\s` and `.`: they mean different characters in other languages, which read these in the OpenAPI document.
MODEL = r"[^/\x00-\x20\x7f]+/[^\x00-\x20\x7f][^\x00-\x1f\x7f]{0,250}"
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
MIME_TYPE = r"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}(?:;[\x20-\x7e]{0,128})?"
TEXT_IMAGES = ("image/svg+xml",)


IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def detect_image_type(head: bytes) -> str | None:
    """Return the media type of a file that starts with `head`; None if it is not one of `IMAGE_TYPES`."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None
