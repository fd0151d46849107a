"""`GET /v1/metrics`: valid Prometheus text, with everything that tells how the server is, and it moves."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.client import Client, done
from tests.server.conftest import Start

SAMPLE = re.compile(r"([a-z_]+)(\{[a-z]+=\"[^\"\\\n]*\"\})? (-?\d+(\.\d+)?(e[+-]?\d+)?)")
TYPE = re.compile(r"# TYPE ([a-z_]+) (counter|gauge|histogram)")


def samples(client: Client) -> dict[str, float]:
    return {
        name: float(value)
        for line in client.get("/v1/metrics").body.decode().splitlines()
        if not line.startswith("#")
        for name, _, value in [line.rpartition(" ")]
    }


def test_it_is_valid_prometheus_text(client: Client) -> None:
    answer = client.get("/v1/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if match := TYPE.fullmatch(line):
            assert match[1] not in kinds, "one type for each"
            kinds[match[1]] = match[2]
            current = match[1]
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        family = re.sub(r"_(bucket|sum|count)$", "", match[1]) if kinds[current] == "histogram" else match[1]
        assert family == current, "samples follow their type"
        assert kinds[current] != "counter" or family.endswith("_total")


def test_a_histogram_counts_up_to_everything(client: Client, workspace: str) -> None:
    client.ended(workspace, client.submit(workspace, client.session(workspace), "say hello"))
    found = samples(client)
    for name in ("kedge_accept_seconds", "kedge_step_seconds"):
        buckets = [value for sample, value in found.items() if sample.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"] > 0
        assert found[f"{name}_sum"] > 0


def test_everything_moves(start: Start, tmp_path: Path) -> None:
    server = start()
    client = server.client
    before = samples(client)
    assert before["kedge_memory_bytes"] > 10_000_000
    assert before["kedge_store_bytes"] > 0
    assert [value for name, value in before.items() if "runs" in name] == [0, 0, 0, 0, 0]

    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    with client.events(workspace) as events:
        events.until("caught_up")
        for prompt in ("say hello", "fail", "raise boom", "ask tool output", "say queued", "say queued"):
            client.submit(workspace, session_id, prompt)
        events.until("permission_request")
        busy = samples(client)
        assert busy['kedge_runs_open{state="running"}'] == 1
        assert busy['kedge_runs_open{state="queued"}'] == busy["kedge_queue_length"] == 2
        assert busy['kedge_runs_ended_total{outcome="completed"}'] == 1
        assert busy['kedge_runs_ended_total{outcome="failed"}'] == 2
        assert (busy["kedge_subscribers"], busy["kedge_feed_lag_events"]) == (1, 0)
        done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))
        for _ in range(3):
            events.until(lambda event: event.type == "run_complete" and getattr(event.payload, "cancelled", False))
    while (after := samples(client))["kedge_subscribers"]:
        pass
    assert after['kedge_runs_ended_total{outcome="cancelled"}'] == 3
    assert after['kedge_runs_open{state="running"}'] == after["kedge_queue_length"] == 0
    assert after["kedge_accept_seconds_count"] == 6
    assert after["kedge_step_seconds_count"] >= 2
    assert after["kedge_store_bytes"] > before["kedge_store_bytes"]
