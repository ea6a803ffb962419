// Package simverbs is a strict simulation of RDMA verbs, for tests and for
// machines without a device.
//
// A [Provider] is one process on one virtual host. Processes that name the
// same directory share a fabric: they find each other's queue pairs there and
// exchange packets over unix sockets, also within one process, so that there
// is one code path. Several processes may share a host: they see the same
// devices and GIDs, and their queue pairs have distinct numbers. Numbers count
// from the same start on every device of every host, and the lowest free one
// is used again at once: whoever takes a number for an identity fails here.
//
// Where real devices differ, the simulation takes the strictest: a send's slot
// is free once its completion was polled, RESET drops the completions that
// were not, a send's bytes are read again at every retransmission, more reads at
// a time than the target agreed to are refused, every process's keys count from
// the same start. A queue pair checks where a packet comes from and its sequence number, not which
// queue pair sent it, as Soft-RoCE does.
//
// It is reliable as far as packets go: they are lost only over a port that is
// down, a cut link, or to a process that is dead or frozen: a real device goes
// on answering for a frozen one, and writes to its memory. [Control] changes
// that from any process. It simulates no speed and no congestion; a message
// is one packet, so sequence numbers count messages.
//
// Every object is counted and every wrong order is refused or recorded;
// [Provider.Accounts] tells.
package simverbs
