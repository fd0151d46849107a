"""Image types that every model with vision reads, recognized by their first bytes. Imports nothing."""

from __future__ import annotations

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
