//go:build !race

#include "textflag.h"

// bias and busy are at these offsets in a Mutex.
#define bias 0
#define busy 8

// func enter(m *Mutex) bool
TEXT ·enter(SB), NOSPLIT, $0-9
	MOVQ m+0(FP), AX
	MOVQ (TLS), CX
	CMPQ CX, bias(AX)
	JNE  no
	MOVL $1, busy(AX)  // entering
	CMPQ CX, bias(AX)
	JNE  out
	MOVL $2, busy(AX)  // in
	MOVB $1, ret+8(FP)
	RET

out:
	MOVL $0, busy(AX)

no:
	MOVB $0, ret+8(FP)
	RET

// func goroutine() uintptr
TEXT ·goroutine(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET
