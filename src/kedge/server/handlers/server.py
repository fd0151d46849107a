"""The server itself: health, version, metrics, and shutdown."""

from __future__ import annotations

from kedge.engine.engine import MAX_TURNS
from kedge.protocol import bounds
from kedge.protocol.api import MAX_PAGE, MAX_WAIT_S, Bounds, ControlBody, Controlled, Health, Version
from kedge.protocol.errors import Conflict
from kedge.server.connections import connection_limits
from kedge.server.errors import NoRoute
from kedge.server.http import Request, Response
from kedge.server.http_connection import HEAD_S
from kedge.version import VERSION

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def get_health(request: Request) -> Response:
    """Server health."""
    return Response(Health("stopping" if request.engine.is_stopping else "ok"))


async def get_proof(request: Request) -> Response:
    """Prove that the server knows the token; needs no token itself (TCP only)."""
    # Over TCP `AuthMiddleware` answers this. A Unix socket has no token: the system says who listens there.
    del request
    raise NoRoute("/v1/proof")


async def get_version(request: Request) -> Response:
    """Version and bounds."""
    retention, connections = request.engine.retention, connection_limits()
    return Response(
        Version(
            VERSION,
            "v1",
            Bounds(
                body_bytes=bounds.MAX_BODY_BYTES,
                prompt_bytes=bounds.MAX_PROMPT_BYTES,
                attachments=bounds.MAX_ATTACHMENTS,
                image_bytes=bounds.MAX_IMAGE_BYTES,
                output_schema_bytes=bounds.MAX_SCHEMA_BYTES,
                rules=bounds.MAX_RULES,
                open_runs_per_session=bounds.MAX_OPEN_RUNS,
                turns=MAX_TURNS,
                title_chars=bounds.MAX_TITLE_CHARS,
                denial_reason_chars=bounds.MAX_REASON_CHARS,
                error_chars=bounds.MAX_ERROR_CHARS,
                request_head_seconds=HEAD_S,
                tcp_connections=connections.tcp,
                tcp_connections_without_token=connections.without_token,
                page=MAX_PAGE,
                wait_seconds=MAX_WAIT_S,
                log_age_seconds=retention.max_age_s,
                log_bytes=retention.max_bytes,
                receipts_after_deletion_seconds=retention.receipts_s,
            ),
        )
    )


async def get_openapi(request: Request) -> Response:
    """This document."""
    return Response(request.context.openapi())


async def get_metrics(request: Request) -> Response:
    """Prometheus metrics."""
    text = await request.context.metrics.text(request.engine)
    return Response(text.encode(), media_type=PROMETHEUS)


async def control_server(request: Request) -> Response:
    """Stop the server."""
    if request.body(ControlBody).command == "shutdown_if_idle" and not request.engine.is_idle:
        raise Conflict("not_idle", "The server has open runs or background jobs. Wait for them, or send shutdown.")
    request.context.stop()
    return Response(Controlled(stopping=True))
