//go:build ofi && cgo && linux

#ifndef MPIV_BARE_H
#define MPIV_BARE_H

#include <stddef.h>
#include <stdint.h>

struct bare;

enum { BARE_GET, BARE_PUT, BARE_PULL };

int bare_open(const char *provider, const char *node, uintptr_t near, uintptr_t far, size_t len, struct bare **out);
int bare_run(struct bare *b, int what, size_t len, int times);
void bare_close(struct bare *b);

#endif
