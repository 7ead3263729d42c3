//go:build cgo && linux && amd64 && !noxla

// Every function of the PJRT C API takes one pointer, to a structure that begins with its size in bytes, and returns
// nothing or a pointer to an error. So one wrapper serves all of them. It copies the structure to a larger one, whose
// other bytes are zeros, calls the plugin, and copies the structure back, because functions return results in it.
//
// PJRT_Client_Compile and PJRT_LoadedExecutable_Execute also have a pointer to a structure with a size, at offset 24:
// PJRT_Program and PJRT_ExecuteOptions. They are copied likewise.
//
// PJRT_Client_Create has an array of PJRT_NamedValue, whose elements cannot be reported as larger.

#include "table.h"

#include <string.h>

typedef void *(*function)(void *);

enum { ERROR_DESTROY = 0, ERROR_MESSAGE = 1, ERROR_GET_CODE = 2, COMPILE = 20, EXECUTE = 55, UNIMPLEMENTED = 12 };

static struct {
	function plugin[SLOTS];
	size_t room;
	_Alignas(16) char table[HEADER + SLOTS * 8];
} wrapped;

// missing is the error of a function that the plugin lacks.
static const char missing[] = "the plugin is too old: it lacks this function of the PJRT API";

void *get_api(uintptr_t get) { return ((void *(*)(void))get)(); }

size_t table_size(const void *api) { return *(const size_t *)api; }
int table_major(const void *api) { return *(const int *)((const char *)api + 32); }
int table_minor(const void *api) { return *(const int *)((const char *)api + 36); }

static size_t size_of(const void *structure) { return *(const size_t *)structure; }

// widen copies a structure to one of room more bytes.
static void widen(char *to, const char *from) {
	size_t size = size_of(from);
	memcpy(to, from, size);
	memset(to + size, 0, wrapped.room);
	*(size_t *)to = size + wrapped.room;
}

static void *about_missing(int slot, char *args) {
	switch (slot) {
	case ERROR_MESSAGE:
		*(const char **)(args + 24) = missing;
		*(size_t *)(args + 32) = sizeof missing - 1;
		break;
	case ERROR_GET_CODE:
		*(int *)(args + 24) = UNIMPLEMENTED;
	}
	return NULL;
}

static void *call(int slot, char *args) {
	if (slot <= ERROR_GET_CODE && *(const char **)(args + 16) == missing)
		return about_missing(slot, args);
	function f = wrapped.plugin[slot];
	if (f == NULL)
		return (void *)missing;
	if (wrapped.room == 0)
		return f(args);
	size_t size = size_of(args);
	_Alignas(16) char wide[size + wrapped.room];
	widen(wide, args);
	char *inner = slot == COMPILE || slot == EXECUTE ? *(char **)(args + 24) : NULL;
	_Alignas(16) char wide_inner[inner == NULL ? 1 : size_of(inner) + wrapped.room];
	if (inner != NULL) {
		widen(wide_inner, inner);
		*(char **)(wide + 24) = wide_inner;
	}
	void *error = f(wide);
	if (inner != NULL)
		*(char **)(wide + 24) = inner;
	memcpy(args + 8, wide + 8, size - 8);
	return error;
}

#define ONE(n) \
	static void *call_##n(void *args) { return call(0x##n, args); }
#define SIXTEEN(n) \
	ONE(n##0) ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) \
	ONE(n##8) ONE(n##9) ONE(n##a) ONE(n##b) ONE(n##c) ONE(n##d) ONE(n##e) ONE(n##f)
SIXTEEN(0) SIXTEEN(1) SIXTEEN(2) SIXTEEN(3) SIXTEEN(4) SIXTEEN(5) SIXTEEN(6) SIXTEEN(7) SIXTEEN(8) SIXTEEN(9)

#define NAMES(n) \
	call_##n##0, call_##n##1, call_##n##2, call_##n##3, call_##n##4, call_##n##5, call_##n##6, call_##n##7, \
	call_##n##8, call_##n##9, call_##n##a, call_##n##b, call_##n##c, call_##n##d, call_##n##e, call_##n##f
static const function wrappers[SLOTS] = {
	NAMES(0), NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6), NAMES(7), NAMES(8), NAMES(9),
};

void *wrap_table(const void *api, size_t room) {
	size_t size = table_size(api);
	if (size > sizeof wrapped.table)
		size = sizeof wrapped.table;
	memset(wrapped.plugin, 0, sizeof wrapped.plugin);
	memcpy(wrapped.plugin, (const char *)api + HEADER, (size - HEADER) / 8 * 8);
	wrapped.room = room;
	memcpy(wrapped.table, api, HEADER);
	*(size_t *)wrapped.table = sizeof wrapped.table;
	memcpy(wrapped.table + HEADER, wrappers, sizeof wrappers);
	return wrapped.table;
}
