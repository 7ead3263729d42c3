//go:build cgo

// The functions of rowraft.h. A Go runtime has only one of its threads in a forked child, so a call into Go
// there would hang: these functions return before it.

#include "rowraft.h"

#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"

static volatile int forked;

static void note_fork(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(0, 0, note_fork); }

static int refuse(rowraft_status *out) {
	if (!forked) return 0;
	memset(out, 0, sizeof *out);
	out->state = ROWRAFT_FAILED;
	out->code = ROWRAFT_FORKED;
	return 1;
}

uint32_t rowraft_abi(void) { return ROWRAFT_ABI; }

void rowraft_start(uint64_t client, int32_t what, const rowraft_segment *segments, int64_t segment_count,
                   const char *request, int64_t request_bytes, int64_t timeout_ms, int64_t wait_ms,
                   rowraft_status *out) {
	if (refuse(out)) return;
	rowraftGoStart(client, what, (rowraft_segment *)segments, segment_count, (char *)request, request_bytes, timeout_ms,
	               wait_ms, out);
}

void rowraft_wait(uint64_t op, int64_t wait_ms, rowraft_status *out) {
	if (refuse(out)) return;
	rowraftGoWait(op, wait_ms, out);
}

void rowraft_cancel(uint64_t op) {
	if (!forked) rowraftGoCancel(op);
}

void rowraft_take(uint64_t op, char *text, int64_t bytes) {
	if (!forked) rowraftGoTake(op, text, bytes);
}
