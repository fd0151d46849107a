"""What a soak may cost: memory, descriptors, threads and disk of the server. Each number says why it is that one."""

from __future__ import annotations

from statistics import median

from tests.soak.checks import Verdict
from tests.soak.record import Machine, Sample

MIB = 1024 * 1024

# An idle server has about 70 MiB. The rings of all feeds may have 32, fifty turns with their histories and HTTP
# connections take the rest; twice what was measured, because the allocator of another machine keeps other amounts.
PEAK_RSS_BYTES = 300 * MIB
# The load is the same from minute to minute, so what it needs is the same: more than this is something that is kept.
# What may still grow after the warm-up are rings up to their bound, and caches up to theirs.
GROWTH_BYTES = 40 * MIB
# A server that has served for less is still filling its rings and its caches: its growth is not judged.
JUDGED_AFTER_S = 120.0
WARM_UP_SHARE = 0.33
# About 50 connections to models, as many clients, 30 streams, pipes of commands, the database and its readers.
MAX_DESCRIPTORS = 600
# At the end nobody is connected but the readers that stay.
MAX_DESCRIPTORS_AT_REST = 150
# asyncio's pool has up to 32 for files, the store a writer and its readers.
MAX_THREADS = 80
# The journal is moved into the database beside the commits, from 4 MiB on; a reader in a long transaction, or a
# machine that is busy elsewhere, may hold it up for a while.
MAX_WAL_BYTES = 64 * MIB
# P12: at most four times the content. A row of an event, a run or a message costs the same however short its words are,
# and the words of this load are short.
CONTENT_TIMES = 4
EVENT_BYTES = 500
EMPTY_BYTES = 2 * MIB
# Four files of 5 MiB, the log's own bound; a line may be over.
MAX_SERVER_LOG_BYTES = 21 * MIB


def memory_is_bounded(machine: Machine) -> Verdict:
    if not machine.samples:
        return Verdict("no samples", ["the server was never looked at"])
    peak = max(sample.rss_bytes for sample in machine.samples)
    wrong = [f"peak {peak / MIB:.0f} MiB, over {PEAK_RSS_BYTES / MIB:.0f}"] if peak > PEAK_RSS_BYTES else []
    growth = growth_bytes(machine.samples)
    if growth is not None and growth > GROWTH_BYTES:
        wrong.append(f"grew by {growth / MIB:.1f} MiB after the warm-up, over {GROWTH_BYTES / MIB:.0f}")
    grown = "not judged" if growth is None else f"{growth / MIB:+.1f} MiB"
    return Verdict(f"peak {peak / MIB:.0f} MiB, growth after the warm-up {grown}", wrong)


def growth_bytes(samples: list[Sample]) -> int | None:
    """From after the warm-up to the end, in the longest life that there was; None: it was too short to tell."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    longest = max(lives.values(), key=lambda life: life[-1].at - life[0].at)
    if longest[-1].at - longest[0].at < JUDGED_AFTER_S:
        return None
    warm = longest[int(len(longest) * WARM_UP_SHARE) :]
    third = max(1, len(warm) // 3)
    return int(median(s.rss_bytes for s in warm[-third:]) - median(s.rss_bytes for s in warm[:third]))


def handles_are_bounded(machine: Machine) -> Verdict:
    samples = machine.samples
    most, threads = max(s.descriptors for s in samples), max(s.threads for s in samples)
    rest = (machine.at_rest or samples[-1]).descriptors
    wrong = [f"{most} descriptors, over {MAX_DESCRIPTORS}"] if most > MAX_DESCRIPTORS else []
    wrong += [f"{rest} descriptors at rest"] if rest > MAX_DESCRIPTORS_AT_REST else []
    wrong += [f"{threads} threads, over {MAX_THREADS}"] if threads > MAX_THREADS else []
    return Verdict(f"{most} descriptors at most, {rest} at rest; {threads} threads", wrong)


def disk_is_bounded(machine: Machine) -> Verdict:
    wal = max((sample.wal_bytes for sample in machine.samples), default=0)
    allowed = EMPTY_BYTES + CONTENT_TIMES * machine.content_bytes + EVENT_BYTES * machine.events
    wrong: list[str] = []
    if machine.database_bytes > allowed:
        wrong.append(f"database {machine.database_bytes / MIB:.1f} MiB, over {allowed / MIB:.1f}")
    if wal > MAX_WAL_BYTES:
        wrong.append(f"journal {wal / MIB:.1f} MiB, over {MAX_WAL_BYTES / MIB:.0f}")
    if machine.server_log_bytes > MAX_SERVER_LOG_BYTES:
        wrong.append(f"server.log {machine.server_log_bytes / MIB:.1f} MiB")
    if not machine.is_database_sound:
        wrong.append("the database is not sound")
    sizes = f"database {machine.database_bytes / MIB:.1f} MiB for {machine.content_bytes / MIB:.1f} MiB of content"
    return Verdict(f"{sizes}, {machine.events} events; journal at most {wal / MIB:.1f} MiB", wrong)


def nothing_is_left(machine: Machine) -> Verdict:
    """No process outlives the last server, and no interpreter crashed. What was logged with a traceback breaks no
    promise by itself; it is shown, because somebody should look at it."""
    wrong = [f"process {each} outlived the last server" for each in machine.orphans]
    wrong += [f"a server crashed: {stacks}" for stacks in machine.crashes]
    logged = "".join(f"\n{entry}" for entry in machine.tracebacks)
    return Verdict(f"{len(machine.lives)} servers, {len(machine.tracebacks)} tracebacks in their log{logged}", wrong)


BUDGETS = [memory_is_bounded, handles_are_bounded, disk_is_bounded, nothing_is_left]
