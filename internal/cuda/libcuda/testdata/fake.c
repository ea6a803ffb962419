// A library with the driver's symbols, for tests of how they are called: the
// structs' layouts, handles by value, names, and what is given back. It keeps
// one number of each kind in use and says what it was called with.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef uint64_t P;
typedef struct { unsigned char b[64]; } H;
typedef struct { int type, kinds, where, id; void *win; unsigned char flags[8]; } Prop;
typedef struct { int where, id, flags; } Access;

// last is what the last call that tells was called with.
char last[512];
const char *fake_last(void) { return last; }
// fake_fail makes the calls of a name fail with a result; fake_held is how many
// contexts are retained.
static char failing[64];
static int with;
void fake_fail(const char *name, int r) { snprintf(failing, sizeof failing, "%s", name); with = r; }
static int held;
int fake_held(void) { return held; }

#define CHECK if (strcmp(__func__, failing) == 0) return with
#define SAY(...) snprintf(last, sizeof last, __VA_ARGS__)

R cuInit(unsigned f) { CHECK; return 0; }
R cuDeviceGetCount(int *n) { CHECK; *n = 2; return 0; }
R cuDeviceGet(int *d, int i) { CHECK; if (i < 0 || i > 1) return 101; *d = i + 10; return 0; }
R cuDeviceGetName(char *s, int n, int d) { CHECK; snprintf(s, n, "Fake GPU %d", d); return 0; }
R cuDeviceGetUuid_v2(unsigned char *u, int d) { CHECK; for (int i = 0; i < 16; i++) u[i] = i + d; return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) {
	CHECK;
	switch (a) {
	case 20: *v = 3; return 0;
	case 102: case 103: case 113: case 125: *v = 1; return 0;
	}
	return 1;
}
R cuDevicePrimaryCtxRetain(P *c, int d) { CHECK; held++; *c = 0xc0ffee00 + d; return 0; }
R cuDevicePrimaryCtxRelease_v2(int d) { CHECK; held--; return 0; }
R cuCtxSetCurrent(P c) { CHECK; return 0; }
R cuMemGetInfo_v2(size_t *f, size_t *t) { CHECK; *f = 5ull << 32; *t = 6ull << 32; return 0; }
R cuMemGetAllocationGranularity(size_t *n, Prop *p, int o) { CHECK; *n = 2 << 20; return 0; }
R cuMemCreate(P *h, size_t n, Prop *p, unsigned long long f) {
	CHECK;
	unsigned rest = p->win != 0;
	for (int i = 0; i < 8; i++) rest |= p->flags[i];
	SAY("create %zu type %d kinds %d where %d id %d rest %u flags %llu", n, p->type, p->kinds, p->where, p->id, rest, f);
	*h = 0x1122334455667788;
	return 0;
}
R cuMemRelease(P h) { CHECK; SAY("release %llx", (unsigned long long)h); return 0; }
R cuMemRetainAllocationHandle(P *h, P p) { CHECK; *h = p + 1; return 0; }
R cuMemExportToShareableHandle(void *to, P h, int kind, unsigned long long f) {
	CHECK;
	if (kind == 8) memset(to, 0xfa, 64); else *(int *)to = 1000;
	return 0;
}
R cuMemImportFromShareableHandle(P *h, void *os, int kind) {
	CHECK;
	if (kind == 8) SAY("import fabric %x %x", ((unsigned char *)os)[0], ((unsigned char *)os)[63]);
	else SAY("import fd %d", (int)(uintptr_t)os);
	*h = 7;
	return 0;
}
R cuMemAddressReserve(P *p, size_t n, size_t al, P at, unsigned long long f) { CHECK; SAY("reserve %zu %zu %llx %llu", n, al, (unsigned long long)at, f); *p = 0x7f0000000000; return 0; }
R cuMemAddressFree(P p, size_t n) { CHECK; return 0; }
R cuMemMap(P p, size_t n, size_t o, P h, unsigned long long f) { CHECK; SAY("map %llx %zu %zu %llx %llu", (unsigned long long)p, n, o, (unsigned long long)h, f); return 0; }
R cuMemUnmap(P p, size_t n) { CHECK; return 0; }
R cuMemSetAccess(P p, size_t n, Access *a, size_t c) { CHECK; SAY("access %llx %zu where %d id %d flags %d count %zu", (unsigned long long)p, n, a->where, a->id, a->flags, c); return 0; }
R cuMemAlloc_v2(P *p, size_t n) { CHECK; *p = 0x7e0000000000; return 0; }
R cuMemFree_v2(P p) { CHECK; return 0; }
R cuIpcGetMemHandle(H *h, P p) { CHECK; for (int i = 0; i < 64; i++) h->b[i] = i; return 0; }
static R opened(P *p, H h, unsigned f, P at) {
	int good = 1;
	for (int i = 0; i < 64; i++) good &= h.b[i] == i * 3;
	SAY("open %d flags %u", good, f);
	*p = at;
	return 0;
}
R cuIpcOpenMemHandle_v2(P *p, H h, unsigned f) { CHECK; return opened(p, h, f, 0x7d0000000000); }
R cuIpcCloseMemHandle(P p) { CHECK; return 0; }
R cuMemGetAddressRange_v2(P *b, size_t *n, P p) { CHECK; *b = 0x1000; *n = 0x5000; return 0; }
R cuPointerGetAttribute(void *v, int a, P p) {
	CHECK;
	if (p < 0x1000) return 1;
	switch (a) {
	case 2: *(unsigned *)v = p == 0x9999 ? 1 : 2; return 0;
	case 8: *(char *)v = p == 0x8888; return 0;
	case 9: *(int *)v = 1; return 0;
	case 10: *(char *)v = 1; return 0;
	case 14: *(unsigned *)v = 1 | 8 | 2; return 0;
	case 18: *(size_t *)v = 0x2000; return 0;
	case 19: *(P *)v = 0x2000; return 0;
	}
	return 1;
}
R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { CHECK; SAY("register %zu %u", n, f); return 0; }
R cuMemHostUnregister(void *p) { CHECK; return 0; }
R cuStreamCreate(P *s, unsigned f) { CHECK; SAY("stream %u", f); *s = 0x51; return 0; }
R cuStreamDestroy_v2(P s) { CHECK; return 0; }
R cuStreamQuery(P s) { CHECK; return s == 0x51 ? 600 : 0; }
R cuStreamSynchronize(P s) { CHECK; return 0; }
R cuStreamWaitEvent(P s, P e, unsigned f) { CHECK; SAY("wait %llx %llx %u", (unsigned long long)s, (unsigned long long)e, f); return 0; }
static R copied(const char *how, P d, P s, size_t n, P st) { SAY("%s %zu stream %llx", how, n, (unsigned long long)st); return 0; }
R cuMemcpyDtoDAsync_v2(P d, P s, size_t n, P st) { CHECK; return copied("d2d", d, s, n, st); }
R cuMemcpyHtoDAsync_v2(P d, P s, size_t n, P st) { CHECK; return copied("h2d", d, s, n, st); }
R cuMemcpyDtoHAsync_v2(P d, P s, size_t n, P st) { CHECK; return copied("d2h", d, s, n, st); }
R cuMemsetD8Async(P d, unsigned char v, size_t n, P s) { CHECK; SAY("set %x %zu stream %llx", v, n, (unsigned long long)s); return 0; }
R cuEventCreate(P *e, unsigned f) { CHECK; SAY("event %u", f); *e = 0xe; return 0; }
R cuEventDestroy_v2(P e) { CHECK; return 0; }
R cuEventRecord(P e, P s) { CHECK; return 0; }
R cuEventQuery(P e) { CHECK; return e == 0xe ? 600 : 0; }
R cuEventSynchronize(P e) { CHECK; return 0; }
R cuIpcGetEventHandle(H *h, P e) { CHECK; for (int i = 0; i < 64; i++) h->b[i] = i; return 0; }
R cuIpcOpenEventHandle(P *e, H h) { CHECK; return opened(e, h, 0, 0xee); }
R cuModuleLoadData(P *m, const char *image) { CHECK; SAY("load %zu", strlen(image)); *m = 0x30; return 0; }
R cuModuleUnload(P m) { CHECK; SAY("unload %llx", (unsigned long long)m); return 0; }
R cuModuleGetFunction(P *f, P m, const char *n) { CHECK; if (strcmp(n, "busy")) return 500; *f = 0xf; return 0; }
R cuLaunchKernel(P f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, P s, void **params, void **extra) {
	CHECK;
	SAY("launch %llx grid %u %u %u block %u %u %u shared %u stream %llx ns %llu extra %d", (unsigned long long)f, gx, gy, gz, bx, by, bz, sh,
		(unsigned long long)s, (unsigned long long)*(uint64_t *)params[0], extra != 0);
	return 0;
}
