"""The server itself: is it there, what is it, how is it, and please leave."""

from __future__ import annotations

from kedge.engine.engine import MAX_TURNS
from kedge.protocol import bounds
from kedge.protocol.api import MAX_PAGE, MAX_WAIT_S, Bounds, ControlBody, Controlled, Health, Version
from kedge.protocol.errors import Conflict
from kedge.server.connections import HEAD_S, connection_limits
from kedge.server.errors import NoRoute
from kedge.server.http import Call, Reply
from kedge.version import VERSION

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: Call) -> Reply:
    return Reply(Health("stopping" if call.engine.is_stopping else "ok"))


async def proof(call: Call) -> Reply:
    """Answered by `auth.Guard` over TCP. A Unix socket has no token: there the system says who answers."""
    del call
    raise NoRoute("/v1/proof")


async def version(call: Call) -> Reply:
    retention, connections = call.engine.retention, connection_limits()
    return Reply(
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


async def openapi(call: Call) -> Reply:
    return Reply(call.context.openapi())


async def metrics(call: Call) -> Reply:
    text = await call.context.metrics.text(call.engine)
    return Reply(text.encode(), media_type=PROMETHEUS)


async def control(call: Call) -> Reply:
    if call.body(ControlBody).command == "shutdown_if_idle" and not call.engine.is_idle:
        raise Conflict("not_idle", "the server has open runs or background jobs; wait for them, or send shutdown")
    call.context.stop()
    return Reply(Controlled(stopping=True))
