// Package demo is `hawser demo`: it starts two nodes as processes, each with
// its plugins in processes of their own, sends notifications from one to the
// other, lets faults happen to them, and checks what arrived.
//
// [Run] is the parent's side. It knows what was sent, how each notification
// ended and what arrived only from what the nodes tell as it happens, writes
// that into a ledger, and judges the ledger when a row of the table is over.
// [ServeNode] is the nodes' side.
package demo
