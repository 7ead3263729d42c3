#!/usr/bin/env python3
"""Writes the golden files of docs/formats/metadata.md by hand: no protobuf library, own CRC."""
import os, struct

def crc32c(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283

def varint(n):
    out = b""
    while n > 0x7F:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])

def num(field, n): return varint(field << 3) + varint(n)
def data(field, b): return varint(field << 3 | 2) + varint(len(b)) + b

def frame(magic, payload):
    head = magic + struct.pack("<II", 1, len(payload))
    return head + struct.pack("<I", crc32c(head + payload)) + payload

here = os.path.dirname(os.path.abspath(__file__))
node = data(1, b"n-1") + data(2, b"one") + data(3, b"h:1") + data(4, b"h:2") + num(5, 1)
open(os.path.join(here, "put_node.entry"), "wb").write(frame(b"RRME", data(2, data(1, node))))
cmap = data(1, b"c-1") + num(2, 2) + data(4, node) + num(8, 1)
state = num(1, 300) + data(2, cmap) + num(3, 5)
open(os.path.join(here, "state.snapshot"), "wb").write(frame(b"RRMS", state))

# Moves. Shard 0 of nodes n-1 and n-2: the replica of n-1 moves to n-3; that of n-4 has left.
def replica(id, node): return data(1, id) + data(2, node)
start = data(2, b"n-1") + data(3, replica(b"r-3", b"n-3")) + num(4, 9)  # shard 0: left out
open(os.path.join(here, "start_move.entry"), "wb").write(frame(b"RRME", data(7, start)))
advance = num(1, 4) + num(2, 1) + num(3, 2)
open(os.path.join(here, "advance_move.entry"), "wb").write(frame(b"RRME", data(8, advance)))
open(os.path.join(here, "forget_replica.entry"), "wb").write(frame(b"RRME", data(9, data(2, b"r-4"))))

def node(i): return data(1, b"n-%d" % i) + data(3, b"h:%d" % i) + data(4, b"p:%d" % i)
shard = (data(2, replica(b"r-1", b"n-1")) + data(2, replica(b"r-2", b"n-2")) + data(3, replica(b"r-3", b"n-3"))
         + data(4, data(1, replica(b"r-4", b"n-4")) + num(2, 8)) + num(5, 2))
cmap = (data(1, b"c-1") + num(2, 9) + num(3, 6) + b"".join(data(4, node(i)) for i in (1, 2, 3, 4)) + data(5, shard)
        + data(6, num(1, 4096)) + num(8, 1))
def move(id, source, target, phase): return num(1, id) + data(3, source) + data(4, target) + num(5, phase)
state = (num(1, 77) + data(2, cmap) + data(5, move(4, replica(b"r-1", b"n-1"), replica(b"r-3", b"n-3"), 1))
         + data(6, move(3, replica(b"r-4", b"n-4"), replica(b"r-2", b"n-2"), 5) + num(7, 10**9) + num(8, 2 * 10**9)) + num(7, 4))
open(os.path.join(here, "moves.snapshot"), "wb").write(frame(b"RRMS", state))

# Restores.
begun = bytes(range(1, 17))
open(os.path.join(here, "begin_restore.entry"), "wb").write(frame(b"RRME", data(22, data(1, begun))))
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "begun.snapshot"), "wb").write(frame(b"RRMS", num(1, 12) + data(2, cmap) + data(21, begun)))

# A table with an extension; 0x3f000000 is 0.5.
def fixed32(field, n): return varint(field << 3 | 5) + struct.pack("<I", n)
def fixed64(field, n): return varint(field << 3 | 1) + struct.pack("<Q", n)
table = (num(1, 7) + data(2, b"ads") + num(3, 1) + num(4, 16) + data(5, num(1, 1) + fixed64(5, 0xA9C7F9322862F290)) + data(6, num(1, 1) + fixed32(2, 0x3F800000))
         + num(7, 2) + data(8, num(1, 2) + fixed32(3, 0x3F000000)) + num(9, 3600) + data(10, num(1, 4096) + num(2, 1)))
open(os.path.join(here, "create_extended.entry"), "wb").write(frame(b"RRME", data(4, data(1, table))))
cmap = data(1, b"c-1") + num(2, 3) + data(7, table) + num(8, 1)
open(os.path.join(here, "extended.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap)))

# Trainers. Rank 1 of a job of tom attends with the tables 7 and 9, in the snapshot again without naming tables; table 7 comes from a checkpoint. Lists of numbers are packed.
tables = data(4, varint(7) + varint(9))
run = bytes(range(17, 33))
me = data(1, b"ctr") + data(2, run) + num(3, 1) + num(4, 6)
open(os.path.join(here, "attend.entry"), "wb").write(frame(b"RRME", data(30, data(1, me) + data(2, b"ckpt") + num(3, 2) + tables)))
open(os.path.join(here, "detach.entry"), "wb").write(frame(b"RRME", data(31, data(1, me))))
cmap = data(1, b"c-1") + num(2, 2) + num(8, 2)
trained = data(1, b"ctr") + num(2, 1) + num(3, 6) + data(4, b"tom")
source = data(1, b"ckpt") + data(2, b"/mnt") + data(3, b"nightly") + data(4, varint(7)) + data(5, trained)
attends = num(1, 1) + data(2, b"w-1") + num(3, 6) + data(4, begun) + num(5, 1) + num(8, 6) + num(9, 1)
state = (data(1, b"ctr") + data(2, run) + num(3, 2) + data(4, data(1, b"owner") + data(2, b"tom")) + num(5, 1) + num(7, 10 * 10**9) + num(8, 1)
         + num(12, 2) + data(13, attends) + data(14, b"") + num(23, 1) + data(24, varint(7) + varint(9)))
open(os.path.join(here, "trainers.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(30, source) + data(50, state)))
drop = data(1, b"ads") + num(2, 7)
open(os.path.join(here, "drop_table.entry"), "wb").write(frame(b"RRME", data(40, drop)))
cmap = data(1, b"c-1") + num(2, 4) + num(8, 1)
open(os.path.join(here, "dropped.snapshot"), "wb").write(frame(b"RRMS", num(1, 11) + data(2, cmap) + data(40, num(1, 7) + num(2, 1) + data(3, b"ads"))))

# Checkpoint policies. Every 10 minutes, keep 5, of job ctr, set by trainer tom; one made, one running, one failure.
spec = data(1, b"nightly") + data(2, b"/mnt") + num(3, 600 * 10**9) + num(4, 5) + data(6, b"ctr") + data(10, b"tom")
open(os.path.join(here, "set_policy.entry"), "wb").write(frame(b"RRME", num(90, 7) + data(32, data(1, spec))))
open(os.path.join(here, "begin_policy_run.entry"), "wb").write(frame(b"RRME", num(90, 9) + data(34, data(1, b"nightly") + data(2, b"nightly-2"))))
record = num(1, 7) + num(2, 9) + data(3, b"nightly-2") + data(4, data(1, b"nightly-1") + num(2, 8)) + data(5, b"full") + num(6, 1)
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "policies.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + data(32, data(1, spec) + data(2, record))))

# A scheduler in a process of its own.
node = data(1, b"n-1") + data(2, b"s1") + data(3, b"h:1") + data(4, b"h:2") + num(5, 1) + num(6, 1)
open(os.path.join(here, "put_scheduler.entry"), "wb").write(frame(b"RRME", data(2, data(1, node))))
cmap = data(1, b"c-1") + num(2, 2) + data(4, node) + num(8, 1)
open(os.path.join(here, "scheduler.snapshot"), "wb").write(frame(b"RRMS", num(1, 3) + data(2, cmap)))

# A table with FTRL. 0x3e000000 is 0.125.
table = (num(1, 8) + data(2, b"clicks") + num(3, 1) + num(4, 1) + data(5, num(1, 1) + fixed64(5, 0xD8BE24E0BBC444A7))
         + data(6, num(1, 6) + fixed32(2, 0x3E000000) + fixed32(9, 0x41200000) + fixed32(10, 0x3F800000) + fixed32(11, 0x40000000) + fixed32(12, 0x3F000000)))
open(os.path.join(here, "create_ftrl.entry"), "wb").write(frame(b"RRME", data(4, data(1, table))))
cmap = data(1, b"c-1") + num(2, 3) + data(7, table) + num(8, 1)
open(os.path.join(here, "ftrl.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap)))

# Runs of jobs. Two workers are expected, one trains and has part 1 of epoch 0, part 0 came back at its example 7.
settings = data(5, data(1, b"batch") + data(2, b"512")) + data(5, data(1, b"mode") + data(2, b"async"))
plan = num(1, 1000) + num(2, 100) + num(3, 2)
enter = data(1, b"ctr") + data(2, b"w-0") + data(3, begun) + num(4, 2) + settings + data(7, plan) + num(8, 10 * 10**9)
open(os.path.join(here, "enter_job.entry"), "wb").write(frame(b"RRME", data(50, data(1, enter) + data(2, run))))
reached = num(2, 1) + num(3, 40) + num(4, 50)  # epoch 0 is left out
leave = data(1, me) + num(2, 4) + data(3, b"silent") + data(4, reached)
open(os.path.join(here, "leave_job.entry"), "wb").write(frame(b"RRME", data(51, leave)))
open(os.path.join(here, "take_split.entry"), "wb").write(frame(b"RRME", data(52, data(1, me) + num(2, 2))))
open(os.path.join(here, "end_split.entry"), "wb").write(frame(b"RRME", data(53, data(1, me) + num(3, 1))))
open(os.path.join(here, "stop_job.entry"), "wb").write(frame(b"RRME", data(54, data(1, b"ctr") + data(2, run))))
lost = data(2, b"w-0") + num(3, 5) + data(4, begun) + num(5, 4) + data(6, b"silent") + num(7, 1)
there = num(1, 1) + data(2, b"w-1") + num(3, 6) + data(4, begun) + num(5, 1) + num(7, 1)
opened = data(6, num(3, 7)) + data(6, num(2, 1) + num(4, 6) + num(5, 1))
state = (data(1, b"ctr") + data(2, run) + num(3, 2) + data(4, data(1, b"batch") + data(2, b"512")) + data(4, data(1, b"mode") + data(2, b"async")) + num(5, 3) + num(7, 10 * 10**9) + num(8, 1)
         + num(12, 1) + data(13, lost) + data(13, there) + data(14, plan + num(5, 2) + opened + num(7, 3) + num(8, 93)))
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "runs.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(50, state)))
start = data(1, b"ctr") + data(2, run) + num(3, 3) + num(4, 41)
open(os.path.join(here, "start_generation.entry"), "wb").write(frame(b"RRME", data(55, start)))
open(os.path.join(here, "forget_run.entry"), "wb").write(frame(b"RRME", data(56, data(1, run))))
open(os.path.join(here, "ended_runs.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + data(51, run)))

# A score of held-out examples: AUC 0.75 after 900 steps, better only by more than 0.001. The run's best score, which has
# a checkpoint, is 0.75, and one score came after it. 0.75 is 3FE8…, 0.5 is 3FE0….
score = data(1, b"auc") + fixed64(2, 0x3FE8000000000000) + num(3, 900)
report = data(1, me) + data(2, score) + num(3, 1) + fixed64(4, 0x3F50624DD2F1A9FC)
open(os.path.join(here, "report_score.entry"), "wb").write(frame(b"RRME", data(59, report)))
best = score + data(4, b"/c/best")
last = data(1, b"auc") + fixed64(2, 0x3FE0000000000000) + num(3, 1000)
run_scores = data(1, best) + data(2, best) + data(3, last) + num(4, 6) + num(5, 1)
scored = (data(1, b"ctr") + data(2, run) + num(3, 2) + num(5, 3) + num(7, 10 * 10**9) + num(8, 1) + num(12, 1) + data(13, there)
          + data(14, plan) + data(28, run_scores))
open(os.path.join(here, "scores.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(50, scored)))

# What all servers understand: a version 2 that there is not yet. Field 9 of a map.
open(os.path.join(here, "raise_version.entry"), "wb").write(frame(b"RRME", data(80, num(1, 2))))
cmap = data(1, b"c-1") + num(2, 2) + num(8, 1) + num(9, 2)
open(os.path.join(here, "version.snapshot"), "wb").write(frame(b"RRMS", num(1, 3) + data(2, cmap)))

# The run's data is dealt by rank and what was read is in the shards; part 0, read up to 7, was that of incarnation 5, of which the
# shards are to be asked; the run was stopped, and gathers.
enter = enter[:-len(num(8, 10 * 10**9) + data(7, plan))] + data(7, plan + num(9, 1) + num(10, 1)) + num(8, 10 * 10**9)
open(os.path.join(here, "enter_dealt.entry"), "wb").write(frame(b"RRME", data(50, data(1, enter) + data(2, run))))
at = num(3, 5) + num(4, 7) + num(5, 9)  # epoch 0 and part 0 are left out
unknown = num(2, 1) + num(3, 6) + num(6, 1)
open(os.path.join(here, "settle_splits.entry"), "wb").write(frame(b"RRME", data(57, data(1, b"ctr") + data(2, run) + data(3, at) + data(3, unknown))))
state = (data(1, b"ctr") + data(2, run) + num(3, 2) + num(5, 3) + num(7, 10 * 10**9) + num(8, 1)
         + num(12, 1) + data(13, lost) + data(14, plan + num(5, 1) + data(6, num(3, 7) + num(6, 5)) + num(9, 1) + num(10, 1)) + num(20, 1))
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "dealt.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(50, state)))

# The run goes on after 500 steps of its job.
enter = enter + num(15, 500)
open(os.path.join(here, "enter_base.entry"), "wb").write(frame(b"RRME", data(50, data(1, enter) + data(2, run))))
state = (data(1, b"ctr") + data(2, run) + num(3, 2) + num(5, 3) + num(7, 10 * 10**9) + num(8, 1)
         + num(12, 1) + data(13, lost) + data(14, plan + num(5, 1)) + num(21, 500))
open(os.path.join(here, "base.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(50, state)))

# Placement. Server n-1 of zone a is decommissioned by operation 5; shard 0 gets a replica on n-2 for it.
node = data(1, b"n-1") + data(3, b"h:1") + data(4, b"p:1") + data(7, b"rack=r1,zone=a")
open(os.path.join(here, "put_labels.entry"), "wb").write(frame(b"RRME", data(2, data(1, node))))
intent = data(1, b"n-1") + num(3, 2) + num(4, 2) + num(5, 1)  # from serving: left out; protobuf writes the oneof last
open(os.path.join(here, "set_intent.entry"), "wb").write(frame(b"RRME", num(90, 2000 * 10**9) + data(67, intent)))
open(os.path.join(here, "end_operation.entry"), "wb").write(frame(b"RRME", data(68, num(1, 5))))
open(os.path.join(here, "retire_node.entry"), "wb").write(frame(b"RRME", data(69, data(1, b"n-1"))))
start = data(3, replica(b"r-2", b"n-2")) + num(4, 9) + num(5, 3)  # added, since it is missing: from nowhere
open(os.path.join(here, "add_replica.entry"), "wb").write(frame(b"RRME", data(7, start)))
nodes = data(4, node + num(8, 2)) + data(4, data(1, b"n-2") + data(3, b"h:2") + data(4, b"p:2"))
shard = data(2, replica(b"r-1", b"n-1")) + data(3, replica(b"r-2", b"n-2"))
cmap = data(1, b"c-1") + num(2, 9) + num(3, 6) + nodes + data(5, shard) + data(6, num(1, 4096)) + num(8, 1)
ended = num(1, 4) + num(2, 1) + data(3, b"n-9") + data(4, b"nine") + num(5, 3) + num(6, 2) + num(9, 1900 * 10**9) + num(10, 2000 * 10**9)
runs = num(1, 5) + num(2, 2) + data(3, b"n-1") + num(5, 1) + num(6, 1) + num(9, 2000 * 10**9)
state = (num(1, 78) + data(2, cmap) + data(5, move(6, replica(b"r-1", b"n-1"), replica(b"r-2", b"n-2"), 1) + num(6, 2) + num(7, 2001 * 10**9)) + num(7, 6)
         + data(60, ended) + data(60, runs) + data(61, b"n-0"))
open(os.path.join(here, "placement.snapshot"), "wb").write(frame(b"RRMS", state))

# Join tokens. One for two servers of any name, for an hour from second 1000 on; one of them has used it at second 1001.
token_id = b"0123456789abcdef"
hour = 3600 * 10**9
token = data(1, token_id) + data(2, b"server") + num(5, 2) + num(6, 1000 * 10**9) + num(7, 1000 * 10**9 + hour) + num(8, 24 * hour) + data(9, b"admin ann")
secret = data(2, bytes(range(32)))
open(os.path.join(here, "create_token.entry"), "wb").write(frame(b"RRME", data(70, data(1, data(1, token) + secret))))
used = data(1, b"n1") + num(2, 1001 * 10**9) + data(3, bytes(range(32, 64)))
open(os.path.join(here, "use_token.entry"), "wb").write(frame(b"RRME", data(71, data(1, token_id) + data(2, used))))
open(os.path.join(here, "delete_token.entry"), "wb").write(frame(b"RRME", data(72, data(1, token_id))))
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "tokens.snapshot"), "wb").write(frame(b"RRMS", num(1, 3) + data(2, cmap) + data(70, data(1, token + data(10, used)) + secret)))

# Part 0 was given to a worker three times.
state = (data(1, b"ctr") + data(2, run) + num(3, 2) + num(5, 3) + num(7, 10 * 10**9) + num(8, 1)
         + num(12, 1) + data(13, there) + data(14, plan + num(5, 1) + data(6, num(3, 7) + num(4, 6) + num(5, 1) + num(7, 3)) + num(9, 1) + num(10, 1)))
cmap = data(1, b"c-1") + num(2, 1) + num(8, 1)
open(os.path.join(here, "readings.snapshot"), "wb").write(frame(b"RRMS", num(1, 9) + data(2, cmap) + num(3, 6) + data(50, state)))
