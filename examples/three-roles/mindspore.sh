#!/usr/bin/env bash
# Starts the roles like a script for MindSpore's parameter server: one command per role, the role in
# MS_ROLE, and the same address of the scheduler for all. The order does not matter.
#
#   MS_SCHED_PORT=8118 examples/three-roles/mindspore.sh
#
# rowraft and rowraft-trainer must be on the PATH. Data and logs go below DIR, a directory of its own unless set.
set -euo pipefail
cd "$(dirname "$0")"
unset ROWRAFT_CERTS ROWRAFT_CERT ROWRAFT_KEY ROWRAFT_CACERT ROWRAFT_ENDPOINTS ROWRAFT_NAME # of another cluster

export MS_SCHED_HOST=${MS_SCHED_HOST:-127.0.0.1}
export MS_SCHED_PORT=${MS_SCHED_PORT:?the port of the scheduler, which must be free}
export MS_SERVER_NUM=${MS_SERVER_NUM:-2}
export MS_WORKER_NUM=${MS_WORKER_NUM:-2}
export ROWRAFT_INSECURE=true # plaintext, on loopback only; else ROWRAFT_CACERT, ROWRAFT_CERT and ROWRAFT_KEY
DIR=${DIR:-$(mktemp -d)}
export MS_RECOVERY_PATH=$DIR/data
mkdir -p "$DIR"

cluster=()
stop() {
	kill "${cluster[@]}" 2>/dev/null || true
	wait "${cluster[@]}" 2>/dev/null || true
}
trap stop EXIT

workers=()
for ((i = 0; i < MS_WORKER_NUM; i++)); do
	MS_ROLE=MS_WORKER MS_NODE_ID=worker_$i rowraft-trainer start --config job.yaml --vocab_cache_size 20000 >"$DIR/worker_$i.log" 2>&1 &
	workers+=($!)
done
for ((i = 0; i < MS_SERVER_NUM; i++)); do
	MS_ROLE=MS_PSERVER MS_NODE_ID=server_$i rowraft start >"$DIR/server_$i.log" 2>&1 &
	cluster+=($!)
done
MS_ROLE=MS_SCHED rowraft start >"$DIR/sched.log" 2>&1 &
cluster+=($!)

for w in "${workers[@]}"; do
	wait "$w" || { tail -n 20 "$DIR"/*.log >&2; exit 1; }
done
grep -h '^epoch: ' "$DIR/worker_0.log"
echo "trained; logs and data are in $DIR"
