#include "textflag.h"

// LOOP is the body of a func(dst, a, b *byte, n int): n blocks of 32 bytes, four
// at a time and then one by one. OP combines the block of b at an offset from
// DX with that of a in a register, and may use Y8 and Y9; Y15 is what SETUP
// leaves there.
#define LOOP(SETUP, OP) \
	MOVQ dst+0(FP), DI; \
	MOVQ a+8(FP), SI; \
	MOVQ b+16(FP), DX; \
	MOVQ n+24(FP), CX; \
	SETUP; \
	SUBQ $4, CX; \
	JL   ones; \
fours: \
	VMOVUPD (SI), Y0; \
	VMOVUPD 32(SI), Y1; \
	VMOVUPD 64(SI), Y2; \
	VMOVUPD 96(SI), Y3; \
	OP(0, Y0); \
	OP(32, Y1); \
	OP(64, Y2); \
	OP(96, Y3); \
	VMOVUPD Y0, (DI); \
	VMOVUPD Y1, 32(DI); \
	VMOVUPD Y2, 64(DI); \
	VMOVUPD Y3, 96(DI); \
	ADDQ $128, SI; \
	ADDQ $128, DX; \
	ADDQ $128, DI; \
	SUBQ $4, CX; \
	JGE  fours; \
ones: \
	ADDQ $4, CX; \
	JZ   done; \
one: \
	VMOVUPD (SI), Y0; \
	OP(0, Y0); \
	VMOVUPD Y0, (DI); \
	ADDQ $32, SI; \
	ADDQ $32, DX; \
	ADDQ $32, DI; \
	SUBQ $1, CX; \
	JNZ  one; \
done: \
	VZEROUPPER; \
	RET

#define NONE

#define SUM64F(off, Y) VADDPD off(DX), Y, Y
#define SUM32F(off, Y) VADDPS off(DX), Y, Y
#define SUM64(off, Y) VPADDQ off(DX), Y, Y
#define SUM32(off, Y) VPADDD off(DX), Y, Y
#define PROD64F(off, Y) VMULPD off(DX), Y, Y
#define PROD32F(off, Y) VMULPS off(DX), Y, Y
#define MIN32(off, Y) VPMINSD off(DX), Y, Y
#define MAX32(off, Y) VPMAXSD off(DX), Y, Y

TEXT ·sumFloat64AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, SUM64F)

TEXT ·sumFloat32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, SUM32F)

TEXT ·sumInt64AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, SUM64)

TEXT ·sumInt32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, SUM32)

TEXT ·prodFloat64AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, PROD64F)

TEXT ·prodFloat32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, PROD32F)

TEXT ·minInt32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, MIN32)

TEXT ·maxInt32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, MAX32)


// VMINP answers its second operand if one is a NaN or both are zeros. With
// m = min(a, b), min(m, a) | m is a NaN if one of them is, and -0 if one is,
// which is what Go's min says. The greatest is the least of the negatives.
#define LEAST64F(off, Y) \
	VMOVUPD off(DX), Y8; \
	VMINPD Y8, Y, Y8; \
	VMINPD Y, Y8, Y9; \
	VORPD  Y8, Y9, Y

#define LEAST32F(off, Y) \
	VMOVUPS off(DX), Y8; \
	VMINPS Y8, Y, Y8; \
	VMINPS Y, Y8, Y9; \
	VORPS  Y8, Y9, Y

#define GREATEST64F(off, Y) \
	VXORPD off(DX), Y15, Y8; \
	VXORPD Y, Y15, Y; \
	VMINPD Y8, Y, Y8; \
	VMINPD Y, Y8, Y9; \
	VORPD  Y8, Y9, Y; \
	VXORPD Y, Y15, Y

#define GREATEST32F(off, Y) \
	VXORPS off(DX), Y15, Y8; \
	VXORPS Y, Y15, Y; \
	VMINPS Y8, Y, Y8; \
	VMINPS Y, Y8, Y9; \
	VORPS  Y8, Y9, Y; \
	VXORPS Y, Y15, Y

#define SIGNS64 VPCMPEQD Y15, Y15, Y15; VPSLLQ $63, Y15, Y15
#define SIGNS32 VPCMPEQD Y15, Y15, Y15; VPSLLD $31, Y15, Y15

TEXT ·minFloat64AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, LEAST64F)

TEXT ·minFloat32AVX2(SB), NOSPLIT, $0-32
	LOOP(NONE, LEAST32F)

TEXT ·maxFloat64AVX2(SB), NOSPLIT, $0-32
	LOOP(SIGNS64, GREATEST64F)

TEXT ·maxFloat32AVX2(SB), NOSPLIT, $0-32
	LOOP(SIGNS32, GREATEST32F)

