#include "textflag.h"

// func prefetch(addrs *unsafe.Pointer, n int, lines int)
//
// A prefetch of an address that is not mapped, nil among them, does nothing.
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ addrs+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ lines+16(FP), DX
	TESTQ CX, CX
	JZ   done
next:
	MOVQ (SI), AX
	MOVQ DX, BX
line:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	DECQ BX
	JNZ  line
	ADDQ $8, SI
	DECQ CX
	JNZ  next
done:
	RET
