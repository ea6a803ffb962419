// Package sim is a simulation of whole systems: real engines over in-memory
// transports and an in-memory control plane, in fake time, with everything that
// goes wrong chosen by a seed, and a checker that knows what the notification
// protocol promises (docs/protocol.md).
//
// A run replays from its seed: traffic, faults and their times are the same.
// What is not repeated is the order of goroutines within one instant of fake
// time, and the engines' own jitter. A failure that needs a certain order may
// take several replays; each prints a trace of the notification concerned.
package sim
