/* rowraft.h: the Go client of rowraft as a C library, ABI version 1.
 *
 * Every call to the cluster is an operation. rowraft_start starts one and waits for its end for up to
 * wait_ms; rowraft_wait waits again. While an operation runs, the library reads and writes the memory of its
 * segments, so the caller keeps that memory until state is no longer ROWRAFT_RUNNING. A caller that must
 * stop waiting calls rowraft_cancel, and still waits for the end.
 *
 * All functions may be called from any thread. In a forked child of a process that has loaded the library
 * each of them returns at once with the code ROWRAFT_FORKED, since a Go runtime does not survive fork.
 *
 * The layout of the structs and the meaning of the numbers change only with ROWRAFT_ABI. The JSON of ROWRAFT_CALL
 * is between this library and the Python package of the same version. */
#ifndef ROWRAFT_H
#define ROWRAFT_H

#include <stdint.h>

#define ROWRAFT_ABI 1

/* What an operation does. */
enum {
	ROWRAFT_PULL = 1,   /* fills values (and present) of all segments */
	ROWRAFT_PUSH = 2,   /* applies values as gradients, exactly once */
	ROWRAFT_ASSIGN = 3, /* sets values as weights */
	ROWRAFT_DELETE = 4, /* removes the rows of keys */
	ROWRAFT_NEXT = 5,   /* fills one segment with the next rows of a scan; its table is the scan's handle */
	ROWRAFT_CALL = 6,   /* anything else: request and result are JSON */

	/* Of a client that is a worker of a training job. Keys are strictly ascending. */
	ROWRAFT_JOB_PULL = 7,  /* fills values for the next step, as the job's mode does; rows: steps by which they lag */
	ROWRAFT_JOB_PUSH = 8,  /* pushes the gradients of a step, exactly once, as the job's mode does */
	ROWRAFT_JOB_STATE = 9, /* the text is the state to resume from, bytes; none: the job is new */
	ROWRAFT_JOB_HOLD = 10, /* gives the worker's state, n bytes at values of one segment, and waits until the
	                          checkpoint that wants it lets the worker continue */
	ROWRAFT_JOB_FINISH = 11 /* gives its last state in the same way */
};

/* state of an operation. */
enum { ROWRAFT_RUNNING = 0, ROWRAFT_DONE = 1, ROWRAFT_FAILED = 2 };

/* code of an error that is none of rowraft.Code (errors.go), which are >= 0. */
enum {
	ROWRAFT_FORKED = -1, /* this process is a fork of the one that loaded the library */
	ROWRAFT_ENDED = -2   /* there is no such operation: its text was taken, or it had none */
};

/* rowraft_segment is the part of a call for one table. */
typedef struct {
	uint64_t table;       /* handle, from a call */
	const uint64_t *keys; /* n; a scan writes them */
	float *values;        /* n * dim, row-major; NULL for a delete */
	uint8_t *present;     /* a pull: n, 1 for each key that was pushed or assigned; NULL: not wanted */
	int64_t n;
	float lr;             /* a push: replaces the table's learning rate; 0: the table's */
	uint32_t reserved;    /* 0 */
} rowraft_segment;

/* rowraft_status is what has become of an operation. */
typedef struct {
	uint64_t op;           /* for rowraft_wait, _cancel and _take; 0: it has ended and there is no text to take */
	int32_t state;
	int32_t code;          /* of ROWRAFT_FAILED */
	int32_t maybe_applied; /* of ROWRAFT_FAILED: 1 if a write may still take effect */
	int32_t reserved;
	int64_t rows;          /* of ROWRAFT_NEXT: rows that were filled in; 0 at the end of the scan. See ROWRAFT_JOB_PULL */
	int64_t text_bytes;    /* UTF-8, without a final 0: the result of a call, or the text of an error */
} rowraft_status;

/* rowraft_abi returns ROWRAFT_ABI of the library. */
uint32_t rowraft_abi(void);

/* rowraft_start starts an operation of a client (0: of none). request is JSON, or NULL. timeout_ms bounds
 * the operation, wait_ms the wait for it; < 0: no bound. */
void rowraft_start(uint64_t client, int32_t what, const rowraft_segment *segments, int64_t segment_count,
                   const char *request, int64_t request_bytes, int64_t timeout_ms, int64_t wait_ms,
                   rowraft_status *out);

/* rowraft_wait waits for the end of an operation. While it runs, out->op stays as it is, if it was op. */
void rowraft_wait(uint64_t op, int64_t wait_ms, rowraft_status *out);

/* rowraft_cancel makes an operation end soon, with an error. A push that has begun is sent completely all the
 * same. */
void rowraft_cancel(uint64_t op);

/* rowraft_take copies up to bytes of the text of an operation that has ended, and forgets the operation. */
void rowraft_take(uint64_t op, char *text, int64_t bytes);

#endif
