// A PJRT plugin with one device that compiles nothing. Tests build it with macros that make it fail:
//
//	MAJOR, MINOR   version of its API
//	TABLE          functions in its table
//	GROWN          bytes by which PJRT_Client_Create_Args is larger than in PJRT API 0.104
//	REFUSES        message with which it creates no client

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#ifndef MAJOR
#define MAJOR 0
#endif
#ifndef MINOR
#define MINOR 104
#endif
#ifndef TABLE
#define TABLE 135
#endif
#ifndef GROWN
#define GROWN 0
#endif

typedef struct {
	char text[256];
} error;

typedef struct {
	size_t size;
	void *extension;
	void *object;
	union {
		const char *text;
		void *pointer;
		void **list;
		int number;
		_Bool yes;
	} out;
	size_t out_size;
} args; // of most functions

static error *fail(const char *text) {
	error *e = calloc(1, sizeof *e);
	snprintf(e->text, sizeof e->text, "%s", text);
	return e;
}

static void *error_destroy(args *a) { free(a->object); return NULL; }
static void *error_message(args *a) {
	a->out.text = ((error *)a->object)->text;
	a->out_size = strlen(a->out.text);
	return NULL;
}
static void *error_code(args *a) { a->out.number = 13; return NULL; }

static void *initialize(void *a) { return NULL; }
static void *attributes(args *a) { a->object = NULL; a->out.pointer = NULL; return NULL; }

static int client, device, description;
static void *devices[] = {&device};

typedef struct {
	size_t size;
	void *extension, *options;
	size_t options_size;
	void *callbacks[4], *client, *more[2];
	char grown[GROWN + 8];
} create_args;

static void *create(create_args *a) {
	const size_t known = 88 + GROWN;
	if (a->size < known) {
		char text[256];
		snprintf(text, sizeof text, "Unexpected PJRT_Client_Create_Args size: expected %zu, got %zu. The plugin is likely "
			"built with a later version than the framework.", known, a->size);
		return fail(text);
	}
	for (int i = 0; i < GROWN; i++)
		if (a->grown[i] != 0)
			return fail("a field that the caller does not know is not zero");
#ifdef REFUSES
	return fail(REFUSES);
#endif
	a->client = &client;
	return NULL;
}

static void *destroy(void *a) { return NULL; }
static void *text(args *a, const char *s) { a->out.text = s; a->out_size = strlen(s); return NULL; }
static void *platform(args *a) { return text(a, "fake"); }
static void *version(args *a) { return text(a, "fake 1"); }
static void *zero(args *a) { a->out.number = 0; return NULL; }
static void *list(args *a) {
	if (a->object != &client)
		return fail("another client");
	a->out.list = devices;
	a->out_size = 1;
	return NULL;
}
static void *describe(args *a) { a->out.pointer = &description; return NULL; }
static void *name(args *a) { return text(a, "FakeDevice(id=0)"); }
static void *compile(void *a) { return fail("the fake plugin compiles nothing"); }

static struct {
	size_t size;
	void *extension;
	struct {
		size_t size;
		void *extension;
		int major, minor;
	} version;
	void *functions[TABLE];
} table;

static void put(int at, void *function) {
	if (at < TABLE)
		table.functions[at] = function;
}

void *GetPjrtApi(void) {
	table.size = 40 + TABLE * sizeof(void *);
	table.version.major = MAJOR;
	table.version.minor = MINOR;
	put(0, error_destroy);
	put(1, error_message);
	put(2, error_code);
	put(3, initialize);
	put(4, attributes);
	put(10, create);
	put(11, destroy);
	put(12, platform);
	put(13, zero);
	put(14, version);
	put(16, list);
	put(20, compile);
	put(24, zero);     // PJRT_DeviceDescription_ProcessIndex
	put(27, name);     // PJRT_DeviceDescription_DebugString
	put(29, describe); // PJRT_Device_GetDescription
	put(31, zero);     // PJRT_Device_LocalHardwareId
	return &table;
}
