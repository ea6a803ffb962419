//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// These compile only while Go's structs are laid out as the shim's: a
// difference is an index outside of an array of one.
var (
	sGo verbs.SendWR
	sC  C.hw_send_wr
	rGo verbs.RecvWR
	rC  C.hw_recv_wr
	wGo verbs.WC
	wC  C.hw_wc

	_ = [1]int{}[unsafe.Sizeof(sGo)-unsafe.Sizeof(sC)]
	_ = [1]int{}[unsafe.Offsetof(sGo.ID)-unsafe.Offsetof(sC.id)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Addr)-unsafe.Offsetof(sC.addr)]
	_ = [1]int{}[unsafe.Offsetof(sGo.RemoteAt)-unsafe.Offsetof(sC.remote_at)]
	_ = [1]int{}[unsafe.Offsetof(sGo.LKey)-unsafe.Offsetof(sC.lkey)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Length)-unsafe.Offsetof(sC.length)]
	_ = [1]int{}[unsafe.Offsetof(sGo.RKey)-unsafe.Offsetof(sC.rkey)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Imm)-unsafe.Offsetof(sC.imm)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Op)-unsafe.Offsetof(sC.op)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Signaled)-unsafe.Offsetof(sC.is_signaled)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Inline)-unsafe.Offsetof(sC.is_inline)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Fenced)-unsafe.Offsetof(sC.is_fenced)]
	_ = [1]int{}[unsafe.Offsetof(sGo.Solicited)-unsafe.Offsetof(sC.is_solicited)]
	_ = [1]int{}[unsafe.Sizeof(rGo)-unsafe.Sizeof(rC)]
	_ = [1]int{}[unsafe.Offsetof(rGo.ID)-unsafe.Offsetof(rC.id)]
	_ = [1]int{}[unsafe.Offsetof(rGo.Addr)-unsafe.Offsetof(rC.addr)]
	_ = [1]int{}[unsafe.Offsetof(rGo.LKey)-unsafe.Offsetof(rC.lkey)]
	_ = [1]int{}[unsafe.Offsetof(rGo.Length)-unsafe.Offsetof(rC.length)]
	_ = [1]int{}[unsafe.Sizeof(wGo)-unsafe.Sizeof(wC)]
	_ = [1]int{}[unsafe.Offsetof(wGo.ID)-unsafe.Offsetof(wC.id)]
	_ = [1]int{}[unsafe.Offsetof(wGo.QP)-unsafe.Offsetof(wC.qp)]
	_ = [1]int{}[unsafe.Offsetof(wGo.Length)-unsafe.Offsetof(wC.length)]
	_ = [1]int{}[unsafe.Offsetof(wGo.Imm)-unsafe.Offsetof(wC.imm)]
	_ = [1]int{}[unsafe.Offsetof(wGo.Status)-unsafe.Offsetof(wC.status)]
	_ = [1]int{}[unsafe.Offsetof(wGo.Vendor)-unsafe.Offsetof(wC.vendor)]
	_ = [1]int{}[unsafe.Offsetof(wGo.Recv)-unsafe.Offsetof(wC.is_recv)]
	_ = [1]int{}[unsafe.Offsetof(wGo.HasImm)-unsafe.Offsetof(wC.has_imm)]
)
