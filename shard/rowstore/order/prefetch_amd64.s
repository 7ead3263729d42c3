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

// func PrefetchRow(entry, slot, record unsafe.Pointer, from, to int)
TEXT ·PrefetchRow(SB), NOSPLIT, $0-40
	MOVQ entry+0(FP), AX
	MOVQ slot+8(FP), CX
	MOVQ record+16(FP), BX
	MOVQ from+24(FP), DX
	ADDQ BX, DX
	ADDQ to+32(FP), BX
	PREFETCHT0 (AX)
	PREFETCHT0 (CX)
	PREFETCHT0 63(CX)
	ANDQ $~63, DX
line:
	PREFETCHT0 (DX)
	ADDQ $64, DX
	CMPQ DX, BX
	JCS  line
	RET
