//go:build linux || !race

#include "textflag.h"

// func LoadFence()
TEXT ·LoadFence(SB), NOSPLIT, $0-0
	DMB $0x9
	RET

// func StoreFence()
TEXT ·StoreFence(SB), NOSPLIT, $0-0
	DMB $0xA
	RET
