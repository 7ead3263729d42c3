#!/usr/bin/env bash
# The start that scripts for Paddle's parameter server have: every process is told all servers, and
# there is no scheduler to start: it lives in the servers. Any order will do.
#
#   PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:6174,127.0.0.1:6175,127.0.0.1:6176 examples/three-roles/paddle.sh
#
# rowraft and rowraft-trainer must be on the PATH. Data and logs go below DIR, a directory of its own unless set.
set -euo pipefail
cd "$(dirname "$0")"
unset ROWRAFT_CERTS ROWRAFT_CERT ROWRAFT_KEY ROWRAFT_CACERT ROWRAFT_ENDPOINTS ROWRAFT_NAME # of another cluster

export PADDLE_PSERVERS_IP_PORT_LIST=${PADDLE_PSERVERS_IP_PORT_LIST:?host:port of every server, with free ports}
export PADDLE_TRAINERS_NUM=${PADDLE_TRAINERS_NUM:-2}
export ROWRAFT_INSECURE=true # plaintext, on loopback only; else ROWRAFT_CACERT, ROWRAFT_CERT and ROWRAFT_KEY
DIR=${DIR:-$(mktemp -d)}
export ROWRAFT_DATA_ROOT=$DIR/data
mkdir -p "$DIR"

cluster=()
stop() {
	kill "${cluster[@]}" 2>/dev/null || true
	wait "${cluster[@]}" 2>/dev/null || true
}
trap stop EXIT

trainers=()
for ((i = 0; i < PADDLE_TRAINERS_NUM; i++)); do
	TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=$i rowraft-trainer start --config job.yaml >"$DIR/trainer_$i.log" 2>&1 &
	trainers+=($!)
done
for server in ${PADDLE_PSERVERS_IP_PORT_LIST//,/ }; do
	TRAINING_ROLE=PSERVER POD_IP=${server%:*} PADDLE_PORT=${server##*:} rowraft start >"$DIR/server_${server##*:}.log" 2>&1 &
	cluster+=($!)
done

for t in "${trainers[@]}"; do
	wait "$t" || { tail -n 20 "$DIR"/*.log >&2; exit 1; }
done
grep -h '^epoch: ' "$DIR/trainer_0.log"
echo "trained; logs and data are in $DIR"
