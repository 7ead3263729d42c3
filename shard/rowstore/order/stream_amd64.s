//go:build !race

#include "textflag.h"

// func Stream(dst, src unsafe.Pointer, n int, link uint64)
TEXT ·Stream(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ link+24(FP), DX
	SUBQ $64, CX
	JCS  last
line:
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVNTO X0, (DI)
	MOVNTO X1, 16(DI)
	MOVNTO X2, 32(DI)
	MOVNTO X3, 48(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $64, CX
	JCC  line
last: // what is left of the record, the link, and zeroes: a line of which a part is written would be read first
	ADDQ $64, CX
	LEAQ 64(DI), BX
	JMP  left
word:
	MOVQ (SI), AX
	MOVNTIQ AX, (DI)
	ADDQ $8, SI
	ADDQ $8, DI
	SUBQ $8, CX
left:
	TESTQ CX, CX
	JNZ  word
	MOVNTIQ DX, (DI)
	XORL AX, AX
	JMP  more
zero:
	MOVNTIQ AX, (DI)
more:
	ADDQ $8, DI
	CMPQ DI, BX
	JCS  zero
	RET
