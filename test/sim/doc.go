// Package sim is a simulation of whole systems: real engines over in-memory
// transports and an in-memory control plane, in fake time, with everything that
// goes wrong chosen by a seed, and a checker that knows what the notification
// protocol promises (docs/protocol.md).
//
// One seed in five is calm: nothing but processes stop, and perhaps endpoints
// end. There the checker also wants every verdict to be against somebody who was
// stopped: nobody who ran is marked, paused or given up by one who did not.
//
// # Replay
//
// From a seed these are the same every time: the profile, with all limits and
// latencies; the kind, time and length of each fault, and what it draws; what
// senders draw; and the sequence that each engine's sessions and jitter, each
// transport's frame faults and each instance's stragglers are drawn from.
//
// Not repeated is the order of what happens at the same nanosecond: timers that
// are due together fire in an order of the runtime's choosing, and so do cases
// of a select. Directions have latencies of their own, so that this is rare, but
// it does happen, and what follows from it, such as who draws next from a
// shared sequence, may differ from there on. With GOMAXPROCS=1 and without the
// race detector goroutines take their turns in order, and a seed gives the same
// trace twice about every second time; TestReplay tells how often, and where
// the others parted. A failure that needs a certain order may take several
// replays; each prints a trace of the notification concerned, and SIM_TRACE
// names a file for the trace of everything.
package sim
