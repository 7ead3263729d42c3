// The table of functions of a PJRT plugin, between the plugin and the XLA library. See table.c.

#include <stddef.h>
#include <stdint.h>

enum {
	HEADER = 40,          // bytes before the first function
	SLOTS = 160,          // functions that wrap_table wraps; PJRT API 0.104 has 135
	MIN_TABLE = HEADER + 56 * 8, // up to PJRT_LoadedExecutable_Execute
};

// get_api calls GetPjrtApi.
void *get_api(uintptr_t get);

// The size of a table in bytes, and the version of its API.
size_t table_size(const void *api);
int table_major(const void *api);
int table_minor(const void *api);

// wrap_table returns a table that calls the functions of api, with arguments whose size is reported as room bytes
// larger than it is. It has all functions that a caller may know: those that api lacks return an error. There is one
// such table in a process: a second call replaces the first.
void *wrap_table(const void *api, size_t room);
