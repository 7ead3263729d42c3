#include "textflag.h"

// func Prefetch(addrs *unsafe.Pointer, n, from, to int)
//
// A prefetch of an address that is not mapped does nothing.
TEXT ·Prefetch(SB), NOSPLIT, $0-32
	MOVQ addrs+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ from+16(FP), DX
	MOVQ to+24(FP), DI
	TESTQ CX, CX
	JZ   done
next:
	MOVQ (SI), BX
	LEAQ (BX)(DX*1), AX
	ADDQ DI, BX
	ANDQ $~63, AX
line:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, BX
	JCS  line
	ADDQ $8, SI
	DECQ CX
	JNZ  next
done:
	RET
