#include "textflag.h"

// func storeRelease(p *uint64, v uint64)
// Stores of x86 become visible in program order: a plain one releases.
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET

// func prefetchLines(p *byte, n int)
TEXT ·prefetchLines(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ n+8(FP), CX

next:
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX), which the assembler lacks
	ADDQ $64, AX
	SUBQ $64, CX
	JGT  next
	RET
